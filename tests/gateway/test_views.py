"""Which stream feeds which holder, over real event sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from events.publish import Publisher
from events.types import Freshness, Stored
from gateway.choose.rates import Rates
from gateway.config import ReplicaSettings
from gateway.fleet import Address, Fleet, Replica
from gateway.health import Facts
from gateway.views import Views
from radix.changes import as_tokens
from radix.index import Index

SETTINGS = ReplicaSettings(url="http://127.0.0.1:1")


class House:
    """A fleet of one replica, its index and its views."""

    def __init__(self) -> None:
        self.index = Index()
        self.fleet = Fleet(self.index, Rates())
        self.replica: Replica = self.fleet.add("r", Address.parse("http://127.0.0.1:1"), dialect="openai")
        self.views = Views(self.fleet, self.index)

    @property
    def freshness(self) -> Freshness:
        return self.fleet.view.freshness[self.replica.holders[0]]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    await house.views.stop()


def engine() -> Publisher:
    """An engine's event sockets on free ports, with one block announced."""
    publisher = Publisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
    publisher.publish([Stored((1,), None, as_tokens(range(32)), 32)])
    return publisher


def facts(publisher: Publisher) -> Facts:
    return Facts(("m",), "trunkline", {0: (publisher.bound_endpoint, publisher.bound_replay)})


async def test_a_replica_is_followed_where_it_says_and_the_policies_see_how_fresh_it_is(house: House) -> None:
    assert house.freshness is Freshness.COLD
    with engine() as publisher:
        await house.views.follow(house.replica, SETTINGS, facts(publisher))
        await house.until(lambda: house.freshness is Freshness.LIVE)
        assert house.index.stats().blocks == 1
        assert house.fleet.view.block_tokens[house.replica.holders[0]] == 32
        assert not house.views.unheard(house.replica)
        same = house.views.stream(house.replica.holders[0])
        await house.views.follow(house.replica, SETTINGS, facts(publisher))
        assert house.views.stream(house.replica.holders[0]) is same


async def test_a_replica_that_came_back_elsewhere_is_followed_there_with_an_empty_view(house: House) -> None:
    """FC-03, FC-56: new sockets are a new process; nothing of the old one is believed."""
    with engine() as publisher:
        await house.views.follow(house.replica, SETTINGS, facts(publisher))
        await house.until(lambda: house.index.stats().blocks == 1)
    await house.until(lambda: house.views.unheard(house.replica))
    with Publisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0") as elsewhere:
        await house.views.follow(house.replica, SETTINGS, facts(elsewhere))
        assert house.index.stats().blocks == 0
        await house.until(lambda: house.freshness is Freshness.LIVE)


async def test_a_replica_that_announces_nothing_any_more_is_cold(house: House) -> None:
    with engine() as publisher:
        await house.views.follow(house.replica, SETTINGS, facts(publisher))
        await house.until(lambda: house.index.stats().blocks == 1)
        await house.views.follow(house.replica, SETTINGS, Facts(("m",)))
        assert house.freshness is Freshness.COLD
        assert house.index.stats().blocks == 0
        assert house.views.stream(house.replica.holders[0]) is None


async def test_what_a_replica_says_is_looked_for_at_its_own_host_and_bad_endpoints_are_only_logged(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with engine() as publisher:
        events = publisher.bound_endpoint.replace("127.0.0.1", "10.9.8.7")  # its own name for itself counts for nothing here
        await house.views.follow(house.replica, SETTINGS, Facts(("m",), "trunkline", {0: (events, None)}))
        await house.until(lambda: house.freshness is Freshness.PARTIAL)
    await house.views.follow(house.replica, ReplicaSettings(url="http://127.0.0.1:1", events="nonsense"), Facts(("m",)))
    assert "not following replica=r" in caplog.text


async def test_a_dead_replica_holds_nothing(house: House) -> None:
    """FC-11: health says it died; its credit is gone at once."""
    with engine() as publisher:
        await house.views.follow(house.replica, SETTINGS, facts(publisher))
        await house.until(lambda: house.index.stats().blocks == 1)
        house.views.suspect(house.replica)
        assert house.index.stats().blocks == 0
