"""A gateway behind a relay knows what one that listens to the engine knows."""

from __future__ import annotations

import pytest

from events.relay.outlet import Pace
from events.relay.store import Place
from events.types import Freshness
from tests.events.followed import send_chain
from tests.events.relay.relayed import PACE, agree, joined, line, relaying, straight
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.redis_server import RedisServer
from tests.fakes.wire import CLEARED, batch, chain, removed


@pytest.mark.parametrize("by", ["port", "socket"])
async def test_by_relay_and_directly_lead_to_the_same_view(redis: RedisServer, by: str) -> None:
    place = Place(redis.url if by == "port" else redis.unix_url)
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one, straight(engine) as other:
        await agree(one, other, blocks=0)
        await send_chain(engine, range(20), live=False)
        await send_chain(engine, range(20, 30))
        await agree(one, other, blocks=30)
        await engine.send(30, batch(removed(30, 29), chain(3, 4, salt=1000)))
        await agree(one, other, blocks=31)
        assert one.stream.connected
        assert one.stream.counts.events > 0


async def test_a_gateway_that_joins_late_starts_from_the_snapshot(redis: RedisServer) -> None:
    """FC-02: and not from nothing, though the engine forgot what it had sent."""
    place = Place(redis.url)
    async with (
        FakePublisher() as engine,
        relaying(place, engine, pace=Pace(batch_s=0, snapshot_entries=5, keep_entries=2)) as relay,
    ):
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        await send_chain(engine, range(40))
        await until(lambda: line(relay)[0].blocks == 40 and line(relay)[1].counts.snapshots > 2)
        engine.kept.clear()
        async with joined(place) as late:
            await until(late.is_(Freshness.LIVE))
            assert late.blocks == 40
            await send_chain(engine, range(40, 43))
            await until(lambda: late.blocks == 43)


async def test_several_gateways_share_one_relay_and_agree(redis: RedisServer) -> None:
    place = Place(redis.url, prefix="other-fleet")
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one, joined(place) as two:
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        await send_chain(engine, range(10))
        async with joined(place) as three:
            await agree(one, two, three, blocks=10)


async def test_an_engine_that_restarts_is_empty_for_everyone(redis: RedisServer) -> None:
    """FC-03: the old blocks are gone before the first new one is seen."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one:
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        await send_chain(engine, range(10))
        await until(lambda: one.blocks == 10)
        await engine.restart()
        await engine.send(0, batch(chain(2, 4, salt=5000)))
        async with straight(engine) as other:
            await agree(one, other, blocks=2)
        assert one.stream.counts.restarts >= 1


async def test_a_clear_empties_the_view(redis: RedisServer) -> None:
    """FC-11: case 1."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one:
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        await send_chain(engine, range(10))
        await engine.send(10, batch(CLEARED, chain(1, 4, salt=9000)))
        async with straight(engine) as other:
            await agree(one, other, blocks=1)


async def test_a_gap_that_nobody_can_fill_is_known_to_everyone(redis: RedisServer) -> None:
    """FC-01, FC-02: the view starts anew and says that it is partial."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one:
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        await send_chain(engine, range(5))
        await until(lambda: one.blocks == 5)
        engine.kept.clear()
        await engine.send(9, batch(chain(1, 4, salt=700)))
        await until(one.is_(Freshness.PARTIAL))
        await until(lambda: one.blocks == 1)
        async with joined(place) as late:
            await until(late.is_(Freshness.PARTIAL))
            assert late.digest == one.digest


async def test_a_gap_that_the_engine_fills_costs_gateways_nothing(redis: RedisServer) -> None:
    """FC-01: healed at the relay; no gateway has to start over."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one:
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        await send_chain(engine, range(5))
        await until(lambda: one.blocks == 5)
        snapshots_loaded = one.stream.counts.replays
        await send_chain(engine, range(5, 8), live=False)
        await send_chain(engine, range(8, 10))
        await until(lambda: one.blocks == 10)
        await until(one.is_(Freshness.LIVE))
        assert one.stream.counts.replays == snapshots_loaded
        assert line(relay)[0].freshness is Freshness.LIVE


async def test_replicas_have_streams_of_their_own(redis: RedisServer) -> None:
    """FC-03: one restarts, the other keeps its view."""
    place = Place(redis.url)
    async with (
        FakePublisher() as zero,
        FakePublisher() as one,
        relaying(place, zero, one),
        joined(place) as first,
        joined(place, name="r1") as second,
    ):
        await until(first.is_(Freshness.LIVE))
        await until(second.is_(Freshness.LIVE))
        await send_chain(zero, range(3))
        await send_chain(one, range(7))
        await until(lambda: (first.blocks, second.blocks) == (3, 7))
        await one.restart()
        await until(lambda: second.blocks == 0)
        assert first.blocks == 3


async def test_batches_are_put_together_and_a_change_of_trust_does_not_wait(redis: RedisServer) -> None:
    place = Place(redis.url)
    pace = Pace(batch_s=30, entry_batches=10, lease_s=0.5)
    async with FakePublisher() as engine, relaying(place, engine, pace=pace) as relay, joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        entries = line(relay)[1].counts.entries
        await send_chain(engine, range(10))
        await until(lambda: one.blocks == 10)
        await until(lambda: line(relay)[1].counts.entries - entries == 1)  # counted once Redis has confirmed it
        await send_chain(engine, range(10, 13))
        await until(lambda: line(relay)[0].pending == 3)
        assert one.blocks == 10
        await engine.blink()
        await until(lambda: one.blocks == 13)


async def test_a_view_beyond_its_bound_is_given_up_and_said_to_be_partial(redis: RedisServer) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine, max_blocks=20) as relay, joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await send_chain(engine, range(21))
        await until(one.is_(Freshness.PARTIAL))
        await until(lambda: one.blocks == 0)
        assert line(relay)[0].blocks == 0


async def test_an_engine_that_died_is_forgotten_until_its_relay_hears_one(redis: RedisServer) -> None:
    """FC-56: the view of the dead process is not read back from the stream."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine, pace=PACE) as relay, joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await send_chain(engine, range(5))
        await until(lambda: one.blocks == 5)
        await engine.down()
        one.stream.suspect()
        assert (one.blocks, one.stream.freshness) == (0, Freshness.COLD)
        seen: set[int] = set()
        await until(lambda: seen.add(one.blocks) is None and line(relay)[0].blocks == 0)
        assert seen == {0}
        engine.up()
        await until(one.is_(Freshness.LIVE))
        assert one.blocks == 0


async def test_an_engine_that_was_called_dead_by_mistake_is_believed_again(redis: RedisServer) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await send_chain(engine, range(5))
        await until(lambda: one.blocks == 5)
        one.stream.suspect()
        assert one.blocks == 0
        await until(lambda: one.blocks == 5)
        await until(one.is_(Freshness.LIVE))
