"""What a single engine can do to the loop and to its own connection."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gateway.http1.answer import AnswerReader
from gateway.http1.engine_side import EngineConnection
from gateway.http1.pool import Pool
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import running
from tests.fakes.engine import Call, FakeEngine
from tests.fakes.placer import FakePlacer, replica_at


async def test_interim_answers_without_end_are_no_answer() -> None:
    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000)
        await call.left(5)

    async with (
        FakeEngine(script) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        reply = await client.answer(within_s=2.0)
        assert (reply.status, reply.json()["error"]["code"]) == (502, "bad_answer")


class Transport:
    """Notes whether it is being read."""

    def __init__(self) -> None:
        self._reading = True

    def reads(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        assert self._reading
        self._reading = False

    def resume_reading(self) -> None:
        assert not self._reading
        self._reading = True

    def is_closing(self) -> bool:
        return False

    def writelines(self, pieces: Any) -> None:
        pass


class Taker:
    """Takes anything."""

    def answer_head(self, *given: object) -> None: ...

    def answer_bytes(self, data: bytes) -> None: ...


def connection() -> tuple[EngineConnection, Transport]:
    transport, engine = Transport(), EngineConnection(cast(Pool, None), AnswerReader())
    engine.connection_made(cast(asyncio.Transport, transport))
    engine.send(cast(Any, Taker()), b"", [])
    engine.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    return engine, transport


async def test_reading_rests_for_a_turn_after_a_long_read() -> None:
    engine, transport = connection()
    engine.data_received(b"x" * 1000)
    assert transport.reads()
    engine.data_received(b"x" * 256_000)
    assert not transport.reads()
    await asyncio.sleep(0)
    assert transport.reads()


async def test_a_rest_does_not_end_a_pause_nor_a_pause_a_rest() -> None:
    """FC-51: a slow client's pause holds, whatever else pauses reading."""
    engine, transport = connection()
    engine.data_received(b"x" * 256_000)
    engine.pause()
    await asyncio.sleep(0)
    assert not transport.reads()
    engine.resume()
    assert transport.reads()
    engine.data_received(b"x" * 256_000)
    engine.pause()
    engine.resume()
    assert not transport.reads()
    await asyncio.sleep(0)
    assert transport.reads()
