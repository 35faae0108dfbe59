"""Requests that wait for room, over sockets and a real fleet."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress

import pytest

from gateway.config import Settings
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import FakeTokenizer, settings
from tests.fakes.engine import DONE, END, STREAM_HEAD, Call, FakeEngine, always, answer, chunk, event
from tests.fakes.fleet_plane import FleetPlane, fleet_plane

OK = answer(b'{"ok":true}')
WAITS = 20.0


class Gate:
    """An engine's script that answers a request when told."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(0)

    def open(self, requests: int = 1) -> None:
        for _ in range(requests):
            self._free.release()

    async def __call__(self, call: Call) -> None:
        await self._free.acquire()
        await call.send(OK)


def tight(**admission: object) -> Settings:
    return settings(admission={"rank_requests": 1, **admission}, resilience={"slow_start_s": None})


async def ask(stack: AsyncExitStack, it: FleetPlane, *, priority: int | None = None) -> RawClient:
    """A client whose request is sent."""
    client = await stack.enter_async_context(RawClient(it.port))
    await client.send(post(CHAT, fields=b"" if priority is None else b"x-trunkline-priority: %d\r\n" % priority))
    return client


async def test_a_request_waits_until_another_ends_and_never_overtakes() -> None:
    """FC-52: the line drains as load falls, first come first served."""
    gate = Gate()
    async with FakeEngine(gate) as engine, fleet_plane([engine.port], given=tight()) as it, AsyncExitStack() as stack:
        clients = []
        for number in range(4):
            clients.append(await ask(stack, it))
            await it.until(lambda n=number: (len(engine.calls), it.plane.desk.waiting) == (1, n))
        for number in range(4):
            gate.open()
            assert (await clients[number].answer(within_s=WAITS)).status == 200
        await it.until(lambda: it.loads == [(0, 0, 0)])


async def test_a_line_that_is_full_refuses_at_once_with_the_time_to_come_back() -> None:
    """FC-52."""
    gate = Gate()
    given = tight(waiting_requests=1)
    async with FakeEngine(gate) as engine, fleet_plane([engine.port], given=given) as it, AsyncExitStack() as stack:
        first = await ask(stack, it)
        await it.until(lambda: len(engine.calls) == 1)
        second = await ask(stack, it)
        await it.until(lambda: it.plane.desk.waiting == 1)
        third = await ask(stack, it)
        refused = await third.answer(within_s=WAITS)
        assert (refused.status, refused.json()["error"]["code"]) == (503, "line_full")
        assert int(refused.values(b"retry-after")[0]) >= 1
        assert it.counts.refused == {"line_full": 1}
        gate.open(2)
        assert [(await client.answer(within_s=WAITS)).status for client in (first, second)] == [200, 200]


async def test_tokens_bound_the_line_as_well() -> None:
    """FC-52: the arriving request's own count."""
    given = tight(waiting_tokens=9)  # a prompt has five
    gate = Gate()
    async with (
        FakeEngine(gate) as engine,
        fleet_plane([engine.port], given=given, tokenizer=FakeTokenizer()) as it,
        AsyncExitStack() as stack,
    ):
        first = await ask(stack, it)
        await it.until(lambda: len(engine.calls) == 1)
        second = await ask(stack, it)
        await it.until(lambda: it.plane.desk.waiting_tokens == 5)
        assert (await (await ask(stack, it)).answer(within_s=WAITS)).status == 503
        gate.open(2)
        assert [(await client.answer(within_s=WAITS)).status for client in (first, second)] == [200, 200]
        assert it.plane.desk.waiting_tokens == 0


async def test_queued_tokens_of_a_rank_bound_what_it_is_given() -> None:
    given = settings(admission={"rank_tokens": 10}, resilience={"slow_start_s": None})
    gate = Gate()
    async with (
        FakeEngine(gate) as engine,
        fleet_plane([engine.port], given=given, tokenizer=FakeTokenizer()) as it,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(RawClient(it.port)) for _ in range(3)]
        for client in clients:
            await client.send(post({**CHAT, "stream": True}))
        await it.until(lambda: (len(engine.calls), it.plane.desk.waiting) == (2, 1))
        gate.open(3)
        assert [(await client.answer(within_s=WAITS)).status for client in clients] == [200] * 3


