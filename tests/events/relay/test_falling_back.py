"""Without a relay a gateway listens to the engine itself, where it knows how; else it says that it does not know."""

from __future__ import annotations

import asyncio

from events.relay.store import Place
from events.types import Freshness
from tests.events.followed import send_chain
from tests.events.relay.relayed import agree, joined, relaying, straight
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.redis_server import RedisServer


async def test_a_gateway_listens_to_the_engine_while_no_relay_writes(redis: RedisServer) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, joined(place, direct=engine) as one, straight(engine) as other:
        async with relaying(place, engine):
            await agree(one, other, blocks=0)
            await send_chain(engine, range(5))
            await agree(one, other, blocks=5)
            assert one.stream.relayed  # type: ignore[attr-defined]
            relayed_events = one.stream.counts.events
        await until(lambda: not one.stream.relayed)  # type: ignore[attr-defined]
        await engine.subscribed()
        await agree(one, other, blocks=5)
        await send_chain(engine, range(5, 9))
        await agree(one, other, blocks=9)
        assert one.stream.connected
        direct_events = one.stream.counts.events
        assert direct_events > relayed_events
        async with relaying(place, engine):
            await until(lambda: one.stream.relayed)  # type: ignore[attr-defined]
            await send_chain(engine, range(9, 12))
            await agree(one, other, blocks=12)
            assert one.stream.counts.events >= direct_events


async def test_a_gateway_that_never_saw_a_relay_listens_to_the_engine(redis: RedisServer) -> None:
    async with FakePublisher() as engine, joined(Place(redis.url), direct=engine) as one, straight(engine) as other:
        await engine.subscribed()
        await send_chain(engine, range(3))
        await until(lambda: one.blocks == 3)
        await agree(one, other)


async def test_so_it_does_while_redis_cannot_be_reached() -> None:
    place = Place("redis://127.0.0.1:1")
    async with FakePublisher() as engine, joined(place, direct=engine) as one:
        await engine.subscribed()
        await send_chain(engine, range(3))
        await until(lambda: one.blocks == 3)
        await until(one.is_(Freshness.LIVE))


async def test_without_another_way_the_view_is_marked_and_then_given_up(redis: RedisServer) -> None:
    """FC-05: a view that nobody confirms is not believed for long."""
    place = Place(redis.url)
    async with FakePublisher() as engine, joined(place) as one:
        async with relaying(place, engine):
            await until(one.is_(Freshness.LIVE))
            await send_chain(engine, range(5))
            await until(lambda: one.blocks == 5)
        await until(one.is_(Freshness.GAP))
        assert one.blocks == 5
        await until(one.is_(Freshness.COLD))
        assert one.blocks == 0
        assert not one.stream.connected
        async with relaying(place, engine):
            await until(lambda: one.blocks == 5)


async def test_stopping_while_it_listens_to_the_engine_ends_that_too(redis: RedisServer) -> None:
    async with FakePublisher() as engine, joined(Place(redis.url), direct=engine) as one:
        await until(lambda: not one.stream.relayed)  # type: ignore[attr-defined]
        await one.stream.stop()
        assert one.stream.relayed  # type: ignore[attr-defined]
        left = {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("events", "relayed"))}
        assert left == set()


async def test_prompts_that_should_have_stored_blocks_make_silence_known(redis: RedisServer) -> None:
    """FC-05: by the relay as by the engine's own socket."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        one.stream._applier._trust.grace_s = 0.0  # type: ignore[attr-defined]
        one.stream.note_answered(500)
        assert one.stream.freshness is Freshness.SILENT
        await send_chain(engine, range(2))
        await until(one.is_(Freshness.LIVE))


async def test_what_a_relay_left_long_ago_is_not_believed(redis: RedisServer) -> None:
    """FC-56: a snapshot whose relay is gone may be of an engine that is gone."""
    place = Place(redis.url)
    async with FakePublisher() as engine:
        async with relaying(place, engine), joined(place) as one:
            await until(one.is_(Freshness.LIVE))
            await send_chain(engine, range(5))
            await until(lambda: one.blocks == 5)
        async with joined(place) as late:
            await asyncio.sleep(0.2)  # several looks
            assert (late.blocks, late.stream.freshness) == (0, Freshness.COLD)


async def test_a_view_of_the_relay_goes_when_the_engine_cannot_be_heard_either(redis: RedisServer) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, FakePublisher() as unheard:
        await unheard.down()
        async with joined(place, direct=unheard) as one:
            async with relaying(place, engine):
                await until(one.is_(Freshness.LIVE))
                await send_chain(engine, range(5))
                await until(lambda: one.blocks == 5)
            await until(lambda: not one.stream.relayed)  # type: ignore[attr-defined]
            assert (one.blocks, one.stream.freshness) == (0, Freshness.COLD)
            assert not one.stream.connected
        unheard.up()
