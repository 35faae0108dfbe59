"""Calls that stop requests: bounded, timed, counted, made again where they may have come too early."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.dialects import Abort
from gateway.http1 import aborts
from gateway.http1.answer import AnswerReader
from gateway.http1.pool import Pool, Waiter
from tests.fakes.engine import Call, FakeEngine, always, answer
from tests.fakes.placer import replica_at


def abort(name: str = "a.1.", *, given: bool = False) -> Abort:
    return Abort(b"/abort_request", b'{"rid":"%s"}' % name.encode(), name, given)


class House:
    """A pool before an engine, and how its calls ended."""

    def __init__(self, engine: FakeEngine, **replica: str) -> None:
        self.engine = engine
        self.results: Counter[str] = Counter()
        self.pool = Pool(replica_at(engine.port, **replica), 2.0, AnswerReader(), self._ended)

    def _ended(self, result: str) -> None:
        self.results[result] += 1

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.002)


@asynccontextmanager
async def house_of(script: Callable[[Call], Awaitable[None]], **replica: str) -> AsyncIterator[House]:
    async with FakeEngine(script) as engine:
        house = House(engine, **replica)
        yield house
        house.pool.close()
        await asyncio.sleep(0.01)


def stop(house: House, what: Abort, *, begun: bool = True) -> None:
    house.pool.aborts.opened(what)
    house.pool.aborts.closed(what, stop=True, begun=begun)


async def test_a_call_goes_to_the_replica_with_its_key_and_leaves_the_connection_for_others() -> None:
    async with house_of(always(answer(b"")), api_key="k", base="/base") as house:
        stop(house, abort())
        await house.until(lambda: house.results["done"] == 1)
        stop(house, abort("a.2."))
        await house.until(lambda: house.results["done"] == 2)
        call = house.engine.calls[0]
        assert call.request_line == b"POST /base/abort_request HTTP/1.1"
        assert (call.values(b"authorization"), call.body) == ([b"Bearer k"], b'{"rid":"a.1."}')
        assert house.engine.connections == 1
        assert house.pool.idle == 1


async def test_one_that_may_have_overtaken_its_request_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborts, "AGAIN_S", 0.05)
    async with house_of(always(answer(b""))) as house:
        stop(house, abort(), begun=False)
        await house.until(lambda: house.results["done"] == 2)
        stop(house, abort("b.1."), begun=True)
        await house.until(lambda: house.results["done"] == 3)
        await asyncio.sleep(0.2)
        assert [call.body for call in house.engine.calls] == [b'{"rid":"a.1."}'] * 2 + [b'{"rid":"b.1."}']


async def test_what_needs_no_call_makes_none() -> None:
    async with house_of(always(answer(b""))) as house:
        house.pool.aborts.opened(abort())
        house.pool.aborts.closed(abort(), stop=False, begun=True)
        await asyncio.sleep(0.02)
        assert house.pool.aborts.open == 0
        assert house.engine.calls == []


async def test_few_at_a_time_and_not_endlessly_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborts, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(aborts, "MOST_WAITING", 3)
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await go_on.wait()
        await call.send(answer(b""))

    async with house_of(script) as house:
        for number in range(7):
            stop(house, abort(f"a.{number}."))
        assert house.results == {"dropped": 2}
        await house.until(lambda: len(house.engine.calls) == 2)
        assert house.engine.connections == 2
        go_on.set()
        await house.until(lambda: house.results["done"] == 5)
        assert house.pool.aborts.open == 0


async def test_no_answer_and_a_refusal_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborts, "ANSWER_S", 0.1)

    async def script(call: Call) -> None:
        if b"mute" in call.body:
            await call.left(20)
        elif b"bad" in call.body:
            await call.send(b"what?\r\n\r\n")
        elif b"gone" in call.body:
            call.close()
        else:
            await call.send(answer(b"no such page", b"404 Not Found"))

    async with house_of(script) as house:
        for number, name in enumerate(("mute", "bad", "gone", "no"), start=1):
            stop(house, abort(name))
            await house.until(lambda number=number: house.results["failed"] == number)  # type: ignore[misc]
        assert house.results == {"failed": 4}


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced() -> None:
    """FC-34."""

    async def script(call: Call) -> None:
        if len(house.engine.calls) == 2:
            call.reset()
        else:
            await call.send(answer(b""))

    async with house_of(script) as house:
        for number in (1, 2):
            stop(house, abort(f"a.{number}."))
            await house.until(lambda number=number: house.results["done"] == number)  # type: ignore[misc]
        assert house.results == {"done": 2}
        assert len(house.engine.calls) == 3


async def test_an_engine_that_is_gone_does_not_hold_up_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborts, "MOST_AT_ONCE", 1)
    async with house_of(always(answer(b""))) as house:
        house.engine.stop_listening()
        await asyncio.sleep(0)
        tries: list[Waiter] = []
        opens = house.pool.open

        def counted(waiter: Waiter) -> None:
            tries.append(waiter)
            opens(waiter)

        monkeypatch.setattr(house.pool, "open", counted)
        for number in range(5):
            stop(house, abort(f"a.{number}."))
        await house.until(lambda: house.results["failed"] == 5)
        assert len(tries) == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nok",  # the rest never comes
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok",
    ],
)
async def test_any_form_of_a_good_answer_is_one(monkeypatch: pytest.MonkeyPatch, reply: bytes) -> None:
    monkeypatch.setattr(aborts, "ANSWER_S", 0.3)
    async with house_of(always(reply)) as house:
        stop(house, abort())
        await house.until(lambda: house.results.total() == 1)
        assert house.results == ({"failed": 1} if b"4\r\n\r\nok" in reply else {"done": 1})


async def test_a_pool_that_closes_ends_its_calls() -> None:
    async def script(call: Call) -> None:
        await call.left(20)

    async with house_of(script) as house:
        stop(house, abort(), begun=False)
        await house.until(lambda: len(house.engine.calls) == 1)
        house.pool.close()
        assert house.pool.aborts.open == 0
        await house.until(lambda: house.engine.open == 0)


async def test_names_are_short_and_none_begins_another() -> None:
    """Edge case 45."""
    async with house_of(always(answer(b""))) as house:
        names = [
            house.pool.aborts.name_for(request) for request in ("ab12cd34-1", "ab12cd34-10", "ab12cd34-1") for _ in range(40)
        ]
        assert all(len(name) < 32 for name in names)
        assert not [one for one in names for other in names if one is not other and other.startswith(one)]
