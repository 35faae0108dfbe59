"""Text to token ids and back, through the fast encoder where it is proven to give the same ids as the reference.

`tokenizers` is the reference: it is what engines run. `fastokens` is several times faster; `Encoder.load` compares both on
`parity.CORPUS` and keeps the fast one only when every id is equal. Either way encoding releases the GIL.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import fastokens
import numpy as np
import tokenizers

from gateway.errors import NoTokens
from gateway.tokenize import reasons
from gateway.tokenize.parity import CORPUS, mixtures
from gateway.tokenize.template import named_special_tokens
from radix.match import Int32Array

log = logging.getLogger(__name__)

CALL_S = 3e-6  # one call on an empty text, and the array around it


class Encoder:
    """One model's vocabulary. Thread safe."""

    def __init__(self, reference: tokenizers.Tokenizer) -> None:
        """reference: without truncation and padding; its post-processor decides what `add_special_tokens` adds (FC-23)."""
        self._reference = reference
        self._fast = _proven_fast(reference)
        self.vocab_size: int = reference.get_vocab_size(with_added_tokens=True)
        self.added_tokens = tuple(reference.get_added_tokens_decoder().values())
        self.adds_nothing = not len(self.encode("", add_special_tokens=True))  # `add_special_tokens` then makes no difference
        self.us_per_character = self._measure()

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, object]) -> Encoder:
        """From tokenizer.json of a folder; `config` is its tokenizer_config.json. Raises NoTokens when it can not be read."""
        path = folder / "tokenizer.json"
        try:
            reference = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # tokenizers raises plain Exception for a bad file
            raise NoTokens(reasons.NO_TOKENIZER, f"cannot load {path}: {error}") from error
        reference.no_truncation()
        reference.no_padding()
        _add_missing_specials(reference, config)
        return cls(reference)

    @property
    def name(self) -> str:
        """Which encoder is in use: 'fastokens' or 'tokenizers'."""
        return "tokenizers" if self._fast is None else "fastokens"

    def encode(self, text: str, *, add_special_tokens: bool) -> Int32Array:
        """Token ids of one text, int32 [n]; special tokens written in the text count as special, as in engines."""
        return self.encode_all([text], add_special_tokens=add_special_tokens)[0]

    def encode_all(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Int32Array]:
        """Token ids of each text; raises NoTokens for text that is not valid Unicode."""
        try:
            if self._fast is None:
                batch = self._reference.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
                return [np.array(encoding.ids, np.int32) for encoding in batch]
            ids, offsets = self._fast.encode_batch_flat(list(texts), add_special_tokens)
        except (UnicodeError, TypeError) as error:
            raise NoTokens(reasons.SHAPE, "the text holds half of a surrogate pair") from error
        flat = np.frombuffer(ids, np.int32).copy()  # a copy can be written to, like any other array of ids
        ends = np.frombuffer(offsets, np.uint64).tolist()
        return [flat[start:end] for start, end in pairwise(ends)]

    def encode_kept(self, texts: Sequence[str]) -> list[Int32Array]:
        """Token ids of each text without additions, int32 [n], to be kept and not to be written to."""
        if self._fast is None or len(texts) != 1:
            return [_kept(ids) for ids in self.encode_all(texts, add_special_tokens=False)]
        try:
            return [np.frombuffer(self._fast.encode_batch_flat([texts[0]], False)[0], np.int32)]
        except (UnicodeError, TypeError) as error:
            raise NoTokens(reasons.SHAPE, "the text holds half of a surrogate pair") from error

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of ids."""
        return str(self._reference.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def id_of(self, token: str) -> int | None:
        """The id of a token's text, None where the vocabulary lacks it."""
        number: int | None = self._reference.token_to_id(token)
        return number

    def estimate_s(self, characters: int) -> float:
        """Seconds that encoding so many characters should take on this machine."""
        return CALL_S + characters * self.us_per_character * 1e-6

    def _measure(self) -> float:
        """Microseconds per character on text that repeats little; the median of five rounds."""
        text = "\n".join(CORPUS)
        rounds: list[float] = []
        for _ in range(5):
            started = time.perf_counter()
            self.encode(text, add_special_tokens=False)
            rounds.append(time.perf_counter() - started)
        return max(median(rounds) - CALL_S, 1e-9) * 1e6 / len(text)


def _kept(ids: Int32Array) -> Int32Array:
    """A copy, because a slice would keep the ids of the whole batch in memory."""
    copy = ids.copy()
    copy.flags.writeable = False
    return copy


def read_config(folder: Path) -> dict[str, object]:
    """tokenizer_config.json of a folder; empty where there is none, NoTokens where it is not a JSON object."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoTokens(reasons.NO_TOKENIZER, f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise NoTokens(reasons.NO_TOKENIZER, f"{path} must hold an object, got {type(config).__name__}")
    return config


def _add_missing_specials(reference: tokenizers.Tokenizer, config: Mapping[str, object]) -> None:
    """Engines mark every special token that the configuration names, also where tokenizer.json forgot it."""
    known = {str(token) for token in reference.get_added_tokens_decoder().values()}
    missing = [text for text in dict.fromkeys(named_special_tokens(config).values()) if text not in known]
    reference.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in missing])


def _proven_fast(reference: tokenizers.Tokenizer) -> fastokens.Tokenizer | None:
    """The fast encoder, or None where it can not load this tokenizer or one id differs."""
    try:
        fast = fastokens.Tokenizer.from_json_str(reference.to_str())
        texts = [*CORPUS, *mixtures(count=60, seed=7), *_specials_in_text(reference)]
        for specials in (False, True):
            wanted = [encoding.ids for encoding in reference.encode_batch_fast(texts, add_special_tokens=specials)]
            got = [encoding.ids for encoding in fast.encode_batch(texts, specials)]
            for text, want, have in zip(texts, wanted, got, strict=True):
                if want != have:
                    log.warning(
                        "fast tokenizer differs text=%r add_special_tokens=%s action=%s", text[:60], specials, "reference"
                    )
                    return None
    except Exception as error:  # an unsupported tokenizer is refused with whatever the native code raises
        log.warning("fast tokenizer refused error=%r action=reference", str(error)[:200])
        return None
    return fast


def _specials_in_text(reference: tokenizers.Tokenizer) -> list[str]:
    """Each of the first added tokens, glued, spaced and broken over lines between words."""
    tokens = [token.content for token in reference.get_added_tokens_decoder().values()][:64]
    return [f"a{token}b {token} c\n{token}\n{token}{token}  d" for token in tokens]
