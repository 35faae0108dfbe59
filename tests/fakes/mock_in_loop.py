"""One fake engine with a real cache on the test's own loop: no process to start, and its ranks at hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from replicas.mock.cost import StepTimes
from replicas.mock.engine import MockEngine
from replicas.mock.faults import Fault
from replicas.mock.rank import Rank, Sizes
from replicas.mock.serve import HttpSide
from replicas.mock.settings import Dialect, MockSettings
from replicas.mock.tokens import ByteCodec


@dataclass
class EngineInLoop:
    """An engine that serves."""

    engine: MockEngine
    port: int

    @property
    def rank(self) -> Rank:
        """Its only one."""
        return self.engine.ranks[0]

    def deaf(self, late_s: float) -> None:
        """Let it notice only so late that a client has left."""
        self.engine.faults.set("deaf", Fault(late_s))

    async def until(self, *, running: int = 0, waiting: int = 0, within_s: float = 20.0) -> float:
        """Wait until so many sequences run and wait; how long that took."""
        began = time.monotonic()
        async with asyncio.timeout(within_s):
            while (self.rank.running, self.rank.waiting) != (running, waiting):
                await asyncio.sleep(0.005)
        return time.monotonic() - began


@asynccontextmanager
async def mock_in_loop(
    *, dialect: Dialect = "vllm", max_running: int = 8, prefill_tokens_per_s: float = 1e6, decode_s: float = 0.005
) -> AsyncIterator[EngineInLoop]:
    """Start, serve, stop."""
    settings = MockSettings(
        model="m",
        dialect=dialect,
        sizes=Sizes(max_running=max_running),
        times=StepTimes(prefill_tokens_per_s=prefill_tokens_per_s, decode_s=decode_s, sequence_s=0.0, scale=1.0),
        event_form="array" if dialect == "sglang" else "map",
    )
    engine = MockEngine(0, settings, ByteCodec())
    side = HttpSide(engine, "127.0.0.1", 0)
    steps = list(engine.tasks())
    await side.start()
    try:
        yield EngineInLoop(engine, side.port)
    finally:
        engine.faults.clear()
        engine.abort(lambda request_id: True)
        for task in steps:
            task.cancel()
        await asyncio.gather(side.stop(), *steps, return_exceptions=True)
        side.close()
