"""Relay one answer's body: out of the engine's framing, into the client's, judged before anything is written.

Most reads of a stream hold exactly one chunk with one whole event; those go on as they came. Everything else is taken apart:
what the client gets is always whole chunks, so that an error event can follow at any point (FC-45), and bytes behind the
engine's end never reach a client, who would take them for the start of the next answer.
"""

from __future__ import annotations

from gateway.apis.table import API, Api
from gateway.errors import Refusal
from gateway.http1.answer import AnswerHead, Body
from gateway.http1.chunked import LAST_CHUNK, ChunkDecoder, frame, leading_events
from gateway.request import Kind, Usage


class Relay:
    """The state of one answer's body.

    chunks: pieces relayed so far, also the sign of life of a stream. finished: the engine's body ended by its framing.
    extra: bytes or the end of the connection came behind that end, so it is not to be used again.
    """

    __slots__ = (
        "_aligned",
        "_chunked_out",
        "_decoder",
        "_events",
        "_head",
        "_left",
        "_scanner",
        "chunks",
        "extra",
        "finished",
        "framing",
    )

    def __init__(self, head: AnswerHead, length: int, *, http10: bool, drop_usage: bool, api: Api = API[Kind.CHAT]) -> None:
        self._head = head
        self._decoder = ChunkDecoder() if head.body is Body.CHUNKED else None
        self._left = length
        # An engine's refusal passes as it is, also where it looks like a stream: it needs no terminator.
        reads_events = api.events is not None and head.plain_events and head.status < 300
        self._events = api.events(drop_usage=drop_usage) if api.events is not None and reads_events else None
        self._scanner = api.scanner() if head.plain and self._events is None else None
        # A stream of events may lose one or gain one: its length is not known, whatever the engine said.
        keeps_length = head.body is Body.NONE or (head.body is Body.LENGTH and self._events is None)
        self._chunked_out = not keeps_length and not http10
        self._aligned = self._decoder is not None and self._events is not None and self._chunked_out
        self.framing = b"transfer-encoding: chunked\r\n" if self._chunked_out else b""
        if head.body is Body.LENGTH and keeps_length:
            self.framing = b"content-length: %d\r\n" % length
        self.chunks = 0
        self.finished = False
        self.extra = False

    @property
    def complete(self) -> bool:
        """The body ended and says itself that it is whole; a stream of events has to end in its terminator (FC-45)."""
        return self.finished and (self._events is None or self._events.complete)

    @property
    def failed(self) -> bool:
        """The engine reported an error inside its stream."""
        return self._events is not None and self._events.failed

    @property
    def ends_by_close(self) -> bool:
        """The client can tell the end of this body only by the end of the connection."""
        return not self.framing and self._head.body is not Body.NONE

    @property
    def usage(self) -> Usage | None:
        """The token counts the engine reported so far."""
        if self._events is not None:
            return self._events.usage
        return self._scanner.found if self._scanner is not None else None

    def feed(self, data: bytes) -> bytes:
        """What to write to the client for one read from the engine; raises FramingError. One chunk: about 1 us."""
        if self._aligned and self._events is not None:
            chunks, end = leading_events(data, self._events.untouched(data))
            if end:
                self.chunks += chunks
                events = data if end == len(data) else data[:end]
                self._events.passed(events)
                return events if end == len(data) else events + self._reframe(data[end:])
        return self._reframe(data)

    def end_of_input(self) -> bytes:
        """What to write when the engine closed; `finished` afterwards where that is how its body ends, or its end was told."""
        ended = self._events is not None and self._events.ended
        if self.finished or (self._head.body is not Body.CLOSE and not ended):
            return b""
        self.finished = self.extra = True
        return self._close(self._events.flush() if self._events is not None else b"")

    def error_tail(self, refusal: Refusal) -> bytes:
        """One error event for a stream that is broken off; nothing where the answer has no place for it, or told its end."""
        if self._events is None or self._events.torn or self._events.complete:
            return b""
        event = self._events.error_event(refusal)
        return frame(event) if self._chunked_out else event

    def _reframe(self, data: bytes) -> bytes:
        payload = self._payload(data)
        self.chunks += bool(data)
        if self._events is not None:
            payload = self._events.feed(payload)
            if self.finished:
                payload += self._events.flush()
            self._aligned = self._chunked_out and self._decoder is not None and self._decoder.at_start and self._events.aligned
        elif self._scanner is not None:
            self._scanner.feed(payload)
        return self._close(payload)

    def _close(self, payload: bytes) -> bytes:
        """`payload` in the client's framing, with the end where the body is whole; a broken one never gets its end."""
        if not self._chunked_out:
            return payload
        return frame(payload) + LAST_CHUNK if self.complete else frame(payload)

    def _payload(self, data: bytes) -> bytes:
        if self._decoder is not None:
            pieces = self._decoder.feed(data)
            if self._decoder.finished:
                self.finished = True
                self.extra = bool(self._decoder.rest)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._head.body is Body.CLOSE:
            return data
        if len(data) > self._left:
            data, self.extra = data[: self._left], True
        self._left -= len(data)
        self.finished = self._left == 0
        return data
