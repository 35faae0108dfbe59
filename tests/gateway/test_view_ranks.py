"""Ranks of a replica: learned, kept apart, and gone when it says so; over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import numpy as np
import pytest

from gateway.choose.rates import Rates
from gateway.config import ReplicaSettings
from gateway.fleet import Address, Fleet, Replica
from gateway.health import Facts
from gateway.views import Views
from radix import Index, Namespace
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.wire import batch, chain, removed

URL = "http://127.0.0.1:1"
BLOCK = 4


class House:
    """A fleet of one replica and its views."""

    def __init__(self) -> None:
        self.index = Index()
        self.fleet = Fleet(self.index, Rates())
        self.views = Views(self.fleet, self.index)
        self.replica: Replica = self.fleet.add("r", Address.parse(URL), dialect="openai")
        self.fleet.learn_models(self.replica, ("m",))

    async def follow(self, *publishers: FakePublisher, ranks: int = 1, topic: str = "kv", sets: bool = False) -> None:
        sources = {rank: (publisher.endpoint, publisher.replay) for rank, publisher in enumerate(publishers)}
        facts = Facts(("m",), "openai", sources, topic, sets)
        await self.views.follow(self.replica, ReplicaSettings(url=URL, ranks=ranks), facts)

    def depths(self) -> list[int]:
        """Matched blocks by rank."""
        tokens = np.array([10 * i + j for i in range(6) for j in range(BLOCK)], np.int32)
        match = self.index.match(Namespace("m"), tokens)
        return [match.tokens(holder) // BLOCK for holder in self.replica.holders]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    await house.views.stop()


async def test_ranks_are_learned_and_kept_apart(house: House) -> None:
    """FC-21: as many holders as event sources, under the model known already; a stream each."""
    async with AsyncExitStack() as stack:
        publishers = [await stack.enter_async_context(FakePublisher()) for _ in range(2)]
        for rank, publisher in enumerate(publishers):
            await publisher.send(0, batch(chain(rank + 1, BLOCK), rank=rank), live=False)
        await house.follow(*publishers)
        await until(lambda: house.depths() == [1, 2])
        assert [(name, rank) for name, rank, _ in house.views.streams()] == [("r", 0), ("r", 1)]
        await publishers[1].restart()
        await until(lambda: house.depths() == [1, 0])


async def test_ranks_that_disappeared_go_when_they_are_idle(house: House) -> None:
    """Edge case 37: the stream ends at once, the holder when its last request has ended; a new one starts empty."""
    async with AsyncExitStack() as stack:
        publishers = [await stack.enter_async_context(FakePublisher()) for _ in range(2)]
        for publisher in publishers:
            await publisher.send(0, batch(chain(2, BLOCK)), live=False)
        await house.follow(*publishers)
        await until(lambda: house.depths() == [2, 2])
        gone = house.replica.holders[1]
        house.fleet.load(gone, requests=1)
        await house.follow(publishers[0])
        assert (house.depths(), house.views.stream(gone)) == ([2, 0], None)
        house.fleet.load(gone, requests=-1)
        await house.follow(publishers[0])
        assert (house.depths(), gone in house.fleet.by_holder) == ([2], False)
        await house.follow(*publishers)
        await until(lambda: house.depths() == [2, 2])


async def test_configured_ranks_are_not_changed(house: House) -> None:
    """FC-21: what the operator said wins."""
    house.fleet.set_ranks(house.replica, 2)
    async with FakePublisher() as publisher:
        await house.follow(publisher, ranks=2)
        assert len(house.replica.holders) == 2
        assert house.views.stream(house.replica.holders[1]) is None


@pytest.mark.parametrize(("sets", "left"), [(True, 0), (False, 1)])
async def test_copies_are_counted_as_the_engine_announces_them(house: House, sets: bool, left: int) -> None:
    """FC-08, edge case 17: stored twice, removed once."""
    async with FakePublisher() as publisher:
        await publisher.send(0, batch(chain(1, BLOCK), chain(1, BLOCK), removed(1)), live=False)
        await house.follow(publisher, sets=sets)
        await until(lambda: next(house.views.streams())[2].counts.batches == 1)
        assert house.depths() == [left]