async def test_urgent_requests_go_first_and_push_others_out() -> None:
    gate = Gate()
    given = tight(waiting_requests=2)
    async with FakeEngine(gate) as engine, fleet_plane([engine.port], given=given) as it, AsyncExitStack() as stack:
        first = await ask(stack, it)
        await it.until(lambda: len(engine.calls) == 1)
        usual = await ask(stack, it)
        await it.until(lambda: it.plane.desk.waiting == 1)
        low = await ask(stack, it, priority=-1)
        await it.until(lambda: it.plane.desk.waiting == 2)
        urgent = await ask(stack, it, priority=7)
        assert (await low.answer(within_s=WAITS)).status == 503
        gate.open()
        assert (await first.answer(within_s=WAITS)).status == 200
        gate.open()
        assert (await urgent.answer(within_s=WAITS)).status == 200
        gate.open()
        assert (await usual.answer(within_s=WAITS)).status == 200


async def test_who_waits_too_long_is_refused() -> None:
    gate = Gate()
    async with FakeEngine(gate) as engine, fleet_plane([engine.port], given=tight(wait_s=0.1)) as it, AsyncExitStack() as stack:
        first = await ask(stack, it)
        await it.until(lambda: len(engine.calls) == 1)
        refused = await (await ask(stack, it)).answer(within_s=WAITS)
        assert (refused.status, refused.json()["error"]["code"]) == (503, "line_timeout")
        assert refused.values(b"retry-after")
        gate.open()
        assert (await first.answer(within_s=WAITS)).status == 200


async def test_a_client_that_leaves_the_line_is_out_of_it_at_once() -> None:
    """FC-50: and nothing of it reaches an engine."""
    gate = Gate()
    async with FakeEngine(gate) as engine, fleet_plane([engine.port], given=tight()) as it, AsyncExitStack() as stack:
        first = await ask(stack, it)
        await it.until(lambda: len(engine.calls) == 1)
        leaving = await ask(stack, it)
        await it.until(lambda: it.plane.desk.waiting == 1)
        leaving.reset()
        async with asyncio.timeout(1):
            await it.until(lambda: it.plane.desk.waiting == 0)
        gate.open()
        assert (await first.answer(within_s=WAITS)).status == 200
        await it.until(lambda: it.loads == [(0, 0, 0)])
        assert len(engine.calls) == 1


async def test_those_who_wait_are_told_when_the_last_replica_goes_and_served_when_one_comes() -> None:
    """FC-33: 503 at once, not after the line's limit."""
    gate = Gate()
    async with (
        FakeEngine(gate) as engine,
        FakeEngine(always(OK)) as other,
        fleet_plane([engine.port, other.port], given=tight()) as it,
        AsyncExitStack() as stack,
    ):
        one, two = it.fleet.replicas.values()
        two.healthy = False
        it.fleet.refresh(two)
        await ask(stack, it)
        await it.until(lambda: len(engine.calls) == 1)
        served = await ask(stack, it)
        await it.until(lambda: it.plane.desk.waiting == 1)
        two.healthy = True
        it.fleet.refresh(two)
        assert (await served.answer(within_s=WAITS)).status == 200
        two.healthy = False
        it.fleet.refresh(two)
        told = await ask(stack, it)
        await it.until(lambda: it.plane.desk.waiting == 1)
        one.healthy = False
        it.fleet.refresh(one)
        assert (await told.answer(within_s=WAITS)).status == 503
        gate.open()


async def test_those_who_wait_for_a_replica_that_is_removed_are_told() -> None:
    gate = Gate()
    async with FakeEngine(gate) as engine, fleet_plane([engine.port], given=tight()) as it, AsyncExitStack() as stack:
        await ask(stack, it)
        await it.until(lambda: len(engine.calls) == 1)
        told = await ask(stack, it)
        await it.until(lambda: it.plane.desk.waiting == 1)
        it.fleet.remove("r0")
        assert (await told.answer(within_s=WAITS)).status == 503
        gate.open()


