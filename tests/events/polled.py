"""A polled queue and the streams that are fed from it; shared by the tests of polling."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import numpy as np

from events.http_queue import EventQueue
from events.poll_source import PolledStream, PollSource, PollTimes
from events.types import Freshness
from radix import Index, Namespace, Tier
from tests.fakes.event_queue import BLOCK, FakeQueue, created, stored
from tests.fakes.publisher import until

QUICK = PollTimes(busy_s=0.001, idle_s=0.004, failing_s=0.005, max_failing_s=0.02, backoff_s=0.01, doubt_s=60)


@dataclass
class Polled:
    """A queue and the streams that are fed from it, by rank."""

    queue: FakeQueue
    index: Index
    source: PollSource
    streams: list[PolledStream]
    states: list[Freshness] = field(default_factory=list)

    @property
    def stream(self) -> PolledStream:
        return self.streams[0]

    def depth(self, rank: int = 0, tier: Tier = Tier.DEVICE) -> int:
        """Matched blocks of the prompt that `stored` makes."""
        tokens = np.array([10 * n + i for n in range(50) for i in range(BLOCK)], np.int32)
        return self.index.match(Namespace("m"), tokens).tokens(self.streams[rank].holder, tier) // BLOCK

    @property
    def blocks(self) -> int:
        return self.index.stats().blocks

    async def until(self, freshness: Freshness, depth: int, rank: int = 0) -> None:
        stream = self.streams[rank]
        try:
            await until(lambda: (stream.freshness, self.depth(rank)) == (freshness, depth))
        except AssertionError:
            raise AssertionError(f"still {stream.freshness} {self.depth(rank)}, want {freshness} {depth}") from None

    async def asked(self, times: int = 3) -> None:
        """Wait for further questions."""
        enough = self.queue.asked + times
        await until(lambda: self.queue.asked >= enough)


@asynccontextmanager
async def polled(
    *,
    ranks: int = 1,
    times: PollTimes = QUICK,
    timeout_s: float = 5.0,
    limit_bytes: int = 2**20,
    block_tokens: int = BLOCK,
    methods: tuple[str, ...] = ("POST",),
    told: int = 0,
) -> AsyncIterator[Polled]:
    """A process that told of its window and stored `told` blocks before anybody asked."""
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(FakeQueue(methods=methods))
        queue.tell(created())
        for number in range(told):
            queue.tell(stored(number))
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        index = Index()
        states: list[Freshness] = []
        by_holder: dict[int, PolledStream] = {}
        source = PollSource(
            index,
            EventQueue(session, queue.url, api_key="k", timeout_s=timeout_s, limit_bytes=limit_bytes),
            block_tokens=block_tokens,
            on_change=lambda holder: states.append(by_holder[holder].freshness),
            times=times,
        )
        for rank in range(ranks):
            holder = index.holder("r", rank, model="m", counting=False)
            by_holder[holder] = source.stream(rank, holder)
            by_holder[holder].start()
            stack.push_async_callback(by_holder[holder].stop)
        yield Polled(queue, index, source, list(by_holder.values()), states)
