"""Small things to do at a later time, run when somebody passes by with the time; no timer, no task, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class DueList:
    """Callables ordered by due time. `add` and each call of `run` cost O(log n) per entry."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` at the first `run(now)` with now >= when; equal times keep the order they were added in."""
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, action))

    def run(self, now: float) -> None:
        """Do what is due."""
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()
