"""Connections to engines: which are used again, and which never."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.http1.engine_side import EngineConnection
from gateway.request import Outcome
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import running
from tests.fakes.engine import Call, FakeEngine, always, answer
from tests.fakes.placer import FakePlacer, replica_at

OK = answer(b'{"ok":true}')


async def ask(client: RawClient, **more: object) -> int:
    await client.send(post({**CHAT, **more}))
    return (await client.answer()).status


async def test_one_connection_serves_many_requests() -> None:
    async with FakeEngine(always(OK)) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        async with RawClient(it.port) as client:
            assert [await ask(client) for _ in range(5)] == [200] * 5
        async with RawClient(it.port) as client:
            assert await ask(client) == 200
        assert engine.connections == 1
        assert it.plane.idle_engine_connections == 1


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_connection_that_was_closed_at_reuse_is_replaced(how: str) -> None:
    """FC-34: no fault of the replica, nothing the client could see, once more on a new connection."""

    async def script(call: Call) -> None:
        if sum(other.connection == call.connection for other in engine.calls) > 1:
            getattr(call, how)()  # the request was read, then the connection dropped without a byte
            return
        await call.send(OK)

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        async with RawClient(it.port) as client:
            assert [await ask(client, n=number) for number in range(6)] == [200] * 6
        assert it.placer.outcomes == [Outcome.OK] * 6
        assert all(ticket.faults == [] for ticket in it.placer.tickets)
        assert it.counts.retries == 5
        assert [json.loads(call.body)["n"] for call in engine.calls] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


async def test_a_connection_the_engine_closed_when_idle_is_not_used() -> None:
    """FC-34: and how long the engine keeps them is learned from it."""

    async def script(call: Call) -> None:
        await call.send(OK)
        await asyncio.sleep(0.02)
        call.close()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        for number in range(3):
            assert await ask(client) == 200
            async with asyncio.timeout(20):
                while it.plane.idle_engine_connections:
                    await asyncio.sleep(0.005)
            assert engine.connections == number + 1
        assert it.counts.retries == 0
        pool = it.plane._pools.of(it.placer.replicas[0])
        assert pool._idle_s == 0.5


async def test_bytes_nobody_asked_for_end_a_connection() -> None:
    """What an engine sends unasked would be taken for the next answer."""

    async def script(call: Call) -> None:
        await call.send(OK)
        await asyncio.sleep(0.01)
        await call.send(answer(b'{"stale":true}'))

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        assert await ask(client) == 200
        async with asyncio.timeout(20):
            while it.plane.idle_engine_connections:
                await asyncio.sleep(0.005)
        await client.send(post(CHAT))
        assert (await client.answer()).json() == {"ok": True}
        assert engine.connections == 2


@pytest.mark.parametrize(
    "raw",
    [
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["HTTP/1.0", "connection: close", "bytes behind the end"],
)
async def test_some_connections_are_never_kept(raw: bytes) -> None:
    async with (
        FakeEngine(always(raw)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        for _ in range(2):
            await client.send(post(CHAT))
            assert (await client.answer()).json() == {"ok": True}
        assert engine.connections == 2
        assert it.plane.idle_engine_connections == 0


async def test_old_idle_connections_are_dropped() -> None:
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        assert await ask(client) == 200
        it.plane._pools.expire(asyncio.get_running_loop().time() + 3.9)
        assert it.plane.idle_engine_connections == 1
        it.plane._pools.expire(asyncio.get_running_loop().time() + 4.1)
        assert it.plane.idle_engine_connections == 0
        assert await ask(client) == 200
        assert engine.connections == 2


async def test_an_idle_connection_that_got_too_old_since_the_last_tick_is_not_taken() -> None:
    """FC-34."""
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        assert await ask(client) == 200
        it.plane._pools.of(it.placer.replicas[0])._idle[0].idle_since -= 4.1
        assert await ask(client) == 200
        assert engine.connections == 2


async def test_a_kept_connection_that_dies_in_mid_head_is_a_failure() -> None:
    """FC-34: an engine that had begun to answer was not just tidying up."""

    async def script(call: Call) -> None:
        if len(engine.calls) == 2:
            await call.send(OK[:9])
            call.close()
        else:
            await call.send(OK)

    async with FakeEngine(script) as engine, FakeEngine(always(OK)) as other:
        placer = FakePlacer([replica_at(engine.port), replica_at(other.port, "r2")])
        async with running(placer) as it, RawClient(it.port) as client:
            assert [await ask(client) for _ in range(2)] == [200, 200]
            assert placer.tickets[1].faults == ["r1"]
            assert (len(engine.calls), len(other.calls)) == (2, 1)


async def test_a_connection_whose_client_has_gone_is_kept_for_the_next() -> None:
    class Gone:
        failed = False

        def connected(self, connection: EngineConnection) -> bool:
            return False

        def connect_failed(self, error: Exception) -> None:
            self.failed = True

    async with FakeEngine(always(OK)) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        gone = Gone()
        it.plane._pools.of(it.placer.replicas[0]).open(gone)
        async with asyncio.timeout(20):
            while not it.plane.idle_engine_connections:
                await asyncio.sleep(0.005)
        async with RawClient(it.port) as client:
            assert await ask(client) == 200
        assert (engine.connections, gone.failed) == (1, False)


async def test_an_engine_that_answers_before_it_has_read_is_not_asked_again_on_that_connection() -> None:
    """What is left of the first request would stand in front of the second."""

    async def script(call: Call) -> None:
        await call.send(answer(b"{}", b"413 Too Large"))
        assert await call.left()

    async with (
        FakeEngine(script, reads_bodies=False) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        for _ in range(2):
            await client.send(post({**CHAT, "user": "x" * 20_000_000}))
            assert (await client.answer()).status == 413
        assert engine.connections == 2
        assert it.plane.idle_engine_connections == 0


async def test_a_full_engines_connection_is_kept_only_when_its_answer_came_whole() -> None:
    """FC-31: the rest of a refusal must not meet the next request."""
    refusal = answer(b'{"error":"queue full"}', b"503 Full")

    async def script(call: Call) -> None:
        await call.send(refusal[:-5])
        await asyncio.sleep(0.1)
        await call.send(refusal[-5:])

    async with FakeEngine(script) as busy, FakeEngine(always(OK)) as free:
        placer = FakePlacer([replica_at(busy.port), replica_at(free.port, "r2")])
        async with running(placer) as it, RawClient(it.port) as client:
            for _ in range(3):
                assert await ask(client) == 200
            assert (busy.connections, len(free.calls)) == (3, 3)
            assert it.placer.outcomes == [Outcome.OK] * 3


async def test_a_replica_that_left_keeps_no_connections() -> None:
    """FC-14."""
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        assert await ask(client) == 200
        it.plane.forget("r1")
        assert it.plane.idle_engine_connections == 0
        async with asyncio.timeout(20):
            while engine.open:
                await asyncio.sleep(0.005)


async def test_a_request_that_outlives_its_replica_leaves_no_connection() -> None:
    """FC-14."""
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await go_on.wait()
        await call.send(OK)

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        await client.send(post(CHAT))
        async with asyncio.timeout(20):
            while not engine.calls:
                await asyncio.sleep(0.005)
            it.plane.forget("r1")
            go_on.set()
            assert (await client.answer()).status == 200
            while engine.open:
                await asyncio.sleep(0.005)


async def test_another_replica_of_the_same_name_gets_connections_of_its_own() -> None:
    async with FakeEngine(always(OK)) as first, FakeEngine(always(OK)) as second:
        async with running(FakePlacer([replica_at(first.port)])) as it, RawClient(it.port) as client:
            assert await ask(client) == 200
            it.placer.replicas = [replica_at(second.port)]
            assert await ask(client) == 200
        assert (len(first.calls), len(second.calls)) == (1, 1)
