"""The requests our server takes: typed shapes of the OpenAI bodies, with vLLM's extra fields that we honour.

Fields we do not know are ignored, as vLLM ignores them. Fields we know and cannot honour are refused by name: an answer that
silently lacks what was asked for is worse than none.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Sized
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from replicas.errors import BadRequest, brief
from replicas.sampling import Sampling

# A request may ask for many things at once, and each of them costs time on the loop or in every step of everybody.
MAX_PROMPTS = 256  # a sequence each: beyond this a client sends several requests and loses nothing
MAX_STOPS = 32  # each is looked for in every piece of text, in the engine's thread; the OpenAI API takes 4
MAX_STOP_IDS = 1024  # more than any vocabulary we know has special tokens

_AtLeast0 = Annotated[float, msgspec.Meta(ge=0)]
_AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]

Prompt: TypeAlias = "str | array[int]"  # text, or 32-bit token ids

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


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None


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
        if self.prompt_token_ids is not None:
            return [token_ids(self.prompt_token_ids, "prompt_token_ids")]
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt, list) and self.prompt:
            if isinstance(self.prompt[0], str | list):
                at_most(MAX_PROMPTS, self.prompt, "prompt")
            if all(isinstance(item, str) for item in self.prompt):
                return list(self.prompt)
            if all(isinstance(item, list) for item in self.prompt):
                return [token_ids(item, "prompt") for item in self.prompt]
            return [token_ids(self.prompt, "prompt")]
        raise BadRequest(f"prompt must be a text, token ids, or a list of either, got {brief(self.prompt)}", "prompt")


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /tokenize: a prompt, or messages as in a chat (then read from the raw fields)."""

    prompt: str | None = None
    messages: list[object] | None = None
    add_special_tokens: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /detokenize."""

    tokens: list[int]


_Shape = TypeVar("_Shape", bound=msgspec.Struct)


def parse(raw: bytes, shape: type[_Shape]) -> tuple[_Shape, dict[str, object]]:
    """A body as `shape` and as the plain fields it was read from; raises BadRequest naming field and value."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    if not isinstance(fields, dict):
        raise BadRequest(f"the body must be a JSON object, got {brief(fields)}")
    try:
        return msgspec.convert(fields, shape), fields
    except msgspec.ValidationError as error:
        complaint, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`").split(".")[0].split("[")[0]
        if not name:
            raise BadRequest(complaint) from error
        raise BadRequest(f"{path.rstrip('`')}: {complaint}, the field holds {brief(fields[name])}", name) from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error


def at_most(limit: int, values: Sized, name: str) -> None:
    """Raise BadRequest when a list has more than `limit` entries."""
    if len(values) > limit:
        raise BadRequest(f"{name} has {len(values)} entries; this engine takes at most {limit}", name)


def token_ids(values: Sequence[object], name: str) -> array[int]:
    """Ids as 32-bit numbers; raises BadRequest for anything else. Whether the vocabulary has them is the engine's to say."""
    try:
        if not set(map(type, values)) <= {int}:  # true is an int to isinstance, and never an id
            raise TypeError("token ids must be whole numbers")
        return array("i", values)  # type: ignore[arg-type]
    except (TypeError, OverflowError) as error:
        raise BadRequest(f"{name}: {error}", name) from error
