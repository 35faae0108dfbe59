"""What the events of a stream say in APIs other than OpenAI's chats: where it ends, its counts, its errors."""

from __future__ import annotations

import re
from dataclasses import replace

import orjson

from gateway.apis.counts import META, MetaScanner, message_usage, response_usage
from gateway.errors import ErrorShape, Refusal
from gateway.request import Usage
from gateway.sse import ERROR, EventReader, fields_of, split_events
from gateway.usage import USAGE, UsageScanner, count, usage_in

_STOP = b"message_stop"
_ENDS = (b"response.completed", b"response.incomplete", b"response.failed")
# An event that holds the whole answer can be too long to be parsed here; this line can not stand in its JSON.
_END_LINE = re.compile(rb"^event: ?(response\.(?:completed|incomplete|failed))[\r\n]", re.MULTILINE)
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})(?=[\s,}])')


class MessageEvents(EventReader):
    """Anthropic's /v1/messages: ends with `message_stop`; the counts come in two parts, first those of the prompt."""

    __slots__ = ()

    def passed(self, events: bytes) -> None:
        """Note whole events that go on as they are."""
        if USAGE in events:
            usage_in(events, self._counted)
        if ERROR in events:
            self.failed = self.failed or any(_tells_error(event) for event in split_events(events))
        if _STOP in events:
            self._done = self._done or any(_kind_of(event) == "message_stop" for event in split_events(events))

    def error_event(self, refusal: Refusal) -> bytes:
        """One event that tells the client why the stream ends here."""
        return b"event: error\ndata: " + replace(refusal, shape=ErrorShape.ANTHROPIC).body() + b"\n\n"

    def _counted(self, counts: object) -> Usage | None:
        """Later counts may be those of the output alone."""
        found = message_usage(counts)
        if found is None and self.usage is not None and isinstance(counts, dict):
            output = count(counts.get("output_tokens"))
            found = None if output is None else replace(self.usage, completion_tokens=output)
        self.usage = found or self.usage
        return found


class ResponseEvents(EventReader):
    """OpenAI's /v1/responses: ends with the event that holds the whole response, be it completed, incomplete or failed."""

    __slots__ = ("_cut_usage", "_last", "_scanner")

    def __init__(self, *, drop_usage: bool) -> None:
        super().__init__(drop_usage=drop_usage)
        self._scanner = UsageScanner(response_usage)
        self._cut_usage = False  # the scanner may hold a part of the counts
        self._last = b""

    @property
    def complete(self) -> bool:
        """The last event has come whole, or the engine has told of its failure itself."""
        return self.failed or (self._done and not self.torn)

    def passed(self, events: bytes) -> None:
        """Note whole events, or parts of one that is too long, which go on as they are."""
        self._last = events
        if self.torn or self._cut_usage or USAGE in events:
            self._scanner.feed(events)
            self.usage = self._scanner.found
            self._cut_usage = self.torn
        if ERROR in events:
            self.failed = self.failed or any(_tells_error(event) for event in split_events(events))
        if any(end in events for end in _ENDS):
            self._note_end(events)

    def error_event(self, refusal: Refusal) -> bytes:
        """One event that tells the client why the stream ends here; its number follows that of the last event."""
        numbers = _NUMBER.findall(self._last)
        fields = {
            "type": "error",
            "code": refusal.code,
            "message": refusal.message,
            "param": None,
            "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
        }
        return b"event: error\ndata: " + orjson.dumps(fields) + b"\n\n"

    def _note_end(self, events: bytes) -> None:
        if self.torn:
            line = _END_LINE.search(events)
            kinds = [line[1].decode()] if line is not None else []
        else:  # the body may end in half an event, and then its name says nothing
            kinds = [_kind_of(event) or "" for event in split_events(events)]
        self.failed = self.failed or "response.failed" in kinds
        self._done = self._done or any(kind.encode() in _ENDS for kind in kinds)


class GenerateEvents(EventReader):
    """SGLang's /generate: each event holds the text so far and its `meta_info`; the last one is [DONE]."""

    __slots__ = ("_scanner",)

    def __init__(self, *, drop_usage: bool) -> None:
        super().__init__(drop_usage=drop_usage)
        self._scanner = MetaScanner()

    def passed(self, events: bytes) -> None:
        """Note whole events that go on as they are."""
        super().passed(events)
        at = events.rfind(META)
        if at >= 0:
            self._scanner.feed(events[at:])
            self.usage = self._scanner.found


def _kind_of(event: bytes) -> str | None:
    fields = fields_of(event)
    kind = fields.get("type") if fields is not None else None
    return kind if isinstance(kind, str) else None


def _tells_error(event: bytes) -> bool:
    fields = fields_of(event) if ERROR in event else None
    return fields is not None and (fields.get("type") == "error" or bool(fields.get("error")))
