"""The token ids of a request body: the same list the engine will make of it, or the reason why not (FC-22)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gateway.errors import NoTokens
from gateway.tokenize import reasons
from gateway.tokenize.encode import Encoder, read_config
from gateway.tokenize.template import ChatTemplate, named_special_tokens
from radix.match import Int32Array

log = logging.getLogger(__name__)


# Fields of a chat body, beside the messages, after which its tokens are not those of its messages alone.
CHAT_FIELDS = frozenset(
    (
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "prompt_embeds",
        "prompt_token_ids",
        "reasoning_effort",
        "tools",
        "truncate_prompt_tokens",
    )
)


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt that is still to be encoded."""

    text: str
    add_special_tokens: bool


class Tokenizer:
    """Everything a model's folder says about turning requests into tokens. Thread safe; calls release the GIL while they encode.

    bos, eos: ids of those tokens, None where the model has none. vocab_size: ids are below it.
    """

    def __init__(self, encoder: Encoder, template: ChatTemplate | None, special_tokens: Mapping[str, str]) -> None:
        self.encoder = encoder
        self.template = template
        self.vocab_size = encoder.vocab_size
        self.bos = _id_of(encoder, special_tokens.get("bos_token"))
        self.eos = _id_of(encoder, special_tokens.get("eos_token"))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read and prove a Hugging Face folder's tokenizer, in about a second; raises NoTokens('no_tokenizer', ...)."""
        config = read_config(folder)
        encoder = Encoder.load(folder, config)
        try:
            template = ChatTemplate.load(folder, config)
        except NoTokens as error:  # completions work without it
            log.warning("chat template refused folder=%s error=%s", folder, error)
            template = None
        return cls(encoder, template, named_special_tokens(config))

    @property
    def encoder_name(self) -> str:
        """Which encoder is in use: 'fastokens' or 'tokenizers'."""
        return self.encoder.name

    @property
    def has_template(self) -> bool:
        """Whether chat bodies can be tokenized."""
        return self.template is not None

    def chat(self, fields: Mapping[str, Any]) -> Int32Array:
        """Token ids of a chat body; raises NoTokens."""
        return self._ids(self.read_chat(fields))

    def read_chat(self, fields: Mapping[str, Any]) -> PromptText | Int32Array:
        """What stands before the encoder: the prompt text of a chat body, or the ids it brings; raises NoTokens."""
        given = _given_ids(fields, self.vocab_size)
        if given is not None:
            return given
        _refuse_unknowable(fields)
        return PromptText(self.chat_text(fields), _flag(fields, "add_special_tokens", False))

    def chat_text(self, fields: Mapping[str, Any]) -> str:
        """The prompt text of a chat body, before it is encoded; raises NoTokens."""
        if self.template is None:
            raise NoTokens(reasons.NO_TEMPLATE, "the model has no chat template")
        if fields.get("chat_template") is not None:
            raise NoTokens(reasons.CLIENT_TEMPLATE, "the body brings its own chat_template")
        return self.template.render(
            fields.get("messages"),
            tools=fields.get("tools"),
            add_generation_prompt=_flag(fields, "add_generation_prompt", True),
            continue_final_message=_flag(fields, "continue_final_message", False),
            options=_template_options(fields),
        )

    def completion(self, fields: Mapping[str, Any]) -> Int32Array:
        """Token ids of a completion body; of several prompts the longest start that all share (FC-24). Raises NoTokens."""
        return self._ids(self.read_completion(fields))

    def read_completion(self, fields: Mapping[str, Any]) -> PromptText | Int32Array:
        """The prompt text of a completion body, or ids where it brings them or holds several prompts; raises NoTokens."""
        given = _given_ids(fields, self.vocab_size)
        if given is not None:
            return given
        _refuse_unknowable(fields)
        prompt = fields.get("prompt")
        add_special_tokens = _flag(fields, "add_special_tokens", True)
        if isinstance(prompt, str):
            return PromptText(prompt, add_special_tokens)
        if not isinstance(prompt, list) or not prompt:
            raise NoTokens(reasons.SHAPE, f"prompt must be a text, or a list that is not empty, got {prompt!r:.40}")
        if isinstance(prompt[0], int):
            return _ids(prompt, self.vocab_size, "prompt")
        if all(isinstance(item, str) for item in prompt):
            return _shared_start(self.encoder.encode_all(prompt, add_special_tokens=add_special_tokens))
        return _shared_start([_ids(item, self.vocab_size, f"prompt[{number}]") for number, item in enumerate(prompt)])

    def _ids(self, prompt: PromptText | Int32Array) -> Int32Array:
        if isinstance(prompt, PromptText):
            return self.text(prompt.text, add_special_tokens=prompt.add_special_tokens)
        return prompt

    def text(self, text: str, *, add_special_tokens: bool = True) -> Int32Array:
        """Token ids of a text, int32 [n]."""
        return self.encoder.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of ids."""
        return self.encoder.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_of(self, token: str) -> int | None:
        """The id of a token's text, None where the vocabulary lacks it."""
        return self.encoder.id_of(token)

    def estimate_s(self, characters: int) -> float:
        """Seconds that encoding so many characters should take here; below about a millisecond it may run on the loop."""
        return self.encoder.estimate_s(characters)


