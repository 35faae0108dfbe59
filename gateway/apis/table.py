"""The APIs, one row each.

Requests travel to engines as they came: nothing is translated from one API into another. A row says what the gateway has to know
of its API to route by prompt, to count tokens and to tell the end of an answer. Rows are looked up per request, never per chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.apis import prompt_fields
from gateway.apis.counts import MetaScanner, message_usage, response_usage
from gateway.apis.streams import GenerateEvents, MessageEvents, ResponseEvents
from gateway.errors import ErrorShape
from gateway.request import Kind, Usage
from gateway.sse import EventReader
from gateway.usage import UsageScanner


class CountScanner(Protocol):
    """Finds token counts in an answer that comes in any cuts."""

    @property
    def found(self) -> Usage | None: ...

    def feed(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    paths: where it is, all by POST. arrays: fields that are arrays where they are given. prompt: how the prompt is read; None
    where there is none to look up. asks_usage: `stream_options` can ask for counts. takes_ids: a dialect may put ids into the
    body. scanner: for the counts of answers that are no streams. events: for streams; None where nobody knows how they end, and
    they pass unread. errors: what its clients expect. keeps_answers: an engine can be asked for the answer again, by its id.
    """

    paths: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    prompt: prompt_fields.Read | None = None
    asks_usage: bool = False
    takes_ids: bool = False
    scanner: Callable[[], CountScanner] = UsageScanner
    events: type[EventReader] | None = EventReader
    errors: ErrorShape = ErrorShape.OPENAI
    keeps_answers: bool = False


_responses = partial(UsageScanner, response_usage)

API: dict[Kind, Api] = {
    Kind.CHAT: Api(("/v1/chat/completions",), arrays=("messages",), prompt=prompt_fields.chat, asks_usage=True, takes_ids=True),
    Kind.COMPLETION: Api(("/v1/completions",), prompt=prompt_fields.completion, asks_usage=True, takes_ids=True),
    Kind.RESPONSES: Api(
        ("/v1/responses",), prompt=prompt_fields.responses, scanner=_responses, events=ResponseEvents, keeps_answers=True
    ),
    Kind.STORED: Api(scanner=_responses, events=ResponseEvents, keeps_answers=True),
    Kind.MESSAGES: Api(
        ("/v1/messages",),
        arrays=("messages",),
        prompt=prompt_fields.messages,
        scanner=partial(UsageScanner, message_usage),
        events=MessageEvents,
        errors=ErrorShape.ANTHROPIC,
    ),
    Kind.COUNT_TOKENS: Api(("/v1/messages/count_tokens",), arrays=("messages",), errors=ErrorShape.ANTHROPIC),
    Kind.EMBEDDINGS: Api(("/v1/embeddings",)),
    Kind.RERANK: Api(("/v1/rerank", "/rerank", "/v2/rerank")),
    Kind.TOKENIZE: Api(("/tokenize", "/v1/tokenize")),
    Kind.DETOKENIZE: Api(("/detokenize", "/v1/detokenize")),
    Kind.GENERATE: Api(("/generate",), prompt=prompt_fields.generate, scanner=MetaScanner, events=GenerateEvents, takes_ids=True),
    Kind.TOKENS: Api(("/inference/v1/generate",), prompt=prompt_fields.tokens),
    Kind.PASS_THROUGH: Api(events=None),
}
