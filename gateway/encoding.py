"""Encode long texts in threads, each once however many requests wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from gateway.tokenize.cache import Key
from gateway.tokenize.cached import Draft, Hole
from radix.match import Int32Array


class HoleEncoder(Protocol):
    """Computes the ids of holes in any thread, and remembers them on the loop."""

    def encode(self, holes: Sequence[Hole]) -> list[Int32Array]: ...

    def remember(self, hole: Hole, ids: Int32Array) -> None: ...


@dataclass(slots=True, eq=False)
class _Job:
    """Some texts on their way through a thread. found: their ids, once they are there."""

    holes: Sequence[Hole]
    future: asyncio.Future[list[Int32Array]]
    found: dict[Key | None, Int32Array] = field(default_factory=dict)
    waiting: int = 0


class Encoding:
    """The texts that are being encoded. The threads compute ids and nothing else; everything here is the loop's."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._jobs: dict[tuple[HoleEncoder, Key], _Job] = {}

    async def fill(self, encoder: HoleEncoder, draft: Draft) -> None:
        """Fill the holes of a draft; raises what encoding raises. A text that nobody waits for any more is not begun."""
        fresh: dict[Key | None, Hole] = {}
        jobs: list[_Job] = []
        for hole in draft.holes:
            job = self._jobs.get((encoder, hole.key)) if hole.key is not None else None
            if job is None:
                fresh[hole.key] = hole
            elif job not in jobs:
                jobs.append(job)
        if fresh:
            jobs.append(self._begin(encoder, list(fresh.values())))
        await self._wait(encoder, jobs)
        found: dict[Key | None, Int32Array] = {}
        for job in jobs:
            job.future.result()
            found |= job.found
        for hole in draft.holes:
            draft.parts[hole.slot] = found[hole.key]

    async def _wait(self, encoder: HoleEncoder, jobs: list[_Job]) -> None:
        for job in jobs:
            job.waiting += 1
        try:
            await asyncio.wait([job.future for job in jobs])
        finally:
            for job in jobs:
                job.waiting -= 1
                if not job.waiting and not job.future.done():
                    self._forget(encoder, job)  # before it is cancelled: nobody may join it now
                    job.future.cancel()

    def _begin(self, encoder: HoleEncoder, holes: Sequence[Hole]) -> _Job:
        job = _Job(holes, asyncio.get_running_loop().run_in_executor(self._threads, encoder.encode, holes))
        for hole in holes:
            if hole.key is not None:
                self._jobs[encoder, hole.key] = job
        # Added first, so that it runs before those who wait go on.
        job.future.add_done_callback(lambda future: self._ended(encoder, job))
        return job

    def _ended(self, encoder: HoleEncoder, job: _Job) -> None:
        self._forget(encoder, job)
        if job.future.cancelled() or job.future.exception() is not None:
            return
        for hole, ids in zip(job.holes, job.future.result(), strict=True):
            job.found[hole.key] = ids
            encoder.remember(hole, ids)

    def _forget(self, encoder: HoleEncoder, job: _Job) -> None:
        for hole in job.holes:
            if hole.key is not None and self._jobs.get((encoder, hole.key)) is job:
                del self._jobs[encoder, hole.key]
