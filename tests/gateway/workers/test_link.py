"""How a worker gets on with an index process that dies, hangs, and comes back with nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from events.apply import Counts
from events.types import Batch, Freshness
from gateway.choose.rates import Rates
from gateway.config import ReplicaSettings
from gateway.fleet import Address, Fleet, Load
from gateway.health import Facts
from gateway.workers.index_process import added_up
from gateway.workers.link import IndexLink
from gateway.workers.remote_views import RemoteViews
from gateway.workers.wire import (
    TO_INDEX,
    Loads,
    Notes,
    RankLoad,
    StreamState,
    Told,
    framed,
    greet,
    new_door,
    next_message,
    next_visitor,
)
from radix.core.compiled import CompiledTree
from radix.core.layout import HEARTBEAT
from radix.core.memory import Memory
from radix.core.shared_matcher import SharedMatcher
from radix.directory import directory_of
from radix.flat import FlatTree
from radix.index import Index
from radix.shared import SharedIndex
from tests.radix.build import BASE, store, tokens_of

pytestmark = pytest.mark.xdist_group("compiled")

WARM = list(range(1, 9))


class Writer:
    """One life of an index process, without its process: replicas `a` and `b`, each with a view or none."""

    def __init__(self, *warm: str) -> None:
        self.tree = FlatTree(CompiledTree(shared=True, huge_pages=False))
        self.index = Index()
        self.index.work_on(self.tree)
        assert not self.index.move()
        self.heartbeat = self.tree.compiled.memory.words(HEARTBEAT, 1)
        self.fresh: dict[str, Freshness] = {}
        for name in ("a", "b"):
            self.index.holder(name, 0, model="m")
            self.fresh[name] = Freshness.COLD
        for name in warm:
            self.warm(name)
        assert self.tree.compiled.memory.handle is not None
        self.handle = self.tree.compiled.memory.handle

    def warm(self, name: str) -> None:
        """A replica's replay came."""
        self.index.apply(self.index.holder(name, 0), Batch(0, 0, 0.0, (store(WARM),)))
        self.fresh[name] = Freshness.LIVE

    def beat(self, now: float) -> None:
        self.heartbeat[0] = int(now * 1e9)

    def told(self) -> Told:
        states = [StreamState(name, 0, fresh.value, True, False, Counts()) for name, fresh in self.fresh.items()]
        return Told(directory_of(self.index, self.tree), states, self.index.stats())


