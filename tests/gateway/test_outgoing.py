"""Requests as engines get them, dialect by dialect, through a whole data plane."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.fakes.client import RawClient, post
from tests.fakes.dataplane import FakeTokenizer, running, settings
from tests.fakes.engine import Call, FakeEngine, always, answer
from tests.fakes.placer import FakePlacer, replica_at

BODY = b'{"model":"m", "prompt" : "caf\\u00e9" , "seed": 123456789012345678901234567890, "stream": true}'
DONE = b"data: [DONE]\n\n"
EVENTS = answer(DONE, fields=b"content-type: text/event-stream\r\n")


async def call_of(
    dialect: str, body: bytes, *, path: bytes = b"/v1/completions", holders: int = 1, **given: Any
) -> tuple[Call, Any]:
    """What one engine got, and the counters."""
    async with FakeEngine(always(EVENTS)) as engine:
        replica = replica_at(engine.port, dialect=dialect)
        replica.holders = list(range(holders))
        async with (
            running(FakePlacer([replica]), given=settings(**given), tokenizer=FakeTokenizer()) as it,
            RawClient(it.port) as client,
        ):
            await client.send(post(body, path=path))
            assert (await client.answer()).status == 200
            return engine.calls[0], it.counts


@pytest.mark.parametrize("dialect", ["vllm", "trtllm"])
async def test_ids_stand_in_place_of_the_text_and_all_else_is_the_clients(dialect: str) -> None:
    """FC-40."""
    call, counts = await call_of(dialect, BODY, meter_streams=False)
    assert call.body == BODY.replace(b'"caf\\u00e9"', b"[1,2,3]")
    assert counts.tokens_sent == {dialect: 1}


async def test_what_the_gateway_asks_for_itself_goes_in_front() -> None:
    """FC-42."""
    call, _ = await call_of("vllm", BODY)
    assert call.body == BODY.replace(b"{", b'{"stream_options":{"include_usage":true},', 1).replace(b'"caf\\u00e9"', b"[1,2,3]")


async def test_a_chat_of_sglang_gets_ids_and_a_name() -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    call, counts = await call_of("sglang", body, path=b"/v1/chat/completions")
    sent = orjson.loads(call.body)
    assert sent["input_ids"] == [1, 2, 3, 4, 5]
    assert sent["rid"].endswith(".")
    assert call.body.endswith(body[1:])
    assert counts.tokens_sent == {"sglang": 1}


async def test_a_chat_of_vllm_and_anything_of_an_unknown_engine_stay_as_they_came() -> None:
    """FC-40."""
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    call, counts = await call_of("vllm", body, path=b"/v1/chat/completions")
    assert (call.body, counts.tokens_sent) == (body, {})
    call, counts = await call_of("openai", BODY, meter_streams=False)
    assert (call.body, counts.tokens_sent) == (BODY, {})


@pytest.mark.parametrize(("dialect", "values"), [("vllm", [b"0"]), ("sglang", [b"0"]), ("openai", [b"0"]), ("trtllm", [])])
async def test_the_rank_is_told_where_the_engine_takes_it(dialect: str, values: list[bytes]) -> None:
    """FC-21."""
    call, _ = await call_of(dialect, BODY, holders=2)
    assert call.values(b"x-data-parallel-rank") == values


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm"])
async def test_a_body_nested_too_deep_to_edit_goes_as_it_came(dialect: str) -> None:
    body = b'{"prompt":"a","rid":null,"vllm_xargs":{},"x":' + b"[" * 1010 + b"]" * 1010 + b"}"
    call, counts = await call_of(dialect, body, meter_streams=False)
    assert (call.body, counts.tokens_sent) == (body, {})


@pytest.mark.parametrize("fields", [b"connection: close\r\n", b""])
async def test_an_engine_that_ended_its_answer_is_not_told_to_stop(fields: bytes) -> None:
    """Also where its connection can not be used again."""
    async with (
        FakeEngine(always(answer(b"{}", fields=fields))) as engine,
        running(FakePlacer([replica_at(engine.port, dialect="sglang")])) as it,
        RawClient(it.port) as client,
    ):
        for _ in range(2):
            await client.send(post(b'{"prompt":"a"}', path=b"/v1/completions"))
            assert (await client.answer()).status == 200
        await it.plane.drain(5.0)
        assert [call.request_line for call in engine.calls] == [b"POST /v1/completions HTTP/1.1"] * 2
        assert it.counts.engine_aborts == {}


async def test_now_and_then_a_request_goes_as_text_and_none_has_ids_while_counts_differ() -> None:
    """FC-22: an engine's count of ids it was given proves nothing."""
    async with FakeEngine(always(answer(b"{}"))) as engine:
        replica = replica_at(engine.port, dialect="vllm")
        async with running(FakePlacer([replica]), tokenizer=FakeTokenizer()) as it, RawClient(it.port) as client:

            async def went_with_ids() -> bool:
                await client.send(post(b'{"prompt":"a"}', path=b"/v1/completions"))
                assert (await client.answer()).status == 200
                with_ids = engine.calls[-1].body == b'{"prompt":[1,2,3]}'
                assert with_ids or engine.calls[-1].body == b'{"prompt":"a"}'
                assert it.placer.tickets[-1].intent.sent_ids is with_ids
                return with_ids

            assert [await went_with_ids() for _ in range(65)] == [True] * 63 + [False, True]
            replica.ids.counted(same=False)
            assert not await went_with_ids()
            replica.ids.counted(same=True)
            assert await went_with_ids()


async def test_own_replicas_always_get_ids() -> None:
    async with FakeEngine(always(answer(b"{}"))) as engine:
        replica = replica_at(engine.port, dialect="trunkline")
        replica.ids.counted(same=False)
        async with running(FakePlacer([replica]), tokenizer=FakeTokenizer()) as it, RawClient(it.port) as client:
            await client.send(post(b'{"prompt":"a"}', path=b"/v1/completions"))
            assert (await client.answer()).status == 200
            assert b"prompt_token_ids" in engine.calls[0].body
