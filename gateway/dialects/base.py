"""What a dialect answers, and what several of them need for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from radix.match import Int32Array

if TYPE_CHECKING:
    from gateway.request import Intent

# Fields of a chat body after which its ids alone do not say what the engine would make of it.
TEMPLATE_FIELDS = frozenset(
    (
        "add_generation_prompt",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "functions",
        "mm_processor_kwargs",
        "prompt_embeds",
        "prompt_token_ids",
        "reasoning_effort",
        "thinking",
        "tools",
        "truncate_prompt_tokens",
    )
)
_PLAIN_ROLES = frozenset(("assistant", "developer", "system", "user"))
_PLAIN_MESSAGE = frozenset(("role", "content"))


@dataclass(frozen=True, slots=True)
class Abort:
    """How to stop a request where closing its connection is noticed late: POST `body` to `path`.

    name: what the engine calls the request. given: by the client, so that it may be the start of another one's name.
    """

    path: bytes
    body: bytes
    name: str
    given: bool


@dataclass(frozen=True, slots=True)
class Edits:
    """What an engine gets that differs from the client's body (FC-40).

    front: members (`"key":value`) before the client's own. values: what stands in place of a member's value. without: names of
    members taken out. with_tokens: ids go along, and the engine does not tokenize.
    """

    front: tuple[bytes, ...] = ()
    values: Mapping[str, bytes] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    with_tokens: bool = False
    abort: Abort | None = None


NO_EDITS = Edits()


class Dialect(Protocol):
    """One engine's way: how tokens travel, where the rank goes, how a request is stopped. Stateless."""

    name: str
    reports_usage_on_request: bool  # it knows `stream_options.include_usage`
    proves_ids: bool  # it may tokenize otherwise than we do, so that its counts are compared now and then

    def edits(self, intent: Intent, tokens: Int32Array | None, name: str, rank: int | None) -> Edits:
        """What to change in the body. name: for this sending of the request, unlike all others and the start of none.

        rank: the one it is for, None where the replica has only one.
        """
        ...

    def rank_line(self, rank: int) -> bytes:
        """The header line that names the rank; empty where the engine has none (FC-21)."""
        ...


def dp_rank_line(rank: int) -> bytes:
    """The line vLLM and SGLang read, the first one if there are several."""
    return b"x-data-parallel-rank: %d\r\n" % rank


def ids_json(tokens: Int32Array) -> bytes:
    """Ids as a JSON array: about 3 us per 1,000."""
    return orjson.dumps(tokens, option=orjson.OPT_SERIALIZE_NUMPY)


def is_text_prompt(fields: Mapping[str, Any]) -> bool:
    """A completion of one text whose answer does not depend on that text beyond its ids (FC-24).

    With `echo` the text is part of the answer, and ids may not give it back to the letter.
    """
    given = fields.get
    return isinstance(given("prompt"), str) and not (given("echo") or given("suffix") or given("prompt_token_ids"))


def is_plain_chat(fields: Mapping[str, Any]) -> bool:
    """A chat of texts only: no tools, images, template options, or anything else beside roles and contents."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return False
    if any(fields[name] is not None for name in TEMPLATE_FIELDS & fields.keys()):
        return False
    return all(
        isinstance(message, dict)
        and message.keys() == _PLAIN_MESSAGE
        and message["role"] in _PLAIN_ROLES
        and isinstance(message["content"], str)
        for message in messages
    )
