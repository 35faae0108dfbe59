"""Batches whose turn has come, on their way into the view: several in one call of the index, and never for long at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from events.apply import Applier
from events.replay import Frames

_SLICE_S = 0.002  # the loop also serves requests; give it back after this long
_TOGETHER, _TOGETHER_BYTES = 64, 128 * 1024  # batches of one call of the index, which has a price of its own


class Intake:
    """Applies batches in the order they are added.

    failed: told the number of a batch that could not be applied, and what went wrong, before what follows it is applied.
    """

    def __init__(self, applier: Applier, failed: Callable[[int, Exception], None]) -> None:
        self._applier = applier
        self._failed = failed
        self._ready: list[Frames] = []
        self._bytes = 0
        self._slice_end = 0.0

    def __len__(self) -> int:
        """Batches that are not applied yet."""
        return len(self._ready)

    def add(self, frames: Frames) -> bool:
        """A batch comes next; it is applied with those that follow it at once. True when that should be now."""
        self._ready.append(frames)
        self._bytes += len(frames.payload)
        return len(self._ready) >= _TOGETHER or self._bytes >= _TOGETHER_BYTES

    async def flush(self) -> None:
        """Apply what was added, a slice of time at a time."""
        while self._ready:
            self._apply()
            await self.breathe()

    def finish(self) -> None:
        """Apply what was added, at once."""
        while self._ready:
            self._apply()

    def drop(self) -> None:
        """The view is void, and with it what was to come."""
        self._ready.clear()
        self._bytes = 0

    async def breathe(self) -> None:
        """Give the loop back when we had it for long enough."""
        if time.monotonic() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = time.monotonic() + _SLICE_S

    def _apply(self) -> None:
        """The first batches, or some of them."""
        ready = self._ready
        done, error = self._applier.apply(ready)
        if error is None:
            del ready[:done]
        else:
            seq = ready[done].seq
            del ready[: done + 1]
            self._failed(seq, error)
        if not ready:
            self._bytes = 0
