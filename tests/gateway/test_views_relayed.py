"""Which replicas a gateway hears by a relay, and what it does while none writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from events.publish import Publisher
from events.redis_source import RedisStream
from events.relay.follow import FollowTimes
from events.relay.outlet import Pace
from events.relay.relay import Relay
from events.relay.store import Place
from events.relay.target import Target
from events.supervise import EventStream
from events.types import Freshness, Stored
from gateway.choose.rates import Rates
from gateway.config import ReplicaSettings
from gateway.fleet import Address, Fleet, Replica
from gateway.health import Facts
from gateway.views import Views
from radix.changes import as_tokens
from radix.index import Index
from tests.fakes.publisher import until
from tests.fakes.redis_server import RedisServer

URL = "http://127.0.0.1:1"


class House:
    """A fleet of one replica, its index and its views, with a Redis."""

    def __init__(self, place: Place | None) -> None:
        self.index = Index()
        self.fleet = Fleet(self.index, Rates())
        self.replica: Replica = self.fleet.add("r", Address.parse(URL), dialect="openai")
        self.views = Views(self.fleet, self.index, place)

    @property
    def holder(self) -> int:
        return self.replica.holders[0]

    def is_(self, freshness: Freshness) -> Callable[[], bool]:
        return lambda: self.fleet.view.freshness[self.holder] is freshness

    @property
    def blocks(self) -> int:
        return self.index.stats().blocks


@pytest.fixture
async def house(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    quick = FollowTimes(wait_s=0.05, doubt_s=0.3, again_s=0.01, max_again_s=0.05)
    monkeypatch.setattr("events.redis_source.FollowTimes", lambda: quick)
    house = House(Place(redis.url))
    yield house
    await house.views.stop()


@asynccontextmanager
async def relay_of(publisher: Publisher, redis: RedisServer) -> AsyncIterator[None]:
    target = Target("r", publisher.bound_endpoint, publisher.bound_replay)
    relay = Relay([target], Place(redis.url), pace=Pace(batch_s=0, lease_s=0.5))
    task = asyncio.get_running_loop().create_task(relay.run())
    await until(lambda: relay.writing)
    yield
    relay.end()
    await task


def engine() -> Publisher:
    publisher = Publisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    publisher.publish([Stored((1,), None, as_tokens(range(32)), 32)])
    return publisher


def facts(publisher: Publisher) -> Facts:
    return Facts(("m",), "trunkline", {0: (publisher.bound_endpoint, publisher.bound_replay)})


async def test_a_replica_is_heard_by_its_relay_and_by_itself_while_there_is_none(house: House, redis: RedisServer) -> None:
    with engine() as publisher:
        async with relay_of(publisher, redis):
            await house.views.follow(house.replica, ReplicaSettings(url=URL), facts(publisher))
            stream = house.views.stream(house.holder)
            assert isinstance(stream, RedisStream)
            await until(house.is_(Freshness.LIVE))
            assert (house.blocks, stream.relayed) == (1, True)
            assert not house.views.unheard(house.replica)
        await until(lambda: not stream.relayed)
        await until(house.is_(Freshness.LIVE))
        publisher.publish([Stored((2,), 1, as_tokens(range(32)), 32)])
        await until(lambda: house.blocks == 2)
        house.views.suspect(house.replica)
        assert house.blocks == 0
        await until(lambda: house.blocks == 2)


async def test_a_replica_that_tells_other_sockets_goes_on_by_its_relay(house: House, redis: RedisServer) -> None:
    with engine() as publisher, engine() as elsewhere:
        async with relay_of(publisher, redis):
            await house.views.follow(house.replica, ReplicaSettings(url=URL), facts(publisher))
            await until(house.is_(Freshness.LIVE))
            stream = house.views.stream(house.holder)
            elsewhere.publish([Stored((7,), 1, as_tokens(range(32)), 32)])
            await house.views.follow(house.replica, ReplicaSettings(url=URL), facts(elsewhere))
            assert house.views.stream(house.holder) is stream
            assert house.blocks == 1
        await until(lambda: house.blocks == 2)  # those of the newest sockets


async def test_without_sockets_of_its_own_there_is_only_the_relay(house: House, redis: RedisServer) -> None:
    await house.views.follow(house.replica, ReplicaSettings(url=URL), Facts(("m",)))
    assert house.views.unheard(house.replica)
    await asyncio.sleep(0.4)  # longer than it would doubt
    assert house.is_(Freshness.COLD)()
    with engine() as publisher:
        async with relay_of(publisher, redis):
            await until(house.is_(Freshness.LIVE))
        await until(house.is_(Freshness.GAP))
    await house.views.unfollow(house.replica)
    assert list(house.views.streams()) == []


@pytest.mark.parametrize(
    ("via", "configured", "kind"),
    [
        (None, False, RedisStream),
        (None, True, EventStream),
        ("redis", True, RedisStream),
        ("direct", False, EventStream),
        ("direct", True, EventStream),
    ],
)
async def test_which_way_is_taken(house: House, via: str | None, configured: bool, kind: type) -> None:
    with engine() as publisher:
        events = publisher.bound_endpoint if configured else None
        settings = ReplicaSettings(url=URL, events=events, via=via)  # type: ignore[arg-type]
        await house.views.follow(house.replica, settings, facts(publisher))
        assert isinstance(house.views.stream(house.holder), kind)


async def test_without_redis_every_replica_is_heard_directly() -> None:
    house = House(None)
    with engine() as publisher:
        await house.views.follow(house.replica, ReplicaSettings(url=URL), facts(publisher))
        assert isinstance(house.views.stream(house.holder), EventStream)
        await house.views.stop()
