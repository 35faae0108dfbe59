"""What bodies of every server here have in common: reading them, and the prompts inside. Free of torch: the fake engine reads
the same shapes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Sized
from typing import TypeAlias, TypeVar

import msgspec

from replicas.errors import BadRequest, brief

MAX_PROMPTS = 256  # a sequence each: beyond this a client sends several requests and loses nothing

Prompt: TypeAlias = "str | array[int]"  # text, or 32-bit token ids


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None


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


def prompts_of(prompt: object, prompt_token_ids: Sequence[object] | None = None) -> list[Prompt]:
    """Each prompt of a completion, in order; raises BadRequest for a shape that is none of the four."""
    if prompt_token_ids is not None:
        return [token_ids(prompt_token_ids, "prompt_token_ids")]
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], str | list):
            at_most(MAX_PROMPTS, prompt, "prompt")
        if all(isinstance(item, str) for item in prompt):
            return list(prompt)
        if all(isinstance(item, list) for item in prompt):
            return [token_ids(item, "prompt") for item in prompt]
        return [token_ids(prompt, "prompt")]
    raise BadRequest(f"prompt must be a text, token ids, or a list of either, got {brief(prompt)}", "prompt")
