"""Server-sent events of an answer: whole events only, and the few that concern the gateway.

An event reaches the client when it is complete; no client can use half of one, and after a cut nothing of it stands in front
of the error event (FC-45).
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from gateway.errors import Refusal
from gateway.request import Usage
from gateway.usage import USAGE, usage_in

ERROR = b'"error"'
_DONE = re.compile(rb"(?:\A|\n)data: ?\[DONE\]")  # a text that a model writes has no bare line ends
_EVENT_END = re.compile(rb"\n\r?\n|\r\r")
_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_HELD_BYTES = 256 * 1024


class EventReader:
    """Cuts a stream into whole events, and takes the usage-only event out where the gateway asked for it itself (FC-42).

    usage: the counts seen last. failed: the engine reported an error in an event of its own. torn: part of an event that was
    too long to be held went to the client, and its end has not come yet.
    """

    __slots__ = ("_drop_usage", "_held", "_last", "failed", "torn", "usage")

    def __init__(self, *, drop_usage: bool) -> None:
        self._drop_usage = drop_usage
        self._held = b""
        self._last = b""  # the events passed last, to see at the end whether the terminator was among them
        self.usage: Usage | None = None
        self.failed = False
        self.torn = False

    @property
    def aligned(self) -> bool:
        """The next byte begins an event."""
        return not self._held and not self.torn

    @property
    def complete(self) -> bool:
        """The stream ended as a good one does, or the engine has told of its failure itself."""
        return self.failed or _DONE.search(self._last) is not None

    def untouched(self, data: bytes) -> int:
        """How far `data` may go on as it is: to where an event may have to be taken out."""
        at = data.find(USAGE) if self._drop_usage else -1
        return len(data) if at < 0 else at

    def passed(self, events: bytes) -> None:
        """Note whole events that go on as they are. Costs 0.2 us for one chunk.

        `events` may carry its chunk framing: each chunk holds whole events, so no event is cut by it.
        """
        if USAGE in events:
            self.usage = usage_in(events) or self.usage
        if ERROR in events:
            self.failed = self.failed or any(_is_error(event) for event in _split(events))
        self._last = events

    def feed(self, payload: bytes) -> bytes:
        """The whole events in what came so far; the rest is held."""
        data = self._held + payload if self._held else payload
        end = _last_end(data)
        events, self._held = data[:end], data[end:]
        if self.torn and end:
            self.torn = False
        if len(self._held) > _HELD_BYTES:
            events, self._held, self.torn = events + self._held, b"", True
        return self._sifted(events) if events else b""

    def flush(self) -> bytes:
        """What is held, at the end of a stream whose last event has no blank line behind it."""
        events, self._held = self._held, b""
        return self._sifted(events) if events else b""

    def _sifted(self, events: bytes) -> bytes:
        self.passed(events)
        if self._drop_usage and USAGE in events:
            return b"".join(event for event in _split(events) if not _is_usage_only(event))
        return events


def error_event(refusal: Refusal) -> bytes:
    """One event that tells the client why the stream ends here."""
    return b"data: " + refusal.body() + b"\n\n"


def _last_end(data: bytes) -> int:
    """Where the last whole event in `data` ends; 0 where there is none."""
    end = 0
    for mark in _ENDS:
        at = data.rfind(mark)
        if at >= 0:
            end = max(end, at + len(mark))
    return end


def _split(events: bytes) -> list[bytes]:
    pieces = []
    start = 0
    for match in _EVENT_END.finditer(events):
        pieces.append(events[start : match.end()])
        start = match.end()
    if start < len(events):
        pieces.append(events[start:])
    return pieces


def _fields_of(event: bytes) -> dict[str, Any] | None:
    """The JSON object in an event's data lines."""
    data = b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def _is_usage_only(event: bytes) -> bool:
    """The event that only answers the gateway's own question: counts, and no choices."""
    fields = _fields_of(event) if USAGE in event else None
    return fields is not None and fields.get("choices") == [] and isinstance(fields.get("usage"), dict)


def _is_error(event: bytes) -> bool:
    fields = _fields_of(event) if ERROR in event else None
    return fields is not None and bool(fields.get("error"))
