"""Calls that tell one engine to stop a request, where it would notice the closed connection seconds late (FC-49).

They go beside everything else: on the replica's own pool, a few at a time, within a time limit, and nothing waits for them. A
call may overtake the request it is about, so one for which no answer had begun is made once more. What fails is counted; the
engine then notices the closed connection by itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.dialects import Abort
from gateway.http1.answer import AnswerHead, Body
from gateway.http1.chunked import FramingError

if TYPE_CHECKING:
    from gateway.http1.engine_side import EngineConnection
    from gateway.http1.pool import Pool

MOST_AT_ONCE = 16
MOST_WAITING = 1024
ANSWER_S = 2.0
AGAIN_S = 0.4


class Aborts:
    """Those of one replica. Results: done, failed (no answer, or a refusal), dropped (too many), shared (another's name)."""

    def __init__(self, pool: Pool, ended: Callable[[str], None]) -> None:
        """ended: told the result of each call."""
        self._pool = pool
        self._ended = ended
        self._numbers = itertools.count(1)
        self._given: Counter[str] = Counter()  # names clients gave to requests that are open
        self._waiting: deque[Abort] = deque()
        self._calls: set[_Call] = set()
        self._later: set[asyncio.TimerHandle] = set()

    @property
    def open(self) -> int:
        """Calls that wait or are being made."""
        return len(self._waiting) + len(self._calls)

    def name_for(self, request_id: str) -> str:
        """What to call one sending of a request: shorter than 32 characters, unlike all others and the start of none."""
        return f"{request_id}.{next(self._numbers):x}."

    def opened(self, abort: Abort) -> None:
        """A request goes out that can be stopped by `abort`."""
        if abort.given:
            self._given[abort.name] += 1

    def closed(self, abort: Abort, *, stop: bool, begun: bool) -> None:
        """It is over for us. stop: not for the engine, which has to be told. begun: its answer had."""
        if abort.given:
            self._given[abort.name] -= 1
            if not self._given[abort.name]:
                del self._given[abort.name]
        if not stop:
            return
        self._add(abort)
        if not begun:
            self._again(abort)

    def close(self) -> None:
        """Make no call any more."""
        for timer in self._later:
            timer.cancel()
        self._later.clear()
        self._waiting.clear()
        for call in list(self._calls):
            call.end("failed")

    def call_ended(self, call: _Call, result: str, *, reachable: bool) -> None:
        """One is through; without a connection to be had the others need not try."""
        self._calls.discard(call)
        self._ended(result)
        if not reachable:
            while self._waiting:
                self._waiting.popleft()
                self._ended("failed")
        self._go_on()

    def _again(self, abort: Abort) -> None:
        def add() -> None:
            self._later.discard(timer)
            self._add(abort)

        timer = asyncio.get_running_loop().call_later(AGAIN_S, add)
        self._later.add(timer)

    def _add(self, abort: Abort) -> None:
        if abort.given and any(name.startswith(abort.name) for name in self._given):
            self._ended("shared")  # it would stop that one, too
        elif len(self._waiting) >= MOST_WAITING:
            self._ended("dropped")
        else:
            self._waiting.append(abort)
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._calls) < MOST_AT_ONCE:
            call = _Call(self._pool, self, self._waiting.popleft())
            self._calls.add(call)
            call.start()


class _Call:
    """One call: a request of our own, whose answer only has to come."""

    def __init__(self, pool: Pool, aborts: Aborts, abort: Abort) -> None:
        self._pool = pool
        self._aborts = aborts
        self._abort = abort
        self._connection: EngineConnection | None = None
        self._reused = False
        self._over = False
        self._left = 0  # bytes of the answer's body to come
        self._good = False
        self._timer = asyncio.get_running_loop().call_later(ANSWER_S, self.end, "failed")

    def start(self) -> None:
        """Send it on an idle connection, or on a new one."""
        connection = self._pool.take()
        self._reused = connection is not None
        if connection is None:
            self._pool.open(self)
        else:
            self._send(connection)

    def end(self, result: str, *, keep: bool = False, reachable: bool = True) -> None:
        """It is over; runs once."""
        if self._over:
            return
        self._over = True
        self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(keep=keep)
        self._aborts.call_ended(self, result, reachable=reachable)

    def connected(self, connection: EngineConnection) -> bool:
        """The new connection is there; False where it took too long."""
        if self._over:
            return False
        self._send(connection)
        return True

    def connect_failed(self, error: Exception) -> None:
        """Whatever ran there does not hear us."""
        self.end("failed", reachable=False)

    def answer_head(self, head: AnswerHead, length: int, rest: bytes) -> None:
        """The engine has it."""
        self._good = head.status < 300
        if head.body is Body.NONE or head.body is not Body.LENGTH or not head.keep_alive:
            self.end(self._result(), keep=head.body is Body.NONE and head.keep_alive and not rest)
            return
        self._left = length
        self.answer_bytes(rest)

    def answer_bytes(self, data: bytes) -> None:
        """Read past its body, so that the connection can be used again."""
        self._left -= len(data)
        if self._left <= 0:
            self.end(self._result(), keep=self._left == 0)

    def answer_broken(self, error: FramingError) -> None:
        """Not HTTP."""
        self.end("failed")

    def engine_closed(self, *, clean: bool) -> None:
        """A kept connection may have been closed by its engine meanwhile (FC-34)."""
        if self._over:
            return
        connection, self._connection = self._connection, None
        if connection is None or connection.answered or not self._reused:
            self.end("failed")
            return
        connection.release(keep=False)
        self._reused = False
        self._pool.open(self)

    def failed_inside(self, error: Exception) -> None:
        """Our own code raised."""
        self.end("failed")

    def _result(self) -> str:
        return "done" if self._good else "failed"

    def _send(self, connection: EngineConnection) -> None:
        self._connection = connection
        pool, key = self._pool, self._pool.replica.api_key
        head = b"".join(
            (
                b"POST %s%s HTTP/1.1\r\n" % (pool.base_path, self._abort.path),
                pool.host_line,
                b"authorization: Bearer %s\r\n" % key.encode() if key else b"",
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(self._abort.body),
            )
        )
        try:
            connection.send(self, head, (self._abort.body,))
        except RuntimeError:  # closed in this very turn of the loop
            self.engine_closed(clean=False)
