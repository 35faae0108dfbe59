"""Text and tokens of the fake engine: one token per byte unless a model's tokenizer is given, and answers that can be checked.

An answer follows from the model's name and the prompt's ids alone, so a client knows whether it got its own: word k is the hash
of k under the prompt's seed. The words' ids are those of the text, so that the next turn of a chat finds what this one generated.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gateway.errors import NoTokens
from gateway.tokenize import reasons
from gateway.tokenize.messages import conversation
from radix.match import Int32Array

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_FIRST_BYTE = len(SPECIALS)
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS_AT_ONCE = 8


class Codec(Protocol):
    """What the engine needs of a tokenizer; `gateway.tokenize.prompt.Tokenizer` is one."""

    vocab_size: int

    def chat(self, fields: Mapping[str, Any]) -> Int32Array:
        """Ids of a chat body; raises NoTokens."""
        ...

    def text(self, text: str, *, add_special_tokens: bool = True) -> Int32Array:
        """Ids of a text."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of ids."""
        ...


class ByteCodec:
    """One token per UTF-8 byte, and three special ones; `write_tokenizer` makes a folder that says the same to a gateway.

    Takes any id as input, whoever made it: a prompt of ids need not be text.
    """

    vocab_size = 2**31 - 1

    def __init__(self, *, plain: bool = False) -> None:
        """plain: chats are written in a form without special tokens."""
        self._plain = plain

    def chat(self, fields: Mapping[str, Any]) -> Int32Array:
        """Ids of a chat body; raises NoTokens."""
        if self._plain:
            return self.text(_plain_chat(fields))
        text = ""
        for message in conversation(fields.get("messages"), keep_parts=False, keep_developer=False):
            text += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
        if fields.get("add_generation_prompt", True):
            text += "<|im_start|>assistant\n"
        return self.text(text)

    def text(self, text: str, *, add_special_tokens: bool = True) -> Int32Array:
        """Ids of a text; special tokens written in it are taken as such, as engines do."""
        try:
            pieces = [_ids_of(piece) for piece in _SPLIT.split(text)]
        except UnicodeEncodeError as error:
            raise NoTokens(reasons.SHAPE, f"the text is not Unicode: {error}") from error
        return np.concatenate(pieces)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of ids; what is no byte is a replacement character."""
        text, held = "", bytearray()
        for one in ids:
            if _FIRST_BYTE <= one < _FIRST_BYTE + 256:
                held.append(one - _FIRST_BYTE)
                continue
            text += held.decode(errors="replace")
            held.clear()
            if not 0 <= one < _FIRST_BYTE:
                text += "\ufffd"
            elif not skip_special_tokens:
                text += SPECIALS[one]
        return text + held.decode(errors="replace")


def _plain_chat(fields: Mapping[str, Any]) -> str:
    messages = conversation(fields.get("messages"), keep_parts=False, keep_developer=False)
    return "".join(f"{message['role']}: {message['content']}\n" for message in messages) + "assistant: "


def _ids_of(piece: str) -> Int32Array:
    if piece in SPECIALS:
        return np.array([SPECIALS.index(piece)], np.int32)
    return np.frombuffer(piece.encode(), np.uint8).astype(np.int32) + np.int32(_FIRST_BYTE)


def write_tokenizer(folder: Path) -> None:
    """A Hugging Face folder whose tokenizer and chat template say what `ByteCodec` says."""
    import orjson
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {text: number for number, text in enumerate(SPECIALS)}
    vocabulary |= {letter: _FIRST_BYTE + byte for byte, letter in enumerate(_byte_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": SPECIALS[0], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_bytes(orjson.dumps(config))


def _byte_letters() -> list[str]:
    """The letters by which byte-level vocabularies write the 256 bytes: printable ones as they are, the rest behind U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = (chr(0x100 + number) for number in range(256))
    return [chr(byte) if byte in printable else next(rest) for byte in range(256)]


def answer_words(model: str, prompt: Sequence[int], first: int, count: int) -> list[str]:
    """Words first..first+count of the answer to a prompt (token ids) by a model or adapter of that name."""
    ids = np.ascontiguousarray(prompt, np.int32).tobytes()
    seed = blake2b(ids, key=blake2b(model.encode(), digest_size=16).digest(), digest_size=16).digest()
    return [blake2b(k.to_bytes(4, "little"), key=seed, digest_size=3).hexdigest() for k in range(first, first + count)]


def answer_text(model: str, prompt: Sequence[int], words: int) -> str:
    """The first words of the answer, as a client compares them."""
    return " ".join(answer_words(model, prompt, 0, words))


class Answer:
    """The endless answer to one prompt, token by token."""

    def __init__(self, model: str, prompt: array[int], codec: Codec) -> None:
        self._model = model
        self._prompt = prompt
        self._codec = codec
        self._words = 0
        self._ahead: deque[int] = deque()

    def next(self) -> tuple[int, str]:
        """The next token and its text."""
        if not self._ahead:
            words = answer_words(self._model, self._prompt, self._words, _WORDS_AT_ONCE)
            text = (" " if self._words else "") + " ".join(words)
            self._words += _WORDS_AT_ONCE
            self._ahead.extend(self._codec.text(text, add_special_tokens=False).tolist())
        token = self._ahead.popleft()
        return token, self._codec.decode([token])
