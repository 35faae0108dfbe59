"""A data plane on loopback as production starts it, with a fake fleet behind it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.auth import Keys
from gateway.cards import Card
from gateway.config import Settings, settings_from
from gateway.plane import DataPlane
from gateway.prompt import PromptTokenizer
from gateway.request import TrafficCounts
from gateway.tokenize.cached import CacheCounts, Draft, Hole
from gateway.tokenize.lift import LiftedStrings
from gateway.tokenize.prompt import PromptText
from radix.match import Int32Array
from tests.fakes.placer import FakePlacer


class FakeTokenizer:
    """Ids are the number of characters of the JSON; `seconds` is what it says a prompt will take."""

    def __init__(self, seconds: float = 0.0, work: Callable[[], None] = lambda: None) -> None:
        self.seconds = seconds
        self.work = work
        self.counts = CacheCounts()

    reads_clock = False
    lifted: LiftedStrings | None = None

    def planned(self, fields: Mapping[str, Any]) -> Draft | None:
        return None

    def reads_here(self, fields: Mapping[str, Any], body_bytes: int, *, chat: bool) -> bool:
        return True

    def read(self, fields: Mapping[str, Any], *, chat: bool) -> PromptText:
        return PromptText("chat" if chat else "completion", False)

    def cut(self, prompt: PromptText | Int32Array) -> Draft:
        assert isinstance(prompt, PromptText)
        return Draft([None], [Hole(0, None, prompt.text)], len(prompt.text))

    def encode(self, holes: Sequence[Hole]) -> list[Int32Array]:
        self.work()
        return [np.arange(1, 6 if hole.text == "chat" else 4, dtype=np.int32) for hole in holes]

    def remember(self, hole: Hole, ids: Int32Array) -> None:
        pass

    def joined(self, draft: Draft) -> Int32Array:
        assert draft.parts[0] is not None
        return draft.parts[0]

    def whole(self, fields: Mapping[str, Any], *, chat: bool) -> Int32Array:
        return self.encode(self.cut(self.read(fields, chat=chat)).holes)[0]

    def drop(self) -> None:
        pass

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
    tls: ssl.SSLContext | None = None,
    handshake_s: float = 10.0,
) -> AsyncIterator[Running]:
    """Start, serve, close."""
    counts = TrafficCounts()
    plane = DataPlane(given or settings(), placer, lambda: tokenizer, keys, counts, models=lambda: [Card("m")])
    port = await plane.start("127.0.0.1", 0, tls=tls, handshake_s=handshake_s)
    try:
        yield Running(plane, port, placer, counts)
    finally:
        plane.close()
        await asyncio.sleep(0.01)  # connections take a turn of the loop to close
