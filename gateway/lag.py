"""How late this process's own loop runs: a short timer that should fire every tenth of a second, and what it missed by.

A loop that is starved sees every deadline pass at once. Whoever judges others by a deadline asks here first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

PERIOD_S = 0.1
_KEPT = 600  # ticks: a minute at the least
_STEADY = 3  # ticks in a row


class LagMeter:
    """What the ticks of one loop say. No clock of its own."""

    def __init__(self, now: float) -> None:
        """now: seconds on the loop's clock."""
        self._due = now + PERIOD_S
        self._recent: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # (when it fired, how late)

    def tick(self, now: float) -> None:
        """The timer fired."""
        self._recent.append((now, max(0.0, now - self._due)))
        self._due = now + PERIOD_S

    def late_s(self, since: float, now: float) -> float:
        """For how long the loop did not turn between `since` and now, the tick that is overdue included."""
        total_s = max(0.0, now - self._due)
        for at, late in reversed(self._recent):
            if at < since:
                break
            total_s += min(late, at - since)
        return total_s

    @property
    def last_s(self) -> float:
        """How late the last tick was."""
        return self._recent[-1][1] if self._recent else 0.0

    @property
    def steady_s(self) -> float:
        """What the lag has not fallen below for three ticks; 0 before there were three."""
        if len(self._recent) < _STEADY:
            return 0.0
        return min(self._recent[-place][1] for place in range(1, _STEADY + 1))


class LagTicker:
    """Keeps a meter ticking on the running loop."""

    def __init__(self, on_tick: Callable[[LagMeter], None] = lambda meter: None) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_tick = on_tick
        self.meter = LagMeter(self._loop.time())
        self._timer = self._loop.call_later(PERIOD_S, self._tick)

    def late_s(self, since: float) -> float:
        """See `LagMeter.late_s`; times on the loop's clock."""
        return self.meter.late_s(since, self._loop.time())

    def stop(self) -> None:
        """No tick any more."""
        self._timer.cancel()

    def _tick(self) -> None:
        self.meter.tick(self._loop.time())
        self._timer = self._loop.call_later(PERIOD_S, self._tick)
        self._on_tick(self.meter)
