"""An engine, a relay and two gateways' views of it, one direct and one by the relay; shared by the tests of relays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from events.redis_source import RedisStream
from events.relay.follow import FollowTimes
from events.relay.outlet import Outlet, Pace
from events.relay.relay import Relay
from events.relay.store import Place
from events.relay.tap import Tap
from events.relay.target import Target
from events.stream import Stream
from events.supervise import EventStream
from events.times import StreamTimes
from events.types import Freshness
from radix import Index
from tests.fakes.publisher import FakePublisher, until

STREAM_TIMES = StreamTimes(settle_s=0.02, replay_timeout_s=0.3, retry_replay_s=0.1, backoff_s=0.02, link_down_s=1.0)
TIMES = FollowTimes(wait_s=0.05, doubt_s=0.5, drop_s=1.0, again_s=0.01, max_again_s=0.05, suspect_s=0.1, backoff_s=0.02)
PACE = Pace(batch_s=0.0, lease_s=0.5, backoff_s=0.01, max_backoff_s=0.05)
NAME = "r"


@dataclass
class Gateway:
    """An index with one holder, and the stream that feeds it."""

    stream: Stream
    index: Index
    holder: int
    states: list[Freshness] = field(default_factory=list)

    @property
    def digest(self) -> bytes:
        return self.index.digest(self.holder)

    @property
    def blocks(self) -> int:
        return self.index.stats().blocks

    def is_(self, freshness: Freshness) -> Callable[[], bool]:
        return lambda: self.stream.freshness is freshness


@asynccontextmanager
async def relaying(
    place: Place, *publishers: FakePublisher, pace: Pace = PACE, name: str = "first", ranks_of: int = 1, max_blocks: int = 10**6
) -> AsyncIterator[Relay]:
    """A relay of one replica per publisher: `r`, `r1`, and so on."""
    targets = [
        Target(NAME + str(i or ""), publisher.endpoint, publisher.replay, topic="kv", ranks=ranks_of)
        for i, publisher in enumerate(publishers)
    ]
    relay = Relay(targets, place, pace=pace, name=name, times=STREAM_TIMES, max_blocks=max_blocks)
    task = asyncio.get_running_loop().create_task(relay.run())
    try:
        await until(lambda: bool(relay.lines) or task.done())
        for publisher in publishers:
            await publisher.subscribed()  # what is sent before is lost, and nobody would know until the next batch
        yield relay
    finally:
        relay.end()
        async with asyncio.timeout(10):
            await task


@asynccontextmanager
async def joined(
    place: Place, *, direct: FakePublisher | None = None, times: FollowTimes = TIMES, name: str = NAME
) -> AsyncIterator[Gateway]:
    """A gateway that follows by the relay; falls back to a publisher where one is given."""
    index = Index()
    holder = index.holder(name, 0, model="m")
    states: list[Freshness] = []

    def on_change(_: int) -> None:
        states.append(stream.freshness)

    def straight() -> Stream:
        assert direct is not None
        return EventStream(index, holder, direct.endpoint, direct.replay, topic="kv", on_change=on_change, times=STREAM_TIMES)

    stream = RedisStream(index, holder, place, direct=straight if direct is not None else None, on_change=on_change, times=times)
    stream.start()
    try:
        yield Gateway(stream, index, holder, states)
    finally:
        await stream.stop()


@asynccontextmanager
async def straight(publisher: FakePublisher) -> AsyncIterator[Gateway]:
    """A gateway that listens to the engine itself."""
    index = Index()
    holder = index.holder(NAME, 0, model="m")
    stream = EventStream(index, holder, publisher.endpoint, publisher.replay, topic="kv", times=STREAM_TIMES)
    stream.start()
    try:
        await publisher.subscribed()
        yield Gateway(stream, index, holder)
    finally:
        await stream.stop()


def line(relay: Relay) -> tuple[Tap, Outlet]:
    """Of the relay's first rank."""
    return relay.lines[0].tap, relay.lines[0].outlet


async def agree(*gateways: Gateway, blocks: int | None = None) -> None:
    """Wait until all are live and know the same, so many blocks where it is said."""

    def agreed() -> bool:
        live = all(gateway.stream.freshness is Freshness.LIVE for gateway in gateways)
        return live and blocks in (None, gateways[0].blocks) and len({gateway.digest for gateway in gateways}) == 1

    await until(agreed)
