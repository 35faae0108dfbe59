"""The client's side: one connection, its requests one after the other.

It reads a head, has it judged before the body is read, reads the body under its limits, and hands both to the service. While
an exchange is open, what the client sends belongs to a later request and waits, bounded. All of it is callbacks: a task per
request would cost a tenth more.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from gateway.config import Limits
from gateway.errors import Refusal
from gateway.http1.answer import own_answer, refusal_answer
from gateway.http1.chunked import FramingError
from gateway.http1.intake import BodyBudget, BodyIntake
from gateway.http1.parse import HeadReader, Judged
from gateway.refusals import internal, overloaded, shutting_down
from gateway.request import TrafficCounts

# States. WORK: an exchange is open. LINGER: answered before all input was read, the rest is thrown away. CLOSING: no more
# input counts, output still leaves. GONE: nothing works any more.
_HEAD, _BODY, _WORK, _LINGER, _CLOSING, _GONE = range(6)

_PENDING_BYTES = 64 * 1024
_WRITE_HIGH_BYTES = 64 * 1024
_NOTSENT_BYTES = 128 * 1024
_LINGER_S = 2.0
_LINGER_BYTES = 1024 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange(Protocol):
    """The request a connection is waiting for."""

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever the engine shows life."""
        ...

    def silence_limit_s(self) -> float | None:
        """How long the engine may be without `progress` now."""
        ...

    def engine_silent(self) -> None: ...

    def client_left(self) -> None: ...

    def pause(self) -> None:
        """The client is slow: stop reading from the engine."""
        ...

    def resume(self) -> None: ...

    def failed_inside(self, error: Exception) -> None:
        """Our own code raised; the exchange has to end, with an answer where there can be one."""
        ...


class Service(Protocol):
    """What a connection needs of the data plane."""

    limits: Limits
    counts: TrafficCounts
    heads: HeadReader
    budget: BodyBudget
    draining: bool

    def opened(self, client: ClientConnection) -> None: ...

    def closed(self, client: ClientConnection) -> None: ...

    def begin(self, client: ClientConnection, judged: Judged, body: bytes) -> None:
        """Serve one whole request: answer it, or set `client.exchange`; raises Refusal."""
        ...

    def counted(self, route: str, status: int, refusal: Refusal | None = None) -> None:
        """Count an answer of the gateway's own."""
        ...

    def internal_error(self, error: Exception) -> None:
        """Count and log what our own code raised."""
        ...


