"""A second copy of a request: when it is sent, which answer counts, and that only one ever does."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config import Hedge as HedgeSettings
from gateway.hedge import hedge_after
from gateway.histogram import TTFT_BOUNDS_S, Histogram
from gateway.request import Outcome
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import FakeTokenizer, settings
from tests.fakes.engine import DONE, END, STREAM_HEAD, Call, FakeEngine, always, answer, chunk, event, usage_event
from tests.fakes.fleet_plane import fleet_plane

OK = answer(b'{"ok":true,"usage":{"prompt_tokens":5,"completion_tokens":2}}')
GIVEN = settings(resilience={"hedge": {"after_s": 0.02}, "slow_start_s": None})
WAITS = 20.0


async def silent(call: Call) -> None:
    """Never answers; ends when the gateway hangs up."""
    await call.left(WAITS)


async def test_a_silent_engine_gets_a_rival_whose_answer_counts() -> None:
    async with (
        FakeEngine(silent) as slow,
        FakeEngine(always(OK)) as quick,
        fleet_plane([slow.port, quick.port], given=GIVEN, tokenizer=FakeTokenizer()) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        reply = await client.answer(within_s=WAITS)
        assert (reply.status, reply.values(b"x-trunkline-replica")) == (200, [b"r1"])
        await it.until(lambda: slow.open == 0)  # the loser's engine stops
        await it.until(lambda: it.loads == [(0, 0, 0)] * 2)
        assert (len(slow.calls), len(quick.calls)) == (1, 1)
        assert (it.counts.hedges, it.counts.hedges_won) == (1, 1)
        assert (it.placer.counts.prompt_tokens, it.placer.counts.output_tokens) == (5, 2)
        outcomes = sorted(receipt.outcome for receipt in it.placer.receipts)
        assert outcomes == [Outcome.HEDGED.value, Outcome.OK.value]
        assert sum(it.placer.counts.duration.counts) == 1


async def test_the_first_copy_may_still_win_and_the_rival_is_stopped() -> None:
    go = asyncio.Event()

    async def late(call: Call) -> None:
        await go.wait()
        await call.send(OK)

    async with (
        FakeEngine(late) as slow,
        FakeEngine(silent) as rival,
        fleet_plane([slow.port, rival.port], given=GIVEN) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        await it.until(lambda: len(rival.calls) == 1)
        assert it.loads == [(1, 0, 0), (1, 0, 0)] or sum(load[0] for load in it.loads) == 2
        go.set()
        assert (await client.answer(within_s=WAITS)).values(b"x-trunkline-replica") == [b"r0"]
        await it.until(lambda: rival.open == 0)
        await it.until(lambda: it.loads == [(0, 0, 0)] * 2)
        assert (it.counts.hedges, it.counts.hedges_won) == (1, 0)


async def test_streams_are_relayed_from_the_winner_alone() -> None:
    pieces = [STREAM_HEAD, chunk(event("a")), chunk(event("b")), chunk(usage_event(5, 2, 0)), chunk(DONE), END]
    async with (
        FakeEngine(silent) as slow,
        FakeEngine(always(*pieces)) as quick,
        fleet_plane([slow.port, quick.port], given=GIVEN) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post({**CHAT, "stream": True}))
        reply = await client.answer(within_s=WAITS)
        assert reply.complete
        assert reply.events == [event("a").strip(), event("b").strip(), DONE.strip()]
        await it.until(lambda: it.loads == [(0, 0, 0)] * 2)


@pytest.mark.parametrize("raw", [answer(b"{}", b"503 Full"), answer(b"{}", b"500 Broken"), answer(b"{}", b"400 Bad"), b""])
async def test_a_rival_that_refuses_or_dies_changes_nothing(raw: bytes) -> None:
    go = asyncio.Event()

    async def late(call: Call) -> None:
        await go.wait()
        await call.send(OK)

    async def bad(call: Call) -> None:
        await call.send(raw)
        if not raw:
            call.reset()

    async with (
        FakeEngine(late) as slow,
        FakeEngine(bad) as rival,
        fleet_plane([slow.port, rival.port], given=GIVEN) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        await it.until(lambda: len(rival.calls) == 1 and sum(load[0] for load in it.loads) == 1)
        go.set()
        assert (await client.answer(within_s=WAITS)).status == 200
        await it.until(lambda: it.loads == [(0, 0, 0)] * 2)


async def test_where_the_first_copy_dies_the_rival_is_the_request() -> None:
    die, go = asyncio.Event(), asyncio.Event()

    async def dies(call: Call) -> None:
        await die.wait()
        call.reset()

    async def later(call: Call) -> None:
        await go.wait()
        await call.send(OK)

    async with (
        FakeEngine(dies) as first,
        FakeEngine(later) as rival,
        fleet_plane([first.port, rival.port], given=GIVEN) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        await it.until(lambda: len(rival.calls) == 1)
        die.set()
        await it.until(lambda: it.loads[0][0] == 0)
        go.set()
        assert (await client.answer(within_s=WAITS)).status == 200
        assert (len(first.calls), len(rival.calls)) == (1, 1)
        await it.until(lambda: it.loads == [(0, 0, 0)] * 2)


async def test_a_client_that_leaves_stops_both() -> None:
    """FC-49."""
    async with (
        FakeEngine(silent) as one,
        FakeEngine(silent) as two,
        fleet_plane([one.port, two.port], given=GIVEN) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        await it.until(lambda: len(two.calls) == 1)
        client.reset()
        await it.until(lambda: one.open == two.open == 0)
        assert it.loads == [(0, 0, 0)] * 2


async def test_there_is_no_second_copy_of_what_must_not_be_done_twice_nor_of_an_answer_that_began() -> None:
    async def begins(call: Call) -> None:
        await call.send(STREAM_HEAD, chunk(event("a")))
        await asyncio.sleep(0.1)
        await call.send(chunk(DONE), END)

    async def slowly(call: Call) -> None:
        await asyncio.sleep(0.1)
        await call.send(OK)

    async with (
        FakeEngine(begins) as one,
        FakeEngine(begins) as two,
        fleet_plane([one.port, two.port], given=GIVEN) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post({**CHAT, "stream": True}))
        assert (await client.answer(within_s=WAITS)).status == 200
        one.script = two.script = slowly
        await client.send(post({"model": "m", "input": "x"}, path=b"/v1/responses"))
        assert (await client.answer(within_s=WAITS)).status == 200
        assert it.counts.hedges == 0


async def test_there_is_no_second_copy_by_default() -> None:
    async def slowly(call: Call) -> None:
        await asyncio.sleep(0.1)
        await call.send(OK)

    async with (
        FakeEngine(slowly) as one,
        FakeEngine(slowly) as two,
        fleet_plane([one.port, two.port]) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        assert (await client.answer(within_s=WAITS)).status == 200
        assert it.counts.hedges == 0


def test_a_quantile_is_learned_from_streams_once_there_were_enough() -> None:
    ttft = Histogram(TTFT_BOUNDS_S)
    after = hedge_after(HedgeSettings(quantile=0.9), ttft)
    assert after is not None
    assert after() == TTFT_BOUNDS_S[-1]
    for _ in range(95):
        ttft.observe(0.04)
    for _ in range(5):
        ttft.observe(2.0)
    assert after() == 0.05
    assert hedge_after(HedgeSettings(), ttft) is None
    fixed = hedge_after(HedgeSettings(after_s=0.3), ttft)
    assert fixed is not None
    assert fixed() == 0.3
