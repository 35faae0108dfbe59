"""One relay writes a rank's stream; a second one waits, and one that was out of it is kept out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from events.errors import Fenced
from events.relay.relay import Relay
from events.relay.store import Place, RankStore, WriterGone, WritesLost, connect
from events.relay.target import Target
from events.types import Freshness
from tests.events.followed import send_chain
from tests.events.relay.relayed import NAME, PACE, STREAM_TIMES, agree, joined, line, relaying, straight
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.redis_server import RedisServer


@pytest.fixture
async def store(redis: RedisServer) -> AsyncIterator[RankStore]:
    client: Redis = connect(Place(redis.url))
    yield RankStore(client, "trunkline", NAME, 0)
    await client.aclose()


async def add(store: RankStore, token: str, number: int, epoch: bytes = b"e", snapshot: bytes = b"") -> bytes:
    return await store.append(token, 500, epoch, number, b"entry", Freshness.LIVE, snapshot=snapshot, keep=100)


async def test_a_second_relay_waits_and_takes_over_when_the_first_one_ends(redis: RedisServer) -> None:
    place = Place(redis.url)
    async with (
        FakePublisher() as engine,
        joined(place) as one,
        straight(engine) as other,
        relaying(place, engine, name="first") as first,
    ):
        await until(one.is_(Freshness.LIVE))
        async with relaying(place, engine, name="second") as second:
            await send_chain(engine, range(5))
            await agree(one, other, blocks=5)
            await until(lambda: line(second)[0].blocks == 5)
            assert (first.writing, second.writing) == (True, False)
            first.end()
            await until(lambda: second.writing)
            await send_chain(engine, range(5, 8))
            await agree(one, other, blocks=8)


async def test_a_relay_that_was_believed_dead_stops_and_changes_nothing(redis: RedisServer) -> None:
    place = Place(redis.url)
    async with FakePublisher() as engine, joined(place) as one, straight(engine) as other:
        targets = [Target(NAME, engine.endpoint, engine.replay, topic="kv")]
        first = Relay(targets, place, pace=PACE, name="first", times=STREAM_TIMES)
        task = asyncio.get_running_loop().create_task(first.run())
        await until(lambda: first.writing)
        first.lines[0].outlet._pace = type(PACE)(batch_s=0, lease_s=60)  # it sleeps: no beat for a minute
        first.lines[0].outlet._beat_at += 60
        async with relaying(place, engine, name="second") as second:
            await until(lambda: second.writing)
            await send_chain(engine, range(5))
            with pytest.raises(Fenced, match="relay second writes r/0 now"):
                await task
            await agree(one, other, blocks=5)


async def test_only_the_newest_writer_is_obeyed(store: RankStore) -> None:
    assert await store.acquire("a", "relay a", 60_000) is None
    await add(store, "a", 0, snapshot=b"s")
    other = await store.acquire("b", "relay b", 60_000)
    assert other is not None
    assert other[0] == "relay a"
    assert 0 < other[1] <= 60
    await store.beat("a", 0)
    assert await store.acquire("b", "relay b", 60_000) is None
    state = await store.state()
    assert state is not None
    assert state.id is None  # of its own it has written nothing yet
    for write in (add(store, "a", 1), store.save("a", b"e", 0, b"1-0", b"x", 5), store.beat("a", 500)):
        with pytest.raises(Fenced, match="relay b writes r/0"):
            await write
    assert len(await store.read(b"0-0", 10, 1)) == 1
    saved = await store.saved()
    assert saved is not None
    assert saved.data == b"s"


async def test_an_entry_sent_twice_is_there_once(store: RankStore) -> None:
    """Its first answer may have been lost."""
    await store.acquire("a", "relay a", 60_000)
    await add(store, "a", 0, snapshot=b"s")
    assert await add(store, "a", 1) == await add(store, "a", 1)
    assert len(await store.read(b"0-0", 10, 1)) == 2


@pytest.mark.parametrize("loss", ["number", "epoch", "stream", "snapshot", "tail", "foreign"])
async def test_entries_are_not_added_behind_a_hole(store: RankStore, loss: str) -> None:
    await store.acquire("a", "relay a", 60_000)
    first = await add(store, "a", 0, snapshot=b"s")
    await add(store, "a", 1)
    client = store._client
    if loss in ("stream", "snapshot"):
        await client.delete(getattr(store, loss))
    elif loss == "tail":
        entries = await client.xrevrange(store.stream, count=1)
        await client.xdel(store.stream, entries[0][0])
    elif loss == "foreign":
        await client.xadd(store.stream, {"e": b"x"})
    number, epoch = (3 if loss == "number" else 2), (b"f" if loss == "epoch" else b"e")
    with pytest.raises(WritesLost):
        await add(store, "a", number, epoch)
    assert first


async def test_an_emptied_server_knows_no_writer(store: RankStore) -> None:
    for write in (add(store, "a", 1), store.save("a", b"e", 0, b"1-0", b"x", 5), store.beat("a", 500)):
        with pytest.raises(WriterGone):
            await write


async def test_a_snapshot_of_an_epoch_that_is_over_is_not_kept(store: RankStore) -> None:
    await store.acquire("a", "relay a", 60_000)
    await add(store, "a", 0, epoch=b"new", snapshot=b"s")
    with pytest.raises(WritesLost):
        await store.save("a", b"old", 5, b"1-0", b"x", 5)


async def test_names_that_look_alike_have_keys_of_their_own(redis: RedisServer) -> None:
    client = connect(Place(redis.url))
    names = [("a", 1), ("a/1", 1), ("a}", 1), ("a%2F1", 1), ("a", 11)]
    keys = [RankStore(client, "p", name, rank).stream for name, rank in names]
    assert len(set(keys)) == len(keys)
    assert all(key.count("{") == key.count("}") == 1 for key in keys)
    await client.aclose()
