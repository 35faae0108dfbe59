"""The requests our server takes: typed shapes of the OpenAI bodies, with vLLM's extra fields that we honour.

Fields we do not know are ignored, as vLLM ignores them. Fields we know and cannot honour are refused by name: an answer that
silently lacks what was asked for is worse than none.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from replicas.bodies import Prompt, StreamOptions, at_most, prompts_of
from replicas.errors import BadRequest, brief
from replicas.sample import Sampling

# A request may ask for many things at once, and each of them costs time on the loop or in every step of everybody.
MAX_STOPS = 32  # each is looked for in every piece of text, in the engine's thread; the OpenAI API takes 4
MAX_STOP_IDS = 1024  # more than any vocabulary we know has special tokens

_AtLeast0 = Annotated[float, msgspec.Meta(ge=0)]
_AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]

_NOT_SUPPORTED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("best_of", (None, 1)),
    ("echo", (None, False)),
    ("logit_bias", (None, {})),
    ("logprobs", (None, False)),
    ("n", (None, 1)),
    ("prompt_logprobs", (None, False)),
    ("suffix", (None, "")),
    ("top_logprobs", (None, 0)),
)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and completion bodies have in common; None is the same as absent."""

    model: str | None = None
    prompt_token_ids: list[int] | None = None  # taken as they are; nothing is tokenized then
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _AtLeast1 | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    temperature: _AtLeast0 | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None  # -1 and 0: all tokens
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | int | None = None
    prompt_logprobs: bool | int | None = None
    top_logprobs: int | None = None
    suffix: str | None = None

    @property
    def include_usage(self) -> bool:
        """A stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def refuse_unsupported(self) -> None:
        """Raise BadRequest for the first field that this engine cannot honour."""
        for name, neutral in _NOT_SUPPORTED:
            value = getattr(self, name)
            if not any(value is one or (type(value) is type(one) and value == one) for one in neutral):
                raise BadRequest(f"{name}={brief(value)} is not supported by this engine", name)

    def sampling(self) -> Sampling:
        """How to choose tokens; what is absent stays neutral, and temperature is 1."""
        given = {name: value for name in Sampling.__dataclass_fields__ if (value := getattr(self, name)) is not None}
        if given.get("top_k") == -1:
            del given["top_k"]
        return Sampling(**given)

    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple; raises BadRequest for an empty one, or too many."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        at_most(MAX_STOPS, stops, "stop")
        if "" in stops:
            raise BadRequest("stop must not hold an empty string", "stop")
        return stops

    def stop_ids(self) -> frozenset[int]:
        """The client's own stop tokens; raises BadRequest for too many. The engine knows whether the vocabulary has them."""
        given = self.stop_token_ids or ()
        at_most(MAX_STOP_IDS, given, "stop_token_ids")
        return frozenset(given)


class ChatRequest(Request, frozen=True, kw_only=True):
    """Body of /v1/chat/completions; messages, tools and template options are read by the tokenizer from the raw fields."""

    max_completion_tokens: _AtLeast1 | None = None  # wins over max_tokens
    tool_choice: str | dict[str, object] | None = None
    response_format: dict[str, object] | None = None

    def refuse_unsupported(self) -> None:
        """Raise BadRequest for the first field that this engine cannot honour."""
        super().refuse_unsupported()
        if self.tool_choice not in (None, "none", "auto"):
            raise BadRequest(
                f"tool_choice={brief(self.tool_choice)} needs guided decoding, which this engine lacks", "tool_choice"
            )
        if self.response_format and self.response_format.get("type") != "text":
            kind = self.response_format.get("type")
            raise BadRequest(
                f"response_format of type {brief(kind)} needs guided decoding, which this engine lacks", "response_format"
            )


class CompletionRequest(Request, frozen=True, kw_only=True):
    """Body of /v1/completions. prompt: text, token ids, or a list of either."""

    prompt: object = None
    add_special_tokens: bool | None = None

    def prompts(self) -> list[Prompt]:
        """Each prompt, in order; raises BadRequest for a shape that is none of the four."""
        return prompts_of(self.prompt, self.prompt_token_ids)
