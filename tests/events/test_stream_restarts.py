"""An engine that comes back, as itself or as another process, over loopback sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from events.decode import decode
from events.types import Freshness
from events.zmq_source import Arrival, ZmqSource
from radix import Index
from tests.events.followed import BLOCK, TIMES, following, live, send_chain
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.wire import batch, chain


@pytest.mark.parametrize("replay", [True, False])
async def test_a_restart_on_the_same_port_leaves_only_the_new_blocks(replay: bool) -> None:
    """FC-03, FC-21: the view of this rank is built anew; another rank and another replica keep theirs."""
    async with FakePublisher(replay=replay) as publisher, following(publisher) as followed:
        others = [followed.index.holder("r", 1, model="m"), followed.index.holder("s", 0, model="m")]
        await live(publisher, followed)
        for n in range(101):
            await publisher.send(n, batch(chain(1, BLOCK, first=n % 50)))
        await until(followed.has_batches(101))
        assert followed.depth() == 50
        for other in others:
            copy_view(followed.index, other)
        await publisher.restart()
        await publisher.subscribed()
        await until(lambda: followed.stream.connected)
        await publisher.send(0, batch(chain(1, BLOCK, salt=7)))
        await until(lambda: followed.depth(salt=7) == 1)
        await until(followed.is_(Freshness.LIVE))
        assert followed.depth() == 0
        assert sum(1 for _ in followed.index.dump(followed.holder)) == 1
        assert followed.stream.counts.restarts == 1
        assert [sum(1 for _ in followed.index.dump(other)) for other in others] == [2, 2]


def copy_view(index: Index, holder: int) -> None:
    """Give another holder two blocks of its own."""
    index.apply(holder, decode(batch(chain(2, BLOCK)), 0))


async def test_a_restart_that_shows_in_the_numbers_alone_is_noticed() -> None:
    """FC-03, edge case 5: no reconnect was seen, the numbers just start over (a proxy in between keeps the connection)."""
    async with FakePublisher(replay=False) as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(10))
        await until(followed.has_batches(10))
        await publisher.send(0, batch(chain(1, BLOCK, salt=7)))
        await until(followed.has_batches(11))
        assert (followed.blocks, followed.depth(salt=7)) == (1, 1)
        assert followed.stream.counts.restarts == 1
        assert followed.stream.freshness is Freshness.LIVE


async def test_a_restart_that_repeats_the_same_number_is_noticed() -> None:
    """FC-03: old and new process were both at batch 0; only the content differs."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await publisher.send(0, batch(chain(1, BLOCK)))
        await until(followed.has_batches(1))
        publisher.kept.clear()
        await publisher.send(0, batch(chain(2, BLOCK, salt=7)))
        await until(lambda: followed.depth(salt=7) == 2)
        assert followed.depth() == 0
        assert followed.stream.counts.restarts == 1


async def test_a_restart_that_has_already_passed_our_number_is_noticed() -> None:
    """FC-03, edge case 10: while we were away the new process published more than the old one; its content gives it away."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(5))
        await until(followed.has_batches(5))
        await publisher.down()
        for n in range(9):
            await publisher.send(n, batch(chain(1, BLOCK, first=n, salt=5000)), live=False)
        publisher.up()
        await until(lambda: followed.depth(salt=5000) == 9)
        await until(followed.is_(Freshness.LIVE))
        assert followed.depth() == 0
        assert followed.stream.counts.restarts == 1
        assert publisher.questions == [0, 4, 0]


@pytest.mark.parametrize("replay", [True, False])
async def test_old_batches_still_queued_after_a_restart_are_not_believed(monkeypatch: pytest.MonkeyPatch, replay: bool) -> None:
    """FC-03: the loop was busy while the engine sent more, died and came back; its last words are void."""
    arrivals, gate = ZmqSource.arrivals, asyncio.Event()
    gate.set()

    async def gated(self: ZmqSource, timeout_s: float | None = None) -> list[Arrival]:
        await gate.wait()
        return await arrivals(self, timeout_s)

    monkeypatch.setattr(ZmqSource, "arrivals", gated)
    async with FakePublisher(replay=replay) as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(5))
        await until(followed.has_batches(5))
        gate.clear()
        await send_chain(publisher, range(5, 905))  # one wait may be under way already and takes the first of these
        await until(lambda: followed.stream.counts.batches > 5)
        await publisher.restart()
        await publisher.subscribed()
        if replay:
            await publisher.send(0, batch(chain(1, BLOCK, salt=7)))
        gate.set()
        if replay:
            await until(lambda: followed.depth(salt=7) == 1)
            await until(followed.is_(Freshness.LIVE))
            assert followed.stream.counts.restarts == 1
        else:
            await until(lambda: followed.blocks == 0)
            await publisher.send(1, batch(chain(1, BLOCK, salt=9)))
            await until(lambda: followed.depth(salt=9) == 1)
            assert followed.stream.freshness is Freshness.PARTIAL
        assert (followed.blocks, followed.depth(), followed.stream.counts.gaps) == (1, 0, 0)


async def test_a_network_blink_keeps_the_view_and_fetches_what_was_missed() -> None:
    """FC-01: the same process is recognised by the newest batch we have; nothing is dropped or applied twice."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(5))
        await until(followed.has_batches(5))
        await send_chain(publisher, (5, 6), live=False)
        await publisher.blink()
        await until(followed.has_batches(7))
        await until(followed.is_(Freshness.LIVE))
        assert followed.depth() == 7
        assert followed.stream.counts.restarts == 0
        assert publisher.questions == [0, 4]


async def test_a_blink_without_replay_drops_the_view() -> None:
    """FC-03: nobody can say whether the engine came back as another one."""
    async with FakePublisher(replay=False) as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(5))
        await until(followed.has_batches(5))
        await publisher.blink()
        await publisher.subscribed()
        await until(lambda: followed.stream.connected and followed.blocks == 0)
        assert followed.stream.freshness is Freshness.PARTIAL
        await publisher.send(5, batch(chain(1, BLOCK, salt=7)))
        await until(lambda: followed.depth(salt=7) == 1)
        assert followed.stream.counts.restarts == 0
        assert followed.stream.freshness is Freshness.PARTIAL


async def test_suspecting_an_engine_drops_its_view_at_once_and_rebuilds_it() -> None:
    """FC-11: health says the process died; the credit is gone before anything else happens."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(3))
        await until(followed.has_batches(3))
        followed.stream.suspect()
        assert followed.blocks == 0
        assert followed.stream.freshness is Freshness.COLD
        await until(followed.is_(Freshness.LIVE))  # a false alarm: the same process gives everything again
        assert followed.depth() == 3


async def test_a_view_nobody_confirms_any_more_is_dropped() -> None:
    """FC-05, FC-11: the connection stays away; what we believe then may be long gone, so it goes after a while."""
    times = replace(TIMES, link_down_s=0.2)
    async with FakePublisher() as publisher, following(publisher, times=times) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(3))
        await until(followed.has_batches(3))
        await publisher.down()
        await until(followed.is_(Freshness.GAP))
        assert followed.blocks == 3
        await until(followed.is_(Freshness.COLD))
        assert followed.blocks == 0
        publisher.up()
        await until(followed.is_(Freshness.LIVE))
        await send_chain(publisher, range(2))
        await until(lambda: followed.depth() == 2)
