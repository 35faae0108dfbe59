"""A data plane on loopback as production starts it, with a fake fleet behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.auth import Keys
from gateway.config import Settings, settings_from
from gateway.plane import DataPlane
from gateway.prompt import PromptTokenizer
from gateway.request import TrafficCounts
from radix.match import Int32Array
from tests.fakes.placer import FakePlacer


class FakeTokenizer:
    """Ids are the number of characters of the JSON; `seconds` is what it says a prompt will take."""

    def __init__(self, seconds: float = 0.0, work: Callable[[], None] = lambda: None) -> None:
        self.seconds = seconds
        self.work = work

    def chat(self, fields: Mapping[str, Any]) -> Int32Array:
        self.work()
        return np.arange(1, 6, dtype=np.int32)

    def completion(self, fields: Mapping[str, Any]) -> Int32Array:
        self.work()
        return np.arange(1, 4, dtype=np.int32)

    def estimate_s(self, characters: int) -> float:
        return self.seconds


@dataclass
class Running:
    """A data plane that serves."""

    plane: DataPlane
    port: int
    placer: FakePlacer
    counts: TrafficCounts

    async def quiet(self, within_s: float = 2.0) -> None:
        """Wait until nothing is open any more."""
        async with asyncio.timeout(within_s):
            while self.plane.open_exchanges or self.placer.open or self.counts.open_connections:
                await asyncio.sleep(0.005)


def settings(**values: Any) -> Settings:
    """Settings with some values changed, as a file would say them."""
    return settings_from(values, source="test")


@asynccontextmanager
async def running(
    placer: FakePlacer,
    *,
    given: Settings | None = None,
    tokenizer: PromptTokenizer | None = None,
    keys: Keys | None = None,
) -> AsyncIterator[Running]:
    """Start, serve, close."""
    counts = TrafficCounts()
    plane = DataPlane(given or settings(), placer, lambda: tokenizer, keys, counts, models=lambda: ["m"])
    port = await plane.start("127.0.0.1", 0)
    try:
        yield Running(plane, port, placer, counts)
    finally:
        plane.close()
        await asyncio.sleep(0.01)  # connections take a turn of the loop to close
