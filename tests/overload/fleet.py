"""Fake engines, a process each, that are killed and started again."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from benchmarks.demo.processes import Process, free_ports, trunkline
from tests.overload.demand import MAX_RUNNING, MODEL, TIMES

_READY_S = 60.0
_DOWN_S = (0.5, 4.0)
_PATIENCE = aiohttp.ClientTimeout(total=10)


class Fleet:
    """Engines behind fixed ports. kills: how many so far."""

    def __init__(self, count: int, folder: Path, seed: int) -> None:
        ports = free_ports(3 * count)
        self._ports = [(ports[3 * i], ports[3 * i + 1], ports[3 * i + 2]) for i in range(count)]
        self._folder = folder
        self._random = Random(seed)
        self._engines = [self._start(number) for number in range(count)]
        self._calm = asyncio.Event()
        self.kills = 0

    @property
    def replicas(self) -> list[dict[str, Any]]:
        """As the gateway's settings name them."""
        return [
            {
                "name": f"e{number}",
                "url": f"http://127.0.0.1:{http}",
                "events": f"tcp://127.0.0.1:{events}",
                "replay": f"tcp://127.0.0.1:{replay}",
            }
            for number, (http, events, replay) in enumerate(self._ports)
        ]

    async def ready(self) -> None:
        """Wait until all take requests."""
        await asyncio.gather(*(asyncio.to_thread(engine.wait_ready, _READY_S) for engine in self._engines))

    def trouble(self, every_s: float) -> None:
        """From now on kill one now and then, and start it again a little later."""
        self._calm.clear()
        self._killer = asyncio.create_task(self._kill(every_s))

    async def calm(self) -> None:
        """No more kills; all are up."""
        self._calm.set()
        await self._killer

    async def _kill(self, every_s: float) -> None:
        while True:
            try:
                await asyncio.wait_for(self._calm.wait(), self._random.expovariate(1 / every_s))
            except TimeoutError:
                await self._kill_one()
            else:
                return

    async def _kill_one(self) -> None:
        number = self._random.randrange(len(self._engines))
        engine = self._engines[number]
        await asyncio.to_thread(engine.kill)
        await asyncio.to_thread(engine.stop)
        self.kills += 1
        await asyncio.sleep(self._random.uniform(*_DOWN_S))
        self._engines[number] = self._start(number)
        await asyncio.to_thread(self._engines[number].wait_ready, _READY_S)

    async def open_requests(self) -> list[int]:
        """Of each engine: requests it still works for, running or waiting."""
        async with aiohttp.ClientSession(timeout=_PATIENCE) as session:
            found = []
            for http, _, _ in self._ports:
                async with session.get(f"http://127.0.0.1:{http}/mock/state") as answer:
                    state = json.loads(await answer.read())
                    ranks = state["ranks"]
                    found.append(state["open_requests"] + sum(rank["running"] + rank["waiting"] for rank in ranks))
        return found

    def died(self) -> list[str]:
        """Engines that ended without having been killed."""
        return [engine.name for engine in self._engines if not _alive(engine)]

    def stop(self) -> None:
        """End all."""
        for engine in self._engines:
            engine.stop()

    def _start(self, number: int) -> Process:
        http, events, replay = self._ports[number]
        command = trunkline(
            "mock-engine", "--host", "127.0.0.1", "--port", str(http), "--model", MODEL, "--log-level", "error", "--drain", "0",
            "--events", f"tcp://127.0.0.1:{events}", "--replay", f"tcp://127.0.0.1:{replay}", "--num-blocks", "16384",
            "--prefill-rate", str(TIMES.prefill_tokens_per_s), "--decode-s", str(TIMES.decode_s),
            "--sequence-s", str(TIMES.sequence_s), "--max-running", str(MAX_RUNNING),
        )  # fmt: skip
        log = self._folder / f"engine{number}-{time.monotonic_ns()}.log"
        return Process(f"engine{number}", command, log, {"OMP_NUM_THREADS": "1"})


def _alive(engine: Process) -> bool:
    return Path(f"/proc/{engine.pid}").exists() if sys.platform == "linux" else True
