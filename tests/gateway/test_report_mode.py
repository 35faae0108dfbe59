"""The one argument of engines that the gateway takes out of requests."""

from __future__ import annotations

import orjson
import pytest

from gateway.body import without_report_mode
from gateway.errors import Refusal
from tests.fakes.client import RawClient, post
from tests.fakes.dataplane import running
from tests.fakes.engine import FakeEngine, always, answer
from tests.fakes.placer import FakePlacer, replica_at


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (b'{"vllm_xargs":{"kv_cache_report_mode":"full"}}', b'{"vllm_xargs":{}}'),
        (
            b'{ "n" : 1.00000000000000000001,\n'
            b'"vllm_xargs" : { "a" : 1e2 , "kv_cache_report_mode" : {"x":[1]}, "\xc3\xa9":"\\u00e9" } , "z":0}',
            b'{ "n" : 1.00000000000000000001,\n"vllm_xargs" : {"a":1e2,"\xc3\xa9":"\\u00e9"} , "z":0}',
        ),
        (b'{"vllm\\u005fxargs":{"kv\\u005fcache_report_mode":1},"prompt":"a"}', b'{"vllm\\u005fxargs":{},"prompt":"a"}'),
        (
            b'{"m":{"vllm_xargs":{"kv_cache_report_mode":1}},"vllm_xargs":{"kv_cache_report_mode":1}}',
            b'{"m":{"vllm_xargs":{"kv_cache_report_mode":1}},"vllm_xargs":{}}',
        ),
        (
            b'{"vllm_xargs":{"kv_cache_report_mode":1},"vllm_xargs":{"kv_cache_report_mode":1,"b":2}}',
            b'{"vllm_xargs":{"kv_cache_report_mode":1},"vllm_xargs":{"b":2}}',
        ),
    ],
    ids=["alone", "among others", "escaped", "not elsewhere", "the last one counts"],
)
def test_the_argument_that_repeats_announcements_is_taken_out_and_nothing_else(raw: bytes, want: bytes) -> None:
    """Edge case 33, FC-40: what it asks for cannot be told from second copies of the blocks."""
    assert without_report_mode(raw, orjson.loads(raw)) == want


@pytest.mark.parametrize(
    "raw",
    [
        b'{"vllm_xargs":{"kv_cache_report":"full"}}',
        b'{"vllm_xargs":null}',
        b'{"vllm_xargs":["kv_cache_report_mode"]}',
        b'{"prompt":"\\"vllm_xargs\\":{\\"kv_cache_report_mode\\":1}"}',
        b'{"kv_cache_report_mode":"full"}',
    ],
)
def test_a_body_without_it_is_not_copied(raw: bytes) -> None:
    assert without_report_mode(raw, orjson.loads(raw)) is raw


def test_a_body_too_deep_to_take_it_out_is_refused() -> None:
    raw = b'{"vllm_xargs":{"kv_cache_report_mode":1},"x":' + b"[" * 1010 + b"]" * 1010 + b"}"
    with pytest.raises(Refusal, match="nested too deep") as caught:
        without_report_mode(raw, orjson.loads(raw))
    assert (caught.value.status, caught.value.param) == (400, "vllm_xargs")


async def test_an_engine_does_not_see_it() -> None:
    """Edge case 33, FC-40."""
    body = b'{"messages":[],  "vllm_xargs":{"kv_cache_report_mode":"full","k":1}, "seed":123456789012345678901234567890}'
    async with (
        FakeEngine(always(answer(b"{}"))) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(body))
        assert (await client.answer()).status == 200
        deep = b'{"messages":[],"vllm_xargs":{"kv_cache_report_mode":1},"x":' + b"[" * 1010 + b"]" * 1010 + b"}"
        await client.send(post(deep))
        assert (await client.answer()).status == 400
        assert engine.calls[0].body == b'{"messages":[],  "vllm_xargs":{"k":1}, "seed":123456789012345678901234567890}'
        assert len(engine.calls) == 1
