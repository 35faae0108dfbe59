"""Ends processes that hang: a worker that does not answer still gets its share of the connections."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence

from gateway.workers.processes import Process

log = logging.getLogger(__name__)

_LOOK_S = 5.0
_MISSES = 3  # in a row; each is a wait of some seconds, so that a busy machine is no reason


class Watchdog:
    """Looks at processes now and then; `Process` starts again what is ended here."""

    def __init__(self, processes: Sequence[Process], answers: Callable[[Process], Awaitable[bool]]) -> None:
        """answers: whether a process that is up does, within bounded time."""
        self._processes = processes
        self._answers = answers
        self._misses: dict[int, int] = {}  # by process id

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Ask each process that is up once."""
        up = [process for process in self._processes if process.ready is not None]
        pids = [process.pid for process in up]
        answers = await asyncio.gather(*(self._answers(process) for process in up))
        misses: dict[int, int] = {}
        for process, pid, answered in zip(up, pids, answers, strict=True):
            if pid is None or answered or process.pid != pid:
                continue
            misses[pid] = self._misses.get(pid, 0) + 1
            if misses[pid] >= _MISSES:
                log.error("process killed name=%s pid=%d: it does not answer", process.name, pid)
                process.signal(signal.SIGKILL)
        self._misses = misses
