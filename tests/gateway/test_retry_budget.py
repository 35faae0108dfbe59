"""Retries over sockets: bounded for all requests together, and what the client is told when there are none left."""

from __future__ import annotations

from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import running, settings
from tests.fakes.engine import Call, FakeEngine, always, answer
from tests.fakes.placer import FakePlacer, replica_at

OK = answer(b'{"ok":true}')
ONE = settings(resilience={"retries": {"floor_per_s": 0.0, "share": 0.01}})  # the bucket holds one retry, and fills slowly


async def resets(call: Call) -> None:
    call.reset()


async def test_when_the_budget_is_spent_the_client_is_told_why() -> None:
    async with FakeEngine(resets) as bad, FakeEngine(always(OK)) as good:
        placer = FakePlacer([replica_at(bad.port), replica_at(good.port, "r2")])
        async with running(placer, given=ONE) as it, RawClient(it.port) as client:
            await client.send(post(CHAT))
            assert (await client.answer(within_s=20)).status == 200
            await client.send(post(CHAT))
            told = await client.answer(within_s=20)
            assert (told.status, told.json()["error"]["code"]) == (502, "retry_budget")
            assert told.values(b"retry-after")
            assert (it.counts.retries, it.plane.retries.denied) == (1, 1)


async def test_an_engines_full_passes_when_the_budget_is_spent() -> None:
    """FC-31."""
    full = answer(b'{"full":1}', b"429 Too Many", b"Retry-After: 7\r\n")
    async with FakeEngine(always(full)) as busy, FakeEngine(always(OK)) as good:
        placer = FakePlacer([replica_at(busy.port), replica_at(good.port, "r2")])
        async with running(placer, given=ONE) as it, RawClient(it.port) as client:
            await client.send(post(CHAT))
            assert (await client.answer(within_s=20)).status == 200
            await client.send(post(CHAT))
            told = await client.answer(within_s=20)
            assert (told.status, told.body, told.values(b"retry-after")) == (429, b'{"full":1}', [b"7"])


async def test_a_kept_connection_that_was_closed_takes_nothing_from_the_budget() -> None:
    """FC-34."""

    async def once(call: Call) -> None:
        if sum(other.connection == call.connection for other in engine.calls) > 1:
            call.reset()
        else:
            await call.send(OK)

    async with FakeEngine(once) as engine, running(FakePlacer([replica_at(engine.port)]), given=ONE) as it:
        async with RawClient(it.port) as client:
            for _ in range(6):
                await client.send(post(CHAT))
                assert (await client.answer(within_s=20)).status == 200
        assert it.plane.retries.taken == 0
        assert it.counts.retries >= 2


async def test_a_retry_that_finds_no_other_replica_takes_nothing() -> None:
    async with (
        FakeEngine(resets) as bad,
        running(FakePlacer([replica_at(bad.port)]), given=ONE) as it,
        RawClient(it.port) as client,
    ):
        for _ in range(3):
            await client.send(post(CHAT))
            told = await client.answer(within_s=20)
            assert (told.status, told.json()["error"]["code"]) == (502, "engine_unreachable")
        assert (it.plane.retries.taken, it.plane.retries.denied) == (0, 0)