def _id_of(encoder: Encoder, token: str | None) -> int | None:
    return None if token is None else encoder.id_of(token)


def _given_ids(fields: Mapping[str, Any], vocab_size: int) -> Int32Array | None:
    given = fields.get("prompt_token_ids")
    return None if given is None else _ids(given, vocab_size, "prompt_token_ids")


def _refuse_unknowable(fields: Mapping[str, Any]) -> None:
    """Fields after which the engine's tokens are not those of the text."""
    if fields.get("truncate_prompt_tokens") is not None:
        raise NoTokens(reasons.TRUNCATION, "truncate_prompt_tokens is set")
    if fields.get("prompt_embeds") is not None:
        raise NoTokens(reasons.EMBEDS, "prompt_embeds is set")


def _template_options(fields: Mapping[str, Any]) -> dict[str, object]:
    """Variables for the template: what engines pass of the body, then `chat_template_kwargs`."""
    options = {key: fields[key] for key in ("documents", "reasoning_effort") if fields.get(key) is not None}
    given = fields.get("chat_template_kwargs")
    if given is not None:
        if not isinstance(given, dict):
            raise NoTokens(reasons.SHAPE, f"chat_template_kwargs must be an object, got {type(given).__name__}")
        options.update(given)
    return options


def _flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise NoTokens(reasons.SHAPE, f"{name} must be true or false, got {value!r:.40}")
    return value


def _ids(values: object, vocab_size: int, where: str) -> Int32Array:
    """A list of ids as an array; engines refuse ids that are not in the vocabulary (FC-24)."""
    if not isinstance(values, list) or not values:
        raise NoTokens(reasons.SHAPE, f"{where} must be a list of token ids that is not empty")
    if not all(type(value) is int for value in values):  # true is an int to isinstance, and never an id
        raise NoTokens(reasons.SHAPE, f"{where} must hold whole numbers only")
    if min(values) < 0 or max(values) >= vocab_size:
        raise NoTokens(reasons.SHAPE, f"{where} holds an id outside 0..{vocab_size - 1}")
    return np.array(values, np.int32)


def _shared_start(prompts: Sequence[Int32Array]) -> Int32Array:
    """The longest start of all prompts; raises NoTokens where that is nothing."""
    start = prompts[0]
    for other in prompts[1:]:
        length = min(len(start), len(other))
        differs = np.flatnonzero(start[:length] != other[:length])
        start = start[: int(differs[0]) if len(differs) else length]
    if not len(start) and len(prompts) > 1:
        raise NoTokens(reasons.BATCH, f"{len(prompts)} prompts share no start")
    return start
