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
DONE = b"[DONE]"
_BOM = b"\xef\xbb\xbf"  # may open a stream; belongs to no field
# A blank line: two line ends in a row, each of them LF, CR or CRLF.
_EVENT_END = re.compile(rb"\n(?:\n|\r\n?)|\r\r\n?")
_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")
_LINE_ENDS = b"\r\n"
_HELD_BYTES = 256 * 1024


class EventReader:
    """Cuts a stream into whole events, and takes the usage-only event out where the gateway asked for it itself (FC-42).

    What stands in them is that of the OpenAI API of chats and completions; `apis.streams` has the others.

    usage: the counts seen last. failed: the engine reported an error in an event of its own. torn: part of an event that was
    too long to be held went to the client, and its end has not come yet.
    """

    __slots__ = ("_done", "_drop_usage", "_held", "failed", "torn", "usage")

    def __init__(self, *, drop_usage: bool) -> None:
        self._drop_usage = drop_usage
        self._held = b""
        self._done = False  # the terminator has come; engines may send comments or counts behind it
        self.usage: Usage | None = None
        self.failed = False
        self.torn = False

    @property
    def aligned(self) -> bool:
        """The next byte begins an event."""
        return not self._held and not self.torn

    @property
    def ended(self) -> bool:
        """The terminator has come."""
        return self._done

    @property
    def complete(self) -> bool:
        """The stream had its terminator, or the engine has told of its failure itself."""
        return self._done or self.failed

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
            self.failed = self.failed or any(_is_error(event) for event in split_events(events))
        if DONE in events:
            self._done = self._done or any(_is_terminator(event) for event in split_events(events))

    def feed(self, payload: bytes) -> bytes:
        """The whole events in what came so far; the rest is held. An event too long for that passes in pieces."""
        data = self._held + payload if self._held else payload
        end = _last_end(data, len(self._held) - 2)  # what was held has no end in it, but may have the front of one
        if end:
            self.torn = False
        elif self.torn or len(data) > _HELD_BYTES:
            self.torn = True
            end = len(data.rstrip(_LINE_ENDS))  # they may be the front of the blank line
        events, self._held = data[:end], data[end:]
        return self._sifted(events) if events else b""

    def flush(self) -> bytes:
        """What is held when the body ends, where the stream is whole with it; half an event is dropped (FC-45).

        The last event of a whole stream may lack its blank line, and one that ends in a lone CR waited to see whether it is
        half a CRLF.
        """
        rest, self._held = self._held, b""
        whole = rest.endswith(b"\n\r")
        out = self._sifted(rest) if rest else b""
        return out if whole or self.complete else b""

    def error_event(self, refusal: Refusal) -> bytes:
        """One event that tells the client why the stream ends here."""
        return b"data: " + refusal.body() + b"\n\n"

    def _sifted(self, events: bytes) -> bytes:
        self.passed(events)
        if self._drop_usage and USAGE in events:
            return b"".join(_blank_front(event) if _is_usage_only(event) else event for event in split_events(events))
        return events


def _last_end(data: bytes, start: int) -> int:
    """Where the last whole event in `data` ends; 0 where there is none. start: no blank line ends before it."""
    start = max(0, start)
    end = 0
    for mark in _ENDS:
        at = data.rfind(mark, start)
        if at >= 0:
            end = max(end, at + len(mark))
    at = data.rfind(b"\n\r", start, len(data) - 1)  # as the last bytes they may be the front of a CRLF
    return max(end, at + 2) if at >= 0 else end


def split_events(events: bytes) -> list[bytes]:
    """Each event with the blank line behind it."""
    pieces = []
    start = 0
    for match in _EVENT_END.finditer(events):
        pieces.append(events[start : match.end()])
        start = match.end()
    if start < len(events):
        pieces.append(events[start:])
    return pieces


def _blank_front(event: bytes) -> bytes:
    """Line ends before the event: they belong to the blank line of the one before it."""
    return event[: len(event) - len(event.lstrip(_LINE_ENDS))]


def _data_of(event: bytes) -> bytes:
    lines = (line.removeprefix(_BOM) for line in event.splitlines())
    return b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))


def fields_of(event: bytes) -> dict[str, Any] | None:
    """The JSON object in an event's data lines."""
    try:
        fields = orjson.loads(_data_of(event))
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def _is_terminator(event: bytes) -> bool:
    return DONE in event and _data_of(event).strip() == DONE


def _is_usage_only(event: bytes) -> bool:
    """The event that only answers the gateway's own question: counts, and neither choices nor an error."""
    fields = fields_of(event) if USAGE in event else None
    if fields is None or fields.get("error"):
        return False
    return fields.get("choices") in (None, []) and isinstance(fields.get("usage"), dict)


def _is_error(event: bytes) -> bool:
    fields = fields_of(event) if ERROR in event else None
    return fields is not None and bool(fields.get("error"))
