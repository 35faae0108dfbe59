"""The engine's side of an exchange: one connection, one answer at a time.

It finds the answer's head, hands head and body bytes to the exchange it serves, and knows nothing of clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from gateway.dialects import Abort
from gateway.http1.answer import AnswerHead, AnswerReader
from gateway.http1.chunked import FramingError

if TYPE_CHECKING:
    from gateway.http1.pool import Pool

log = logging.getLogger(__name__)

_HEAD_BYTES = 64 * 1024
_INTERIM_HEADS = 16
_LONG_READ_BYTES = 128 * 1024


class AnswerTaker(Protocol):
    """The exchange a connection works for."""

    def answer_head(self, head: AnswerHead, length: int, rest: bytes) -> None: ...

    def answer_bytes(self, data: bytes) -> None: ...

    def answer_broken(self, error: FramingError) -> None:
        """What the engine sent is not HTTP."""
        ...

    def engine_closed(self, *, clean: bool) -> None:
        """The engine went away. clean: it closed in order, with nothing lost."""
        ...

    def failed_inside(self, error: Exception) -> None:
        """Our own code raised; the exchange has to end."""
        ...


class EngineConnection(asyncio.Protocol):
    """One connection to a replica; idle while `taker` is None."""

    __slots__ = (
        "_abort",
        "_answers",
        "_head",
        "_in_body",
        "_interim",
        "_paused",
        "_pool",
        "_resting",
        "_transport",
        "answered",
        "idle_since",
        "taker",
    )

    def __init__(self, pool: Pool, answers: AnswerReader) -> None:
        self._pool = pool
        self._answers = answers
        self._head = b""
        self._in_body = False
        self._interim = 0  # 1xx heads of the current answer
        self._paused = False
        self._resting = False
        self._abort: Abort | None = None  # how to stop the current request where closing is noticed late
        self.answered = False  # a byte of the current answer has come
        self.idle_since = 0.0
        self.taker: AnswerTaker | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    @property
    def closing(self) -> bool:
        """Not to be used any more."""
        return self._transport.is_closing()

    @property
    def drained(self) -> bool:
        """The whole request has left; an engine may answer before it has read it."""
        return self._transport.get_write_buffer_size() == 0

    def send(self, taker: AnswerTaker, head: bytes, body: Sequence[bytes | memoryview], abort: Abort | None = None) -> None:
        """Send a request and give its answer to `taker`."""
        self.taker = taker
        self._abort = abort
        if abort is not None:
            self._pool.aborts.opened(abort)
        self.answered = False
        self._in_body = False
        self._interim = 0
        # One system call for all pieces, and no copy: two writes cost 6 us more, joining 400 KB more still.
        self._transport.writelines((head, *body))

    def release(self, *, keep: bool, whole: bool = False) -> None:
        """The exchange is over. keep: the next request may use the connection. whole: the engine has ended its answer."""
        self.taker = None
        self._head = b""
        abort, self._abort = self._abort, None
        if abort is not None:
            self._pool.aborts.closed(abort, stop=not (keep or whole), begun=self.answered)
        if not keep or not self.drained:
            self.abort()
            return
        self.resume()  # a connection that ended paused would come back deaf: its next answer would never arrive
        self._pool.give(self)

    def abort(self) -> None:
        """Drop the connection at once: the sign an engine understands as 'stop generating'."""
        self._transport.abort()

    def pause(self) -> None:
        """Stop reading until `resume`."""
        if not self._paused and not self.closing:
            self._paused = True
            if not self._resting:
                self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused and not self.closing:
            self._paused = False
            if not self._resting:
                self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        taker = self.taker
        if taker is None:  # bytes nobody asked for: what comes next could be anything
            self._pool.lost(self)
            self.abort()
            return
        try:
            if self._in_body:
                taker.answer_bytes(data)
            else:
                self._head_bytes(taker, data)
        except FramingError as error:
            taker.answer_broken(error)
        except Exception as error:
            taker.failed_inside(error)
        if len(data) >= _LONG_READ_BYTES:
            self._rest()

    def _rest(self) -> None:
        """Let the loop turn: after full reads it goes on reading, up to 8 MB, which as tiny chunks are seconds of work."""
        if not self._paused and not self.closing:
            self._resting = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        if not self._paused and not self.closing:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        self._closed(clean=True)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._closed(clean=False)

    def _closed(self, *, clean: bool) -> None:
        taker = self.taker
        if taker is None:
            self._pool.lost(self)
            return
        self.taker = None
        try:
            taker.engine_closed(clean=clean)
        except Exception as error:
            taker.failed_inside(error)

    def _head_bytes(self, taker: AnswerTaker, data: bytes) -> None:
        self.answered = True
        if self._head:
            data, self._head = self._head + data, b""
        while True:
            end = data.find(b"\r\n\r\n")
            if (len(data) if end < 0 else end) > _HEAD_BYTES:
                raise FramingError("the engine's answer head is too long")
            if end < 0:
                self._head = data
                return
            head, length = self._answers.read(data[: end + 2])
            data = data[end + 4 :]
            if head.status == 101:
                raise FramingError("the engine changed protocols")
            if head.status >= 200:
                break
            self._interim += 1  # 1xx says nothing a client of ours has asked for
            if self._interim > _INTERIM_HEADS:
                raise FramingError("the engine sends interim answers without end")
        self._in_body = True
        taker.answer_head(head, length, data)
