"""The client's side: one connection, its requests one after the other.

It reads a head, has it judged before the body is read, reads the body under its limits, and hands both to the service. While
an exchange is open, what the client sends belongs to a later request and waits, bounded; each turn of the loop takes up one. All
of it is callbacks: a task per request would cost a tenth more.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

from gateway.errors import Refusal
from gateway.http1.answer import own_answer, refusal_answer
from gateway.http1.chunked import FramingError
from gateway.http1.intake import BodyIntake
from gateway.http1.parse import Judged, past_blank_lines
from gateway.http1.service import Exchange, Service
from gateway.refusals import internal, overloaded, shutting_down

# States. WORK: an exchange is open. LINGER: answered before all input was read, the rest is thrown away. CLOSING: no more
# input counts, output still leaves. GONE: nothing works any more.
_HEAD, _BODY, _WORK, _LINGER, _CLOSING, _GONE = range(6)

_WAITING_BYTES = 256 * 1024  # one read of the loop
_BODY_BYTES_S = 64 * 1024  # a body that comes slower makes no progress
_WRITE_HIGH_BYTES = 64 * 1024
_NOTSENT_BYTES = 128 * 1024
LINGER_S = 2.0
_LINGER_BYTES = 1024 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_at",
        "_due",
        "_head_only",
        "_input",
        "_intake",
        "_judged",
        "_linger_left",
        "_loop",
        "_mark",
        "_marked_at",
        "_reading_paused",
        "_requests",
        "_service",
        "_state",
        "_transport",
        "_waiting",
        "_written",
        "exchange",
        "write_paused",
    )

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._state = _HEAD
        self._input = b""  # HEAD: the part of a head; WORK: the requests behind the open one; from `_at` on
        self._at = 0
        self._waiting = 0  # how much of it counts against what may wait on all connections
        self._due = False  # `_next` is on its way: only it goes on
        self._intake: BodyIntake | None = None  # the body of the current request, also while it is only held
        self._requests = 0
        self._linger_left = _LINGER_BYTES
        self._judged: Judged | None = None
        self._head_only = False
        self._written = 0
        self._reading_paused = False
        self._mark: tuple[int, ...] = ()
        self._marked_at = self._loop.time()
        self.exchange: Exchange | None = None
        self.write_paused = False

    # --- callbacks of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT") and sock.family != socket.AF_UNIX:
            # Without it the kernel buffers up to 2 MB for a client that does not read.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOTSENT_BYTES)
        self._service.opened(self)
        if self._service.counts.open_connections > self._service.limits.connections:
            self.refuse(overloaded("too many connections"))

    def data_received(self, data: bytes) -> None:
        try:
            self._received(data)
        except Refusal as refusal:
            self.refuse(refusal)
        except FramingError as error:
            self.refuse(Refusal(400, str(error), close=True))
        except Exception as error:
            self.failed_inside(error)

    def eof_received(self) -> bool:
        # A half-closed client counts as gone: telling the two apart would need a write.
        return False

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.exchange is not None:
            self.exchange.resume()
        elif self._state == _HEAD and self._input and not self._due:
            self._later()

    def connection_lost(self, error: Exception | None) -> None:
        self._state = _GONE
        self.release_body()
        self._drop_input()
        self._service.closed(self)
        exchange, self.exchange = self.exchange, None
        try:
            if exchange is not None:
                exchange.client_left()
        except Exception as problem:
            self._service.internal_error(problem)

    # --- answers ---

    def write(self, data: bytes) -> bool:
        """Write; False when the connection has gone, also where the transport only finds out now."""
        self._written += len(data)
        try:
            self._transport.write(data)
        except RuntimeError:
            self._transport.abort()
            return False
        return True

    def answer(self, status: int, body: bytes, fields: bytes = b"") -> None:
        """A whole answer of the gateway's own to the current request."""
        assert self._judged is not None
        head = self._judged.head
        close = not head.keep_alive or self._service.draining
        self._service.counted(self._judged.route.name, status)
        self.write(own_answer(status, body, close=close, head_only=self._head_only, fields=fields))
        self.finished(keep=not close)

    def refuse(self, refusal: Refusal, fields: bytes = b"") -> None:
        """Answer the current request with an error; closes where input is unread or its framing can not be trusted."""
        if self._state >= _LINGER:
            return
        judged = self._judged
        if judged is not None:
            refusal.shape = judged.route.errors
        self._service.counted(judged.route.name if judged is not None else "none", refusal.status, refusal)
        unread = self._state == _BODY or refusal.close
        close = unread or (judged is not None and not judged.head.keep_alive) or self._service.draining
        self.write(refusal_answer(refusal, close=close, head_only=self._head_only, fields=fields))
        if unread:
            self._linger()
        else:
            self.finished(keep=not close)

    def finished(self, *, keep: bool) -> None:
        """The answer to the current request has been written; `keep`: the connection may carry another one."""
        self.exchange = None
        self.release_body()
        self._judged = None
        self._head_only = False
        if not keep or self._service.draining:
            self.close()
            return
        if self._state >= _LINGER:
            return
        self._state = _HEAD
        self._requests += 1
        if not self._input:
            self._resume_reading()
        elif not self.write_paused and not self._due:  # else its answers would pile up here
            self._later()

    def close(self) -> None:
        """Close once what was written has left; what the client still sends is dropped."""
        self.exchange = None
        self.release_body()
        if self._state < _CLOSING:
            self._state = _CLOSING
            self._drop_input()
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection now, unsent bytes included."""
        self._transport.abort()

    def reset(self) -> None:
        """Cut the connection with an RST, where its orderly end would pass for the end of the answer."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self._transport.is_closing():  # without it closing sends a FIN
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def release_body(self) -> None:
        """The body of the current request is not held any more."""
        intake, self._intake = self._intake, None
        if intake is not None:
            intake.release()

    def failed_inside(self, error: Exception) -> None:
        """The barrier: whatever our code raised, the client gets an answer or a visible cut, and nothing stays open."""
        if self.exchange is not None:
            self.exchange.failed_inside(error)
            return
        self._service.internal_error(error)
        self.refuse(internal())

    @property
    def uploading(self) -> bool:
        """A body is on its way in."""
        return self._state == _BODY

    # --- time ---

    def tick(self, now: float) -> None:
        """Once per tick of the plane's clock: close what made no progress for as long as its state allows."""
        exchange = self.exchange
        mark = (self._state, self._requests, self._input_mark(), *(exchange.progress if exchange is not None else ()))
        if self.write_paused or self._state == _CLOSING:  # only what the client took is progress, not what was added
            mark = (-1, self._written - self._transport.get_write_buffer_size())
        if mark != self._mark:
            self._mark = mark
            self._marked_at = now
            return
        limit_s = self._limit_s()
        if limit_s is None or now - self._marked_at < limit_s:
            return
        if self.write_paused:
            self.abort()
        elif self._state == _WORK and exchange is not None:
            exchange.engine_silent()
        elif (self._state == _HEAD and self._input) or self._state == _BODY:
            self.refuse(Refusal(408, "the request did not arrive in time", code="request_timeout", close=True))
        else:
            self.abort()

    def _input_mark(self) -> int:
        """A body makes progress by its least rate; a head by its end only, because its limit is for the whole of it."""
        if self._intake is not None:
            return self._intake.received // max(1, int(self._service.limits.body_stall_s * _BODY_BYTES_S))
        return bool(self._input)

    def _limit_s(self) -> float | None:
        limits = self._service.limits
        if self.write_paused or self._state == _CLOSING:
            return limits.write_stall_s
        if self._state == _HEAD:
            return limits.head_s if self._input else limits.keep_alive_s
        if self._state == _BODY:
            return limits.body_stall_s
        return self.exchange.silence_limit_s() if self.exchange is not None else None

    # --- input ---

    def _received(self, data: bytes) -> None:
        state = self._state
        if state == _BODY:
            self._body_bytes(data)
        elif state <= _WORK:
            if data:
                self._input = self._input[self._at :] + data if self._input else data
                self._at = 0
            if state == _HEAD and not self._due and not self.write_paused:
                self._read_head()
            else:
                self._hold()
        elif state == _LINGER:
            self._linger_left -= len(data)
            if self._linger_left <= 0:
                self.abort()

    def _later(self) -> None:
        """Go on with the input in another turn of the loop: one client's must not hold up the others'."""
        self._due = True
        self._pause_reading()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._due = False
        self.data_received(b"")
        if self._state <= _WORK:
            self._hold()

    def _hold(self) -> None:
        """Bound what waits behind the current request.

        Behind an open exchange reading goes on, or nobody would notice that the client left (FC-49): there who sends too much
        is cut. Elsewhere reading pauses.
        """
        size = len(self._input) - self._at
        fits = self._service.budget.wait(self._waiting, size)
        self._waiting = size
        if not fits or (size > _WAITING_BYTES and self._state == _WORK):
            self.abort()
        elif self._due or (self.write_paused and self._state == _HEAD):
            self._pause_reading()
        else:
            self._resume_reading()

    def _read_head(self) -> None:
        data = self._input
        if data.startswith(b"\r\n", self._at):
            self._at = past_blank_lines(data, self._at)
        start = self._at
        end = data.find(b"\r\n\r\n", start)
        limit = self._service.limits.head_bytes
        if end < 0 and len(data) - start <= limit + 3:  # three bytes may be the front of the blank line
            if start == len(data):
                self._drop_input()
            return
        if end < 0 or end - start > limit:
            raise Refusal(431, f"the request head is longer than {limit} bytes", close=True)
        self._take(end + 4 - start)
        self._start_request(data[start : end + 2])

    def _take(self, size: int | None) -> bytes:
        """The next bytes of the input, all there are for None; the rest stays where it is."""
        data, start = self._input, self._at
        end = len(data) if size is None else start + size
        if end < len(data):
            self._at = end
        else:
            self._input, self._at = b"", 0
        return data[start:end]

    def _start_request(self, raw: bytes) -> None:
        """Judge a head before a byte of its body is read."""
        service = self._service
        self._head_only = raw.startswith(b"HEAD ")
        judged, length = service.heads.read(raw)
        if service.draining:
            raise shutting_down()
        self._judged = judged
        head, most = judged.head, judged.route.body_bytes or service.limits.body_bytes
        self._intake = BodyIntake(None if head.chunked else length, most, service.budget)
        data = self._take(None if head.chunked else length)
        if head.chunked or len(data) < length:
            self._state = _BODY
            if not data:
                if head.expects_continue:
                    self.write(_CONTINUE)
                return
        self._body_bytes(data)

    def _body_bytes(self, data: bytes) -> None:
        intake, judged = self._intake, self._judged
        assert intake is not None
        assert judged is not None
        body = intake.feed(data)
        if body is None:
            if intake.more:
                self._later()
            return
        if intake.rest:
            self._input, self._at = intake.rest, 0
        self._state = _WORK
        self._service.counts.bytes_up += len(body)
        self._service.begin(self, judged, body)
        if self._input or self._waiting or self._reading_paused:
            self._hold()

    # --- ends ---

    def _linger(self) -> None:
        """Read on for a moment: closing now would make the kernel reset the connection, and the answer be lost."""
        self._state = _LINGER
        self.release_body()
        self._drop_input()
        self._resume_reading()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        self._loop.call_later(LINGER_S, self.abort)

    def _drop_input(self) -> None:
        self._service.budget.wait(self._waiting, 0)
        self._input, self._at, self._waiting = b"", 0, 0

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()
