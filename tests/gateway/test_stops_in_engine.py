"""A request that ends before its answer stops in an engine that notices closed connections late, and no other one does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from replicas.mock.faults import Fault
from tests.fakes.client import RawClient, post
from tests.fakes.dataplane import Running, running, settings
from tests.fakes.mock_in_loop import EngineInLoop, mock_in_loop
from tests.fakes.placer import FakePlacer, replica_at

DEAF_S = 60.0
PROMPT = "Once upon a time"
LONG: dict[str, Any] = {"model": "m", "prompt": PROMPT, "max_tokens": 8000, "ignore_eos": True}
STREAM = {**LONG, "stream": True}
CHAT = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8000, "ignore_eos": True}


@pytest.fixture
async def engine() -> AsyncIterator[EngineInLoop]:
    async with mock_in_loop(dialect="sglang", max_running=2) as engine:
        engine.deaf(DEAF_S)
        yield engine


class House:
    """A data plane before an engine, and the clients that came."""

    def __init__(self, it: Running, engine: EngineInLoop, stack: AsyncExitStack) -> None:
        self.it = it
        self.engine = engine
        self._stack = stack

    async def ask(self, body: dict[str, Any], path: bytes = b"/v1/completions", fields: bytes = b"") -> RawClient:
        client = await self._stack.enter_async_context(RawClient(self.it.port))
        await client.send(post(body, path=path, fields=fields))
        return client

    async def bystander(self) -> RawClient:
        """Somebody else's request, which runs."""
        client = await self.ask(STREAM)
        await client.reader.readuntil(b"data: ")
        await self.engine.until(running=1)
        return client

    def aborts(self, result: str) -> int:
        return self.it.counts.engine_aborts.get(result, 0)


@asynccontextmanager
async def before(engine: EngineInLoop, **limits: float) -> AsyncIterator[House]:
    placer = FakePlacer([replica_at(engine.port, dialect=engine.engine.settings.dialect)])
    async with running(placer, given=settings(limits=limits)) as it, AsyncExitStack() as stack:
        yield House(it, engine, stack)


async def goes_on(client: RawClient) -> bool:
    """Its stream still brings new text and has not ended."""
    for _ in range(20):
        line = await asyncio.wait_for(client.reader.readuntil(b"\n\n"), 20)
        if b"abort" in line or b"DONE" in line:
            return False
    return True


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize(
    ("path", "body"),
    [(b"/v1/completions", LONG), (b"/v1/completions", STREAM), (b"/v1/chat/completions", CHAT)],
    ids=["whole", "stream", "chat"],
)
async def test_a_client_that_leaves_stops_its_request_and_no_other(
    engine: EngineInLoop, leave: str, path: bytes, body: dict[str, Any]
) -> None:
    """FC-49: within a second, however late the engine would notice."""
    async with before(engine) as house:
        other = await house.bystander()
        client = await house.ask(body, path)
        await engine.until(running=2)
        client.reset() if leave == "reset" else client.writer.close()
        assert await engine.until(running=1) < 1.0
        assert await goes_on(other)
        other.reset()
        assert await engine.until() < 1.0
        await house.it.quiet(20)
        assert house.aborts("failed") == 0
        assert engine.rank.pool.used_blocks == 0


async def test_a_request_in_the_engines_line_leaves_it(engine: EngineInLoop) -> None:
    """FC-49: also while it is queued there."""
    async with before(engine) as house:
        first, second = await house.bystander(), await house.ask(STREAM)
        await engine.until(running=2)
        third = await house.ask(LONG)
        await engine.until(running=2, waiting=1)
        third.reset()
        assert await engine.until(running=2) < 1.0
        assert await goes_on(first)
        for client in (first, second):
            client.reset()
        assert await engine.until() < 1.0


async def test_an_engine_that_is_too_slow_is_told_to_stop() -> None:
    """FC-46, FC-49: before the first byte, and between two."""
    async with mock_in_loop(dialect="sglang", prefill_tokens_per_s=0.5) as engine:
        engine.deaf(DEAF_S)
        async with before(engine, first_byte_s=0.3) as house:
            client = await house.ask(STREAM)
            assert (await client.answer(within_s=20)).status == 504
            assert await engine.until() < 1.0
    async with mock_in_loop(dialect="sglang", decode_s=0.2) as engine:
        engine.deaf(DEAF_S)
        async with before(engine, silence_s=0.05) as house:
            client = await house.ask(STREAM)
            assert b"stream_cut" in (await client.answer(within_s=20)).body
            assert await engine.until() < 1.0


async def test_a_connection_that_breaks_does_not_leave_its_request_behind(engine: EngineInLoop) -> None:
    async with before(engine) as house:
        engine.engine.faults.set("cut", Fault(3, times=1))
        client = await house.ask(STREAM)
        assert b"stream_cut" in (await client.answer(within_s=20)).body
        assert await engine.until() < 1.0


async def test_a_gateway_that_ends_stops_what_it_could_not_finish(engine: EngineInLoop) -> None:
    """FC-57: the calls are out before it goes."""
    async with before(engine) as house:
        clients = [await house.ask(body) for body in (STREAM, LONG)]
        await engine.until(running=2)
        began = time.monotonic()
        await house.it.plane.drain(0.05)
        house.it.plane.close()
        assert (engine.rank.running, engine.rank.waiting) == (0, 0)
        assert time.monotonic() - began < 1.5
        assert len(clients) == 2


async def test_an_answer_that_came_whole_is_not_aborted(engine: EngineInLoop) -> None:
    async with before(engine) as house:
        for fields in (b"", b"Connection: close\r\n"):
            for body in ({**STREAM, "max_tokens": 3}, {**LONG, "max_tokens": 3}):
                client = await house.ask(body, fields=fields)
                assert (await client.answer(within_s=20)).complete
                client.writer.close()
        await house.it.quiet(20)
        assert house.it.counts.engine_aborts == {}
        assert engine.rank.counts.finished == 4


@pytest.mark.parametrize("together", [True, False])
async def test_a_clients_own_name_stops_nobody_elses_request(engine: EngineInLoop, together: bool) -> None:
    """Edge case 45: names are matched by how they begin, so the one that is the start of another waits to be noticed."""
    rid = "c0ffee00" * 4
    async with before(engine) as house:
        other = await house.ask({**STREAM, "rid": rid + "-2" if together else "x" * 40})
        await other.reader.readuntil(b"data: ")
        client = await house.ask({**STREAM, "rid": rid})
        await engine.until(running=2)
        client.reset()
        if together:
            async with asyncio.timeout(20):
                while not house.aborts("shared"):
                    await asyncio.sleep(0.005)
            assert engine.rank.running == 2
        else:
            assert await engine.until(running=1) < 1.0
        assert await goes_on(other)
        other.reset()
        await house.it.quiet(20)


async def test_vllm_stops_on_the_closed_connection_alone() -> None:
    """FC-49."""
    async with mock_in_loop(dialect="vllm") as engine, before(engine) as house:
        client = await house.ask(STREAM)
        await engine.until(running=1)
        client.reset()
        assert await engine.until() < 1.0
        await house.it.quiet(20)
        assert house.it.counts.engine_aborts == {}
