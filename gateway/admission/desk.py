"""Where a request waits when no replica has room: the lines by model, their time limit, and who is let through when.

Nobody polls: a ticket that ends or whose prefill is over wakes the desk, and so does a replica that comes or goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.admission.crowd import Crowd, Drain, Verdict
from gateway.admission.line import Line, Waiting
from gateway.admission.shed import Shedder
from gateway.config import Admission
from gateway.errors import Refusal
from gateway.lag import LagMeter
from gateway.refusals import crowded_out, line_timeout

log = logging.getLogger(__name__)


class Guest(Protocol):
    """A request that waits."""

    def admitted(self) -> None:
        """Try to place it again."""
        ...

    def turned_away(self, refusal: Refusal) -> None:
        """It may wait no longer."""
        ...


@dataclass(slots=True)
class _Seat:
    guest: Guest
    model: str
    waiting: Waiting


class Desk:
    """All lines of one process. Everything runs on the loop."""

    def __init__(self, settings: Admission) -> None:
        self._settings = settings
        self._lines: dict[str, Line] = {}
        self._must_wait: dict[str, Callable[[], bool]] = {}
        self._seats: dict[Waiting, _Seat] = {}  # in the order of arrival, which is that of their time limits
        self._by_guest: dict[Guest, _Seat] = {}
        self._crowd = Crowd(settings.waiting_requests, settings.waiting_tokens)
        self._drain = Drain()
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False
        self.shedder = Shedder(settings.shed_lag_s)
        self.lag_s = 0.0

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return self._crowd.requests

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the requests in line."""
        return self._crowd.tokens

    def line_of(self, model: str) -> Callable[[], bool] | None:
        """Whether there is a line for a model: what its members wait for, else None. Who comes later stands behind them."""
        return self._must_wait.get(model)

    def wait(self, guest: Guest, model: str, waiting: Waiting, must_wait: Callable[[], bool]) -> None:
        """Join the line of a model; raises Refusal. must_wait: whether there is still no room for its requests."""
        now = asyncio.get_running_loop().time()
        waiting.since = now
        for out, verdict in self._crowd.make_room(waiting):
            if out is waiting:
                raise self._refusal(verdict, now)
            self._turn_away(self._seats[out], self._refusal(verdict, now))
        seat = self._seats[waiting] = self._by_guest[guest] = _Seat(guest, model, waiting)
        self._lines.setdefault(model, Line()).push(waiting)
        self._must_wait[model] = must_wait
        self._crowd.join(waiting)
        self._set_timer()
        log.debug("waiting model=%s requests=%d tokens=%d", seat.model, self._crowd.requests, self._crowd.tokens)

    def leave(self, guest: Guest) -> None:
        """Its client left, or it ended in another way; nothing happens to one that does not wait (FC-50)."""
        if (seat := self._by_guest.get(guest)) is not None:
            self._take_out(seat)

    def wake(self) -> None:
        """There may be room, or nobody to wait for any more: look, in the next turn of the loop."""
        if self._lines and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._serve)

    def note_lag(self, meter: LagMeter) -> None:
        """The loop's meter ticked: while it stays late, less urgent requests are refused."""
        self.lag_s = meter.last_s
        if self.shedder.look(meter.steady_s, meter.last_s):
            log.warning("overload lag_s=%.2f least_priority=%s", meter.last_s, self.shedder.least)

    def close(self) -> None:
        """Nobody is let through any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _serve(self) -> None:
        self._woken = False
        now = asyncio.get_running_loop().time()
        for model, line in list(self._lines.items()):
            must_wait = self._must_wait[model]
            while line and not must_wait():
                seat = self._seats[line.pop()]
                self._forget(seat)
                self._drain.left(now, seat.waiting.tokens)
                seat.guest.admitted()
                if seat.guest in self._by_guest:  # it found no room after all
                    break
        self._set_timer()

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for seat in list(self._seats.values()):
            if seat.waiting.since + self._settings.wait_s > now:
                break
            self._turn_away(seat, line_timeout(self._settings.wait_s, self._retry_after_s(now)))
        self._set_timer()

    def _turn_away(self, seat: _Seat, refusal: Refusal) -> None:
        self._take_out(seat)
        seat.guest.turned_away(refusal)

    def _take_out(self, seat: _Seat) -> None:
        self._lines[seat.model].remove(seat.waiting)
        self._forget(seat)
        self._set_timer()

    def _forget(self, seat: _Seat) -> None:
        del self._seats[seat.waiting], self._by_guest[seat.guest]
        self._crowd.leave(seat.waiting)
        if not self._lines[seat.model]:
            del self._lines[seat.model], self._must_wait[seat.model]

    def _set_timer(self) -> None:
        """One timer, for whoever has waited longest."""
        if self._timer is not None and (not self._seats):
            self._timer.cancel()
            self._timer = None
        elif self._timer is None and self._seats:
            loop = asyncio.get_running_loop()
            oldest = next(iter(self._seats))
            self._timer = loop.call_at(oldest.since + self._settings.wait_s, self._expire)

    def _refusal(self, verdict: Verdict, now: float) -> Refusal:
        return crowded_out(over_share=verdict is Verdict.OVER_SHARE, retry_after_s=self._retry_after_s(now))

    def _retry_after_s(self, now: float) -> float:
        return self._drain.retry_after_s(now, self.waiting, self.waiting_tokens, self._settings.wait_s)
