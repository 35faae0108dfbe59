"""Simulated time: a queue of what will happen, in one total order.

The order is (time, kind, number), so two runs that schedule the same things do them in the same order whatever the heap looks
like inside. That is what makes a run repeatable byte for byte (FC-66).
"""

from __future__ import annotations

import heapq
from enum import IntEnum


class Kind(IntEnum):
    """What happens, in the order things of one instant happen: a finished step is seen by a request arriving then."""

    STEP_END = 0
    EVENTS_VISIBLE = 1
    ARRIVAL = 2


class Clock:
    """The time now and everything scheduled after it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, Kind, int, int]] = []

    def schedule(self, at_s: float, kind: Kind, number: int, stamp: int = 0) -> None:
        """Let something happen. number: which replica, request or batch; stamp: lets the receiver tell an outdated entry."""
        assert at_s >= self.now_s, f"{kind.name} {number} scheduled at {at_s}, before {self.now_s}"
        heapq.heappush(self._queue, (at_s, kind, number, stamp))

    def advance(self) -> tuple[Kind, int, int] | None:
        """Go to the next thing that happens: (kind, number, stamp); None when nothing is left."""
        if not self._queue:
            return None
        self.now_s, kind, number, stamp = heapq.heappop(self._queue)
        return kind, number, stamp