async def test_a_gateway_that_drains_lets_nobody_wait_beyond_its_limit() -> None:
    """FC-57."""
    gate = Gate()
    async with FakeEngine(gate) as engine, fleet_plane([engine.port], given=tight()) as it, AsyncExitStack() as stack:
        first = await ask(stack, it)
        await it.until(lambda: len(engine.calls) == 1)
        second = await ask(stack, it)
        await it.until(lambda: it.plane.desk.waiting == 1)
        await it.plane.drain(0.05)
        assert [(await client.answer(within_s=WAITS)).status for client in (first, second)] == [503, 503]
        assert (it.plane.desk.waiting, it.loads) == (0, [(0, 0, 0)])


async def test_less_urgent_requests_are_refused_while_the_loop_is_late() -> None:
    async with FakeEngine(always(OK)) as engine, fleet_plane([engine.port]) as it, AsyncExitStack() as stack:
        it.plane.desk.shedder.look(0.6, 0.6)
        low = await (await ask(stack, it, priority=-1)).answer(within_s=WAITS)
        assert (low.status, low.json()["error"]["code"]) == (503, "shedding")
        assert (await (await ask(stack, it)).answer(within_s=WAITS)).status == 200
        it.plane.desk.shedder.look(0.0, 0.0)
        assert (await (await ask(stack, it, priority=-1)).answer(within_s=WAITS)).status == 200


@pytest.mark.parametrize("hedge", [{}, {"after_s": 0.002}])
async def test_a_thousand_requests_aborted_anywhere_leave_nothing_behind(hedge: dict[str, float]) -> None:
    """FC-29: while queued, before the head, mid-stream, during a retry; all counters are zero at the end."""
    source = random.Random(7)

    async def script(call: Call) -> None:
        kind = source.randrange(6)
        if kind == 0:
            call.reset()
        elif kind == 1:
            await call.send(answer(b"{}", b"503 Full"))
        elif kind == 2:
            await call.send(answer(b"{}", b"500 Broken"))
        elif kind == 3:
            await call.send(STREAM_HEAD, chunk(event("a")))
            call.reset()
        else:
            await call.send(STREAM_HEAD, *(chunk(event("a")) for _ in range(3)))
            await asyncio.sleep(source.random() * 0.01)
            await call.send(chunk(DONE), END)

    given = settings(
        admission={"rank_requests": 4, "waiting_requests": 24, "wait_s": 0.05},
        resilience={"hedge": hedge, "breaker": {"open_s": 0.01}, "slow_start_s": 0.1},
    )
    async with FakeEngine(script) as one, FakeEngine(script) as two, FakeEngine(script) as three:
        ports = [one.port, two.port, three.port]
        async with fleet_plane(ports, given=given, tokenizer=FakeTokenizer()) as it:

            async def visit() -> None:
                async with RawClient(it.port) as client:
                    await client.send(
                        post({**CHAT, "stream": True}, fields=b"x-trunkline-priority: %d\r\n" % source.randrange(3))
                    )
                    with suppress(TimeoutError, ConnectionError):
                        await asyncio.wait_for(client.reader.read(source.choice((1, 200, 100_000))), source.random() * 0.03)
                    if source.random() < 0.5:
                        client.reset()

            for _ in range(25):
                await asyncio.gather(*(visit() for _ in range(40)))
                it.placer.guards.tick(it.placer.clock())
            await it.quiet()
            assert it.loads == [(0, 0, 0)] * 3
            assert (it.plane.desk.waiting, it.plane.desk.waiting_tokens, it.plane.budget.held) == (0, 0, 0)
            assert it.fleet.full == set()
            assert it.counts.internal_errors == 0
            it.placer.due.run(it.placer.clock() + 1000)
            it.placer.index.expire(it.placer.clock() + 1000)
            assert it.placer.index.stats().guesses == 0
