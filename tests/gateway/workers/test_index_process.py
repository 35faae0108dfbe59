"""The index process's side of the line, with real workers' links, all in one process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from unittest.mock import Mock

import pytest

from events.types import Batch
from gateway.choose.rates import Rates
from gateway.config import Settings
from gateway.fleet import Address, Fleet, Load
from gateway.workers.index_process import IndexProcess
from gateway.workers.link import SharedKnowledge
from gateway.workers.remote_views import RemoteViews
from gateway.workers.wire import knock, new_door
from tests.radix.build import BASE, store, tokens_of

pytestmark = pytest.mark.xdist_group("compiled")


class Worker:
    """A worker without its data plane."""

    def __init__(self, knowledge: SharedKnowledge) -> None:
        self.index = knowledge.index
        self.fleet = Fleet(self.index, Rates())
        self.views: RemoteViews = knowledge.views(self.fleet)
        self.replica = self.fleet.add("a", Address.parse("http://127.0.0.1:1"), dialect="openai")
        self.fleet.learn_models(self.replica, ("m",))
        self.task = asyncio.create_task(knowledge.keep())

    @property
    def in_flight(self) -> int:
        return self.fleet.view.in_flight[0]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


class House:
    """An index process that knows replica `a`, and its workers."""

    def __init__(self) -> None:
        self.inside, self.outside = new_door()
        self.process = IndexProcess(Settings(), self.inside)
        fleet = self.process.gateway.fleet
        self.holder = fleet.add("a", Address.parse("http://127.0.0.1:1"), dialect="openai").holders[0]
        fleet.learn_models(fleet.replicas["a"], ("m",))
        self.workers = [Worker(SharedKnowledge(self.outside)) for _ in range(2)]
        self.task = asyncio.create_task(self.process.keep())

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for worker in self.workers:
            await worker.end()
        self.task.cancel()
        await asyncio.wait([self.task])
        memory = self.process._tree.compiled.memory.handle
        assert memory is not None
        os.close(memory)
        for side in (self.inside, self.outside):
            side.close()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    await house.until(lambda: all(worker.index.reads for worker in house.workers))
    yield house
    await house.close()


def cached(worker: Worker, hashes: list[int]) -> int:
    """Cached blocks as a worker sees them."""
    return worker.index.match(BASE, tokens_of(hashes)).tokens(0) // 4


async def test_all_workers_read_what_is_written(house: House) -> None:
    house.process.index.apply(house.holder, Batch(0, 0, 0.0, (store([1, 2, 3]),)))
    await house.until(lambda: all(cached(worker, [1, 2, 3]) == 3 for worker in house.workers))
    assert list(house.workers[0].fleet.view.block_tokens) == [4]


async def test_each_worker_hears_what_the_others_gave_to_replicas(house: House) -> None:
    first, second = house.workers
    first.fleet.load(0, requests=2, queued_tokens=300)
    await house.until(lambda: second.in_flight == 2)
    second.fleet.load(0, requests=1, decoding=1)
    await house.until(lambda: first.in_flight == 3)
    assert list(first.fleet.view.decode_load) == [1]
    assert (first.fleet.own_load(0), second.fleet.own_load(0)) == (Load(2, 300, 0), Load(1, 0, 1))
    await first.end()
    await house.until(lambda: second.in_flight == 1)


async def test_what_workers_answered_reaches_the_streams(house: House) -> None:
    """FC-05."""
    views = house.process.gateway.views
    views.answered = Mock()  # type: ignore[method-assign]
    house.process.gateway.fault = Mock()  # type: ignore[method-assign]
    house.workers[0].views.answered(0, 70)
    house.workers[1].views.suspect(house.workers[1].replica)
    await house.until(lambda: views.answered.called and house.process.gateway.fault.called)  # type: ignore[attr-defined]
    views.answered.assert_called_once_with(house.holder, 70)
    house.process.gateway.fault.assert_called_once_with(house.process.gateway.fleet.replicas["a"])


async def test_one_that_talks_nonsense_or_left_early_disturbs_nobody(house: House) -> None:
    (await knock(house.outside)).close()
    visitor = await knock(house.outside)
    reader, writer = await asyncio.open_connection(sock=visitor)
    writer.write(b"\xff\xff\xff\xff")
    async with asyncio.timeout(10):
        await reader.read()  # to its end
    writer.close()
    house.workers[0].fleet.load(0, requests=1)
    await house.until(lambda: house.workers[1].in_flight == 1)