@dataclass
class Worker:
    """A fleet of two replicas that reads what index processes write."""

    now: float = 1000.0
    index: SharedIndex = field(default_factory=SharedIndex)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.index, Rates())
        for name in ("a", "b"):
            replica = self.fleet.add(name, Address.parse("http://127.0.0.1:1"), dialect="openai")
            self.fleet.learn_models(replica, ("m",))
        self.views = RemoteViews(self.fleet)
        self.door = new_door()
        self.link = IndexLink(self.door[1], self.index, self.views, clock=lambda: self.now)

    def connect(self, writer: Writer) -> None:
        """What `IndexLink` does when it was greeted."""
        self.link.open(SharedMatcher(Memory(handle=writer.handle)))

    def cached(self) -> list[int] | None:
        """Cached blocks of both replicas; None when nothing is known."""
        match = self.index.match(BASE, tokens_of(WARM))
        return [int(depth) // 4 for depth in match.depth[:, 0]] if match.known else None

    def freshness(self) -> list[Freshness]:
        return self.fleet.view.freshness


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    for side in worker.door:
        side.close()


@pytest.fixture
def writers() -> Iterator[Callable[..., Writer]]:
    made: list[Writer] = []

    def new(*warm: str) -> Writer:
        made.append(Writer(*warm))
        made[-1].beat(1000.0)
        return made[-1]

    yield new
    for writer in made:
        os.close(writer.handle)


LIVE, GAP, COLD = Freshness.LIVE, Freshness.GAP, Freshness.COLD


def test_before_anybody_was_heard_requests_go_by_load(worker: Worker) -> None:
    assert (worker.cached(), worker.freshness(), worker.link.stale) == (None, [COLD, COLD], True)
    worker.link.check()
    assert worker.cached() is None


def test_what_is_told_is_what_policies_see(worker: Worker, writers: Callable[..., Writer]) -> None:
    writer = writers("a")
    worker.connect(writer)
    worker.link.hear(writer.told())
    assert (worker.cached(), worker.freshness(), worker.link.stale) == ([8, 0], [LIVE, COLD], False)
    assert list(worker.fleet.view.block_tokens) == [4, 0]
    writer.warm("b")
    worker.link.hear(writer.told())
    assert (worker.cached(), worker.freshness()) == ([8, 8], [LIVE, LIVE])


def test_a_dead_index_process_leaves_its_last_view_marked_stale(worker: Worker, writers: Callable[..., Writer]) -> None:
    writer = writers("a")
    worker.connect(writer)
    worker.link.hear(writer.told())
    worker.link.lost()
    assert (worker.cached(), worker.freshness(), worker.link.stale) == ([8, 0], [GAP, COLD], True)
    worker.now += 9.9
    worker.link.check()
    assert worker.cached() == [8, 0]
    worker.now += 0.2
    worker.link.check()
    assert (worker.cached(), worker.freshness()) == (None, [COLD, COLD])


def test_the_next_view_is_taken_once_it_knows_as_much(worker: Worker, writers: Callable[..., Writer]) -> None:
    writer = writers("a", "b")
    worker.connect(writer)
    worker.link.hear(writer.told())
    worker.link.lost()
    after = writers("b")
    worker.connect(after)
    worker.link.hear(after.told())
    assert (worker.cached(), worker.freshness()) == ([8, 8], [GAP, GAP]), "taken too early"
    after.warm("a")
    worker.link.hear(after.told())
    assert (worker.cached(), worker.freshness(), worker.link.stale) == ([8, 8], [LIVE, LIVE], False)
    after.index.clear(after.index.holder("a", 0))
    assert worker.cached() == [0, 8], "the old view is still read"


def test_the_next_view_is_taken_when_the_old_one_is_too_old(worker: Worker, writers: Callable[..., Writer]) -> None:
    """A replica that died together with the index process must not keep the new view away for ever."""
    writer = writers("a", "b")
    worker.connect(writer)
    worker.link.hear(writer.told())
    worker.link.lost()
    after = writers("b")
    worker.connect(after)
    worker.now += 10.1
    worker.link.check()
    worker.link.hear(after.told())
    assert (worker.cached(), worker.freshness()) == ([0, 8], [COLD, LIVE])


def test_an_index_process_that_hangs_is_stale_until_it_goes_on(worker: Worker, writers: Callable[..., Writer]) -> None:
    writer = writers("a")
    worker.connect(writer)
    worker.link.hear(writer.told())
    worker.now += 1.9
    worker.link.check()
    assert worker.freshness() == [LIVE, COLD]
    worker.now += 0.2
    worker.link.check()
    assert (worker.cached(), worker.freshness(), worker.link.stale) == ([8, 0], [GAP, COLD], True)
    writer.beat(worker.now)
    worker.link.check()
    assert (worker.freshness(), worker.link.stale) == ([LIVE, COLD], False)


def test_one_that_hung_for_long_is_believed_again_when_it_speaks(worker: Worker, writers: Callable[..., Writer]) -> None:
    writer = writers("a")
    worker.connect(writer)
    worker.link.hear(writer.told())
    worker.now += 12
    worker.link.check()
    assert (worker.cached(), worker.link.stale) == (None, True)
    writer.beat(worker.now)
    worker.link.hear(writer.told())
    assert (worker.cached(), worker.freshness(), worker.link.stale) == ([8, 0], [LIVE, COLD], False)


async def test_ranks_and_replicas_come_and_go(worker: Worker, writers: Callable[..., Writer]) -> None:
    """FC-21: a replica that tells of several ranks has as many holders, in each worker."""
    replica = worker.fleet.replicas["a"]
    sources: dict[int, tuple[str, str | None]] = {rank: (f"tcp://127.0.0.1:{rank + 1}", None) for rank in range(2)}
    await worker.views.follow(replica, ReplicaSettings(url="http://127.0.0.1:1"), Facts(event_sources=sources))
    assert len(replica.holders) == 2
    writer = writers("a")
    worker.connect(writer)
    worker.link.hear(writer.told())
    assert [name for name, _, _ in worker.views.streams()] == ["a", "b"]
    stream = worker.views.stream(replica.holders[0])
    assert stream is not None
    assert stream.freshness == "live"
    assert worker.views.stream(replica.holders[1]) is None
    await worker.views.unfollow(replica)
    worker.fleet.remove("a")
    assert [name for name, _, _ in worker.views.streams()] == ["b"]
    assert not worker.views.unheard(worker.fleet.replicas["b"])


@pytest.fixture
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """A worker whose link runs."""
    task = asyncio.create_task(worker.link.run())
    yield worker
    task.cancel()
    await asyncio.wait([task])


async def test_over_sockets_notes_come_together_and_the_next_process_is_found(
    running: Worker, writers: Callable[..., Writer]
) -> None:
    """FC-05: what was answered is told to whoever follows the events; and loads go both ways."""
    running.fleet.load(1, requests=1, queued_tokens=50)
    for _ in range(2):
        writer = writers("a")
        visitor = await next_visitor(running.door[0])
        greet(visitor, writer.handle)
        reader, out = await asyncio.open_connection(sock=visitor)
        out.write(framed(writer.told()))
        async with asyncio.timeout(20):
            while running.link.stale:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            assert await next_message(reader, TO_INDEX) == Notes(loads=[RankLoad("b", 0, 1, 50, 0)])
        running.views.answered(0, 100)
        running.views.answered(0, 300)
        running.views.answered(0, 200)
        running.views.answered(1, 0)
        running.views.suspect(running.fleet.replicas["b"])
        async with asyncio.timeout(20):
            assert await next_message(reader, TO_INDEX) == Notes([("a", 0, 300)], ["b"])
        out.write(framed(Loads([RankLoad("a", 0, 3, 70, 2), RankLoad("b", 0, 2, 0, 0), RankLoad("gone", 0, 9, 9, 9)])))
        async with asyncio.timeout(20):
            while list(running.fleet.view.in_flight) != [3, 3]:
                await asyncio.sleep(0.01)
        assert (list(running.fleet.view.queued_tokens), list(running.fleet.view.decode_load)) == ([70, 50], [2, 0])
        assert running.fleet.own_load(1) == Load(1, 50, 0)
        out.close()
        async with asyncio.timeout(20):
            while not running.link.stale:
                await asyncio.sleep(0.01)
        assert list(running.fleet.view.in_flight) == [0, 1], "loads of workers nobody tells of any more"
    assert running.link.connections == 2


async def test_nonsense_from_the_index_process_ends_the_connection_only(running: Worker, writers: Callable[..., Writer]) -> None:
    writer = writers("a")
    visitor = await next_visitor(running.door[0])
    greet(visitor, writer.handle)
    _, out = await asyncio.open_connection(sock=visitor)
    out.write(b"\x01\x00\x00\x00\xc1")
    async with asyncio.timeout(20):
        (await next_visitor(running.door[0])).close()
    out.close()


def test_loads_of_several_workers_add_up() -> None:
    one = [RankLoad("b", 0, 1, 10, 1), RankLoad("a", 0, 1, 5, 0)]
    two = [RankLoad("b", 0, 2, 20, 0), RankLoad("b", 1, 1, 1, 1)]
    assert added_up([one, two]) == [RankLoad("a", 0, 1, 5, 0), RankLoad("b", 0, 3, 30, 1), RankLoad("b", 1, 1, 1, 1)]
    assert added_up([]) == []
