"""A stream that follows a fake publisher, and what it feeds; shared by the tests of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from events.supervise import EventStream
from events.times import StreamTimes
from events.types import Freshness
from radix import Index, Namespace
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.wire import batch, chain

BLOCK = 4
TIMES = StreamTimes(settle_s=0.02, replay_timeout_s=0.3, retry_replay_s=0.1, backoff_s=0.02, silence_grace_s=60)


@dataclass
class Followed:
    """A stream and what it feeds."""

    stream: EventStream
    index: Index
    holder: int
    states: list[Freshness] = field(default_factory=list)

    def depth(self, blocks: int = 200, salt: int = 0) -> int:
        """Matched blocks of the prompt that `wire.chain` makes."""
        tokens = [salt + 10 * i + j for i in range(blocks) for j in range(BLOCK)]
        return self.index.match(Namespace("m"), np.array(tokens, np.int32)).tokens(self.holder) // BLOCK

    @property
    def blocks(self) -> int:
        return self.index.stats().blocks

    def is_(self, freshness: Freshness) -> Callable[[], bool]:
        return lambda: self.stream.freshness is freshness

    def has_batches(self, count: int) -> Callable[[], bool]:
        return lambda: self.stream.counts.batches >= count


@asynccontextmanager
async def following(
    publisher: FakePublisher, *, topic: str = "kv", times: StreamTimes = TIMES, clock: Callable[[], float] | None = None
) -> AsyncIterator[Followed]:
    """Start a stream on a publisher, and stop it at the end."""
    index = Index()
    holder = index.holder("r", 0, model="m")
    states: list[Freshness] = []
    stream = EventStream(
        index,
        holder,
        publisher.endpoint,
        publisher.replay,
        topic=topic,
        on_change=lambda changed: states.append(stream.freshness),
        times=times,
        **({"clock": clock} if clock else {}),
    )
    stream.start()
    try:
        yield Followed(stream, index, holder, states)
    finally:
        await stream.stop()


async def live(publisher: FakePublisher, followed: Followed) -> None:
    """Wait until both sides know of each other."""
    await publisher.subscribed()
    await until(lambda: followed.stream.connected and followed.stream.freshness not in (Freshness.COLD, Freshness.GAP))


async def send_chain(publisher: FakePublisher, numbers: Sequence[int], *, live: bool = True) -> None:
    """Batch n stores block n of one long prompt."""
    for n in numbers:
        await publisher.send(n, batch(chain(1, BLOCK, first=n)), live=live)
