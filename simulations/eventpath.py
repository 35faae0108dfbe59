"""The way of KV events from an engine to the index: a batch a step, visible after a delay.

One token of the index stands for one block of the trace (grain 1): ids are chained, so a match of n ids is a match of
n * block_tokens prompt tokens, and the index does a 512th of the work without losing anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from radix.changes import Batch, Event, Removed, Stored, as_tokens
from radix.index import Index
from simulations.clock import Clock, Kind
from simulations.engine_model import StoredRun


class EventPath:
    """Batches under way. blocks_stored, blocks_removed, batches: what was sent so far."""

    def __init__(self, index: Index, clock: Clock, delay_s: float) -> None:
        self.blocks_stored = self.blocks_removed = self.batches = 0
        self._index = index
        self._clock = clock
        self._delay_s = delay_s
        self._under_way: deque[tuple[int, Batch]] = deque()

    def send(self, holder: int, removed: Sequence[int], stored: Sequence[StoredRun]) -> None:
        """Let a step's changes of one holder become visible after the delay."""
        if not removed and not stored:
            return
        events: list[Event] = [Removed(tuple(removed))] if removed else []
        for run in stored:
            events.append(Stored(tuple(run.ids), run.parent, as_tokens(run.ids), block_tokens=1))
            self.blocks_stored += len(run.ids)
        self.blocks_removed += len(removed)
        self._under_way.append((holder, Batch(rank=0, seq=self.batches, ts=self._clock.now_s, events=tuple(events))))
        self._clock.schedule(self._clock.now_s + self._delay_s, Kind.EVENTS_VISIBLE, self.batches)
        self.batches += 1

    def deliver(self) -> None:
        """Apply the batch that is due; the delay is the same for all, so they arrive in the order sent."""
        holder, batch = self._under_way.popleft()
        self._index.apply(holder, batch)
