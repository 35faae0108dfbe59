"""Clients of the soak: completions of token ids that match and guess, streams that are read or left, and a fleet that changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import aiohttp

from tests.soak.engine import MODEL
from tests.soak.prompts import Prompts

ADMIN_TOKEN = "soak"
_PATIENCE = aiohttp.ClientTimeout(total=30)


class Traffic:
    """What clients and the operator do to the gateway between `run` and `quiet`."""

    def __init__(self, ports: dict[str, int], fleet: Sequence[dict[str, Any]], seed: int, requests_per_s: float) -> None:
        """fleet: settings of the replicas that come and go."""
        self.counts: Counter[str] = Counter()
        self._data = f"http://127.0.0.1:{ports['data_port']}/v1/completions"
        self._replicas = f"http://127.0.0.1:{ports['control_port']}/replicas"
        self._moving = list(fleet)
        self._away: list[dict[str, Any]] = []
        self._random = Random(seed)
        self._prompts = Prompts(seed + 1)
        self._requests_per_s = requests_per_s
        self._session = aiohttp.ClientSession(timeout=_PATIENCE, connector=aiohttp.TCPConnector(limit=0))
        self._tasks: set[asyncio.Task[None]] = set()
        self._sources: list[asyncio.Task[None]] = []

    def run(self, moves_per_s: float) -> None:
        """Begin."""
        self._sources = [asyncio.create_task(self._arrive()), asyncio.create_task(self._move(moves_per_s))]

    async def quiet(self) -> None:
        """End what is open, and bring every replica back."""
        for source in self._sources:
            source.cancel()
        for outcome in await asyncio.gather(*self._sources, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        await asyncio.gather(*self._tasks)
        while self._away:
            await self._add(self._away[-1])
            self._away.pop()

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _arrive(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(self._requests_per_s))
            task = asyncio.create_task(self._request())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _request(self) -> None:
        prompt = self._prompts.draw()
        stream = self._random.random() < 0.6
        body: dict[str, Any] = {"model": MODEL, "prompt": prompt.tokens, "stream": stream}
        if prompt.salt is not None:
            body["cache_salt"] = prompt.salt
        leaves = stream and self._random.random() < 0.3
        self.counts["sent"] += 1
        try:
            async with self._session.post(self._data, json=body) as response:
                if leaves:
                    await response.content.readany()
                    response.close()
                    self.counts["left"] += 1
                    return
                await response.read()
                self.counts["ok" if response.status == 200 else f"status_{response.status}"] += 1
        except (aiohttp.ClientError, TimeoutError) as error:  # its engine died under it
            self.counts[type(error).__name__] += 1

    async def _move(self, moves_per_s: float) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(moves_per_s))
            # A move is made or not: a question cut short would leave us not knowing.
            await asyncio.shield(asyncio.create_task(self._one_move()))

    async def _one_move(self) -> None:
        if self._away and (self._random.random() < 0.5 or len(self._away) == len(self._moving)):
            await self._add(self._away[0])
            del self._away[0]
            return
        replica = self._random.choice([each for each in self._moving if each not in self._away])
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with self._session.delete(f"{self._replicas}/{replica['name']}", headers=headers) as response:
            if response.status != 204:
                raise RuntimeError(f"removing {replica['name']} was answered {response.status}: {await response.text()}")
        self._away.append(replica)
        self.counts["replicas_removed"] += 1

    async def _add(self, replica: dict[str, Any]) -> None:
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with self._session.post(self._replicas, json=replica, headers=headers) as response:
            if response.status != 201:
                raise RuntimeError(f"adding {replica['name']} was answered {response.status}: {await response.text()}")
        self.counts["replicas_added"] += 1
