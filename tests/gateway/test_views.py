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
from radix.changes import Batch, as_tokens
from radix.core.compiled import CompiledTree
from radix.flat import FlatTree
from radix.index import Index
from tests.fakes.event_queue import BLOCK, FakeQueue, created, removed, stored

pytestmark = pytest.mark.xdist_group("compiled")
SETTINGS = ReplicaSettings(url="http://127.0.0.1:1")


class House:
    """A fleet of one replica, its index and its views."""

    def __init__(
        self, url: str = "http://127.0.0.1:1", *, ranks: int = 1, api_key: str | None = None, budget_bytes: int = 1 << 30
    ) -> None:
        self.index = Index(budget_bytes=budget_bytes)
        self.fleet = Fleet(self.index, Rates())
        self.replica: Replica = self.fleet.add("r", Address.parse(url), dialect="openai", ranks=ranks, api_key=api_key)
        self.views = Views(self.fleet, self.index)

    @property
    def freshness(self) -> Freshness:
        return self.fleet.view.freshness[self.replica.holders[0]]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
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


async def test_a_view_that_was_trimmed_for_the_byte_budget_is_partial_until_it_begins_anew() -> None:
    """FC-05: credit of a view that lacks blocks is a lower bound, and policies know it."""
    house = House(budget_bytes=1 << 20)
    house.index.work_on(FlatTree(CompiledTree(huge_pages=False)))
    while house.index.move():
        pass
    holder = house.replica.holders[0]
    with engine() as publisher:
        await house.views.follow(house.replica, SETTINGS, facts(publisher))
        await house.until(lambda: house.freshness is Freshness.LIVE)
        for number in range(30):
            chain = tuple(range(1000 * number + 1, 1000 * number + 801))
            publisher.publish([Stored(chain, None, as_tokens(range(number, number + 800 * 32)), 32)])
        await house.until(lambda: house.index.trimmed(holder) > 0)
        house.views.refresh()
        assert house.freshness is Freshness.PARTIAL
        house.index.clear(holder)
        house.views.refresh()
        assert house.freshness is Freshness.LIVE
    await house.views.stop()


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


async def test_a_replica_that_sleeps_holds_nothing_and_its_stream_goes_on(house: House) -> None:
    """FC-11, case 2: nothing is published and nothing is replayed; what it stores after it woke is believed."""
    with engine() as publisher:
        await house.views.follow(house.replica, SETTINGS, facts(publisher))
        await house.until(lambda: house.index.stats().blocks == 1 and house.freshness is Freshness.LIVE)
        other = house.index.holder("other", 0)
        house.index.apply(other, Batch(0, 0, 0.0, (Stored((1,), None, as_tokens(range(32)), 32),)))
        house.views.emptied(house.replica)
        assert (house.freshness, house.index.stats().blocks) == (Freshness.LIVE, 1)
        publisher.publish([Stored((2,), None, as_tokens(range(32)), 32)])
        await house.until(lambda: house.index.stats().blocks == 2)
        stream = house.views.stream(house.replica.holders[0])
        assert stream is not None
        assert (house.index.blocks(house.replica.holders[0]), stream.counts.replays, house.freshness) == (1, 1, Freshness.LIVE)


async def test_a_dead_replica_holds_nothing(house: House) -> None:
    """FC-11: health says it died; its credit is gone at once."""
    with engine() as publisher:
        await house.views.follow(house.replica, SETTINGS, facts(publisher))
        await house.until(lambda: house.index.stats().blocks == 1)
        house.views.suspect(house.replica)
        assert house.index.stats().blocks == 0


POLLED = Facts(("m",), repeats_stores=True, has_queue=True, queue_block_tokens=BLOCK)


async def test_a_replica_that_only_has_a_queue_is_polled_once_for_all_its_ranks() -> None:
    """FC-21: and its removals count at once, however often a block was named (edge case 17)."""
    async with FakeQueue() as queue:
        house = House(queue.url.removesuffix("/kv_cache_events"), ranks=2, api_key="secret")
        for rank in (0, 1):
            queue.tell(created(), rank=rank)
            queue.tell(stored(0, count=2), rank=rank)
        queue.tell(stored(0), rank=1)
        await house.views.follow(house.replica, SETTINGS, POLLED)
        await house.until(lambda: house.index.stats().blocks == 4)
        assert [house.fleet.view.freshness[holder] for holder in house.replica.holders] == [Freshness.LIVE, Freshness.LIVE]
        assert (queue.headers[0]["authorization"], house.views.unheard(house.replica)) == ("Bearer secret", False)
        streams = [house.views.stream(holder) for holder in house.replica.holders]
        later = Facts(("m",), repeats_stores=True, has_queue=True, queue_block_tokens=2 * BLOCK)
        await house.views.follow(house.replica, SETTINGS, later)
        assert [house.views.stream(holder) for holder in house.replica.holders] == streams
        queue.tell(removed(0, 1), rank=1)
        await house.until(lambda: house.index.stats().blocks == 2)
        await house.views.unfollow(house.replica)
        assert not any(task.get_name().startswith("poll ") for task in asyncio.all_tasks())
        await house.views.stop()


async def test_a_queue_may_be_configured_and_gets_no_key_of_somebody_else() -> None:
    async with FakeQueue() as queue:
        house = House("http://127.0.0.1:1", api_key="secret")
        settings = ReplicaSettings(url="http://127.0.0.1:1", events=queue.url.removesuffix("/kv_cache_events"))
        queue.tell(created())
        queue.tell(stored(0))
        await house.views.follow(house.replica, settings, Facts(("m",)))
        await house.until(lambda: house.freshness is Freshness.LIVE and house.index.stats().blocks == 1)
        assert "authorization" not in queue.headers[0]
        queue.tell(stored(0))
        queue.tell(removed(0))
        await house.until(lambda: house.index.stats().blocks == 0)
        house.views.suspect(house.replica)
        assert house.freshness is Freshness.COLD
        await house.views.stop()