class ClientConnection(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
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
        "exchange",
        "write_paused",
    )

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._state = _HEAD
        self._input = b""  # HEAD: the part of a head; WORK: the requests behind the open one
        self._intake: BodyIntake | None = None  # the body of the current request, also while it is only held
        self._requests = 0
        self._linger_left = _LINGER_BYTES
        self._judged: Judged | None = None
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

    def connection_lost(self, error: Exception | None) -> None:
        self._state = _GONE
        self.release_body()
        self._input = b""
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
        self.write(own_answer(status, body, close=close, head_only=head.method == b"HEAD", fields=fields))
        self.finished(keep=not close)

    def refuse(self, refusal: Refusal, fields: bytes = b"") -> None:
        """Answer the current request with an error; closes where input is unread or its framing can not be trusted."""
        if self._state >= _LINGER:
            return
        judged = self._judged
        self._service.counted(judged.route.name if judged is not None else "none", refusal.status, refusal)
        head = judged.head if judged is not None else None
        unread = self._state == _BODY or refusal.close
        close = unread or head is None or not head.keep_alive or self._service.draining
        self.write(refusal_answer(refusal, close=close, head_only=head is not None and head.method == b"HEAD", fields=fields))
        if unread:
            self._linger()
        else:
            self.finished(keep=not close)

    def finished(self, *, keep: bool) -> None:
        """The answer to the current request has been written; `keep`: the connection may carry another one."""
        self.exchange = None
        self.release_body()
        self._judged = None
        if not keep or self._service.draining:
            self.close()
            return
        if self._state >= _LINGER:
            return
        self._state = _HEAD
        self._requests += 1
        self._resume_reading()
        if self._input:
            self._loop.call_soon(self._next)  # by the loop, so that pipelined requests do not nest

    def close(self) -> None:
        """Close once what was written has left; what the client still sends is dropped."""
        self.exchange = None
        self.release_body()
        if self._state < _CLOSING:
            self._state = _CLOSING
            self._input = b""
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection now, unsent bytes included."""
        self._transport.abort()

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

    # --- time ---

    def tick(self, now: float) -> None:
        """Once per tick of the plane's clock: close what made no progress for as long as its state allows."""
        exchange = self.exchange
        mark = (self._state, self._requests, self._head_mark(), *(exchange.progress if exchange is not None else ()))
        if self.write_paused or self._state == _CLOSING:
            mark = (self._state, self._transport.get_write_buffer_size())
        if mark != self._mark:
            self._mark = mark
            self._marked_at = now
            return
        limit_s = self._limit_s()
        if limit_s is None or now - self._marked_at < limit_s:
            return
        if self._state == _WORK and exchange is not None and not self.write_paused:
            exchange.engine_silent()
        elif (self._state == _HEAD and self._input) or self._state == _BODY:
            self.refuse(Refusal(408, "the request did not arrive in time", code="request_timeout", close=True))
        else:
            self.abort()

    def _head_mark(self) -> int:
        """Bytes of a body are progress; bytes of a head are not, because its limit is for the whole of it."""
        if self._intake is not None:
            return self._intake.received
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
        if state == _HEAD:
            # After a pipelined request what is held comes first; `_next` is on its way to take it.
            self._input = self._input + data if self._input else data
            self._read_head()
        elif state == _BODY:
            self._body_bytes(data)
        elif state == _WORK:
            self._input += data
            if len(self._input) > _PENDING_BYTES and not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()
        elif state == _LINGER:
            self._linger_left -= len(data)
            if self._linger_left <= 0:
                self.abort()

    def _next(self) -> None:
        """Take up the request that waited behind the one just answered."""
        if self._state == _HEAD and self._input:
            self.data_received(b"")

    def _read_head(self) -> None:
        data = self._input
        if data.startswith(b"\r\n"):  # some clients end a body with one line end too many
            self._input = data = data[2:]
        end = data.find(b"\r\n\r\n")
        limit = self._service.limits.head_bytes
        if end < 0 and len(data) <= limit:
            return
        if end < 0 or end > limit:
            raise Refusal(431, f"the request head is longer than {limit} bytes", close=True)
        self._input = b""
        self._start_request(data[: end + 2], data[end + 4 :])

    def _start_request(self, raw: bytes, rest: bytes) -> None:
        """Judge a head before a byte of its body is read."""
        service = self._service
        try:
            judged, length = service.heads.read(raw)
            if service.draining:
                raise shutting_down()
            head = judged.head
            self._judged = judged
            self._intake = BodyIntake(None if head.chunked else length, service.budget)
        except Refusal as refusal:
            refusal.close = refusal.close or bool(rest) or _announces_body(raw)
            raise
        if length <= len(rest) and not head.chunked:
            self._body_bytes(rest)
            return
        self._state = _BODY
        if rest:
            self._body_bytes(rest)
        elif head.expects_continue:
            self.write(_CONTINUE)

    def _body_bytes(self, data: bytes) -> None:
        intake, judged = self._intake, self._judged
        assert intake is not None
        assert judged is not None
        body = intake.feed(data)
        if body is None:
            return
        self._input = intake.rest
        self._state = _WORK
        self._service.counts.bytes_up += len(body)
        self._service.begin(self, judged, body)

    # --- ends ---

    def _linger(self) -> None:
        """Read on for a moment: closing now would make the kernel reset the connection, and the answer be lost."""
        self._state = _LINGER
        self.release_body()
        self._input = b""
        self._resume_reading()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self.abort)

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()


def _announces_body(raw: bytes) -> bool:
    lower = raw.lower()
    return b"\r\ntransfer-encoding:" in lower or (b"\r\ncontent-length:" in lower and b"\r\ncontent-length: 0\r\n" not in lower)
