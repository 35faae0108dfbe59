"""What a follower of the fake engine's events believes, next to what the engine says it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from events.types import Freshness
from tests.fakes.mock_engines import Engines, Follower, OpenStream, call, following, ids
from tests.fakes.publisher import until

ALONE = 2  # the engine that no gateway follows


@pytest.fixture
async def follower(vllm: Engines) -> AsyncIterator[Follower]:
    """One that knows a fresh life of the engine from its first batch on."""
    vllm.restart(ALONE, reconnect=False)
    async with following(vllm, ALONE) as follower:
        yield follower


async def store(engines: Engines, *firsts: int, number: int = ALONE) -> None:
    """Prompts of 5 blocks that share nothing, one batch each."""
    for first in firsts:
        assert (await asyncio.to_thread(engines.complete, ids(81, first=first), number)).status == 200


async def test_a_view_agrees_with_the_engine(vllm: Engines, follower: Follower) -> None:
    await store(vllm, 1, 2, 1)
    await until(follower.agrees)
    assert follower.index.stats().blocks == 10
    assert follower.stream.freshness is Freshness.LIVE


async def test_eviction_is_told_and_the_view_converges(vllm: Engines, follower: Follower) -> None:
    """FC-15: whatever was stored before, what is left is what the engine holds."""
    for first in range(24):
        assert (await asyncio.to_thread(vllm.complete, ids(1000, first=first), ALONE)).status == 200
    await until(follower.agrees)
    assert follower.stream.counts.removed >= 24 * 62 - 512
    assert 400 < follower.index.stats().blocks <= 512


async def test_sglang_tells_each_block_once_and_converges(sglang: Engines) -> None:
    """FC-08: set semantics, in the array form with signed hashes."""
    async with following(sglang, counting=False) as follower:
        prompts = [ids(70, first=first) for first in (1, 1, 2, 3, 1, 4, 5, 6, 7, 8, 1, 1)]
        replies = await asyncio.gather(*(asyncio.to_thread(sglang.complete, prompt) for prompt in prompts))
        assert {reply.status for reply in replies} == {200}
        await until(follower.agrees)
        assert follower.stream.counts.removed > 0
        assert follower.stream.counts.unknown_removes == 0


async def test_copies_of_one_block_are_counted(vllm: Engines, follower: Follower) -> None:
    """FC-09: two requests that compute the same prompt at once leave two copies."""
    prompt = ids(81, first=9)
    await asyncio.to_thread(vllm.complete, [prompt, prompt], ALONE)
    await until(follower.agrees)
    blocks = call(f"{vllm.url(ALONE)}/mock/cache").json()["blocks"]
    assert [block["copies"] for block in blocks] == [2] * 5


async def test_lost_batches_are_fetched_again(vllm: Engines, follower: Follower) -> None:
    """FC-01."""
    await store(vllm, 1)
    vllm.fault(ALONE, lose={"times": 2})
    await store(vllm, 2, 3, 4)
    await until(follower.agrees)
    assert (follower.stream.counts.gaps, follower.stream.counts.restarts) == (1, 0)
    assert follower.stream.freshness is Freshness.LIVE


async def test_skipped_numbers_cost_the_view(vllm: Engines, follower: Follower) -> None:
    """FC-01: nobody has them, so what was known before can not be believed."""
    await store(vllm, 1)
    vllm.fault(ALONE, skip={"times": 1})
    await store(vllm, 2, 3)
    await until(lambda: follower.stream.counts.gaps == 1 and follower.stream.freshness is Freshness.PARTIAL)
    await until(lambda: follower.index.stats().blocks == 5)
    assert not follower.agrees()


async def test_batches_sent_twice_count_once(vllm: Engines, follower: Follower) -> None:
    """FC-08."""
    vllm.fault(ALONE, duplicate=True)
    await store(vllm, 1, 2)
    await until(lambda: follower.stream.counts.duplicates >= 2)
    assert follower.agrees()


async def test_a_batch_behind_the_next_one_changes_nothing(vllm: Engines, follower: Follower) -> None:
    await store(vllm, 1)
    vllm.fault(ALONE, reorder={"times": 1})
    await store(vllm, 2, 3)
    await until(follower.agrees)
    assert (follower.stream.counts.gaps, follower.stream.counts.restarts) == (1, 0)


async def test_silence_leaves_the_view_behind_and_no_trace(vllm: Engines, follower: Follower) -> None:
    """FC-05."""
    await store(vllm, 1)
    vllm.fault(ALONE, silent=True)
    await store(vllm, 2)
    vllm.calm()
    await store(vllm, 3)
    await until(lambda: follower.index.stats().blocks == 10)
    assert follower.stream.counts.gaps == 0
    assert not follower.agrees()


@pytest.mark.parametrize("reconnect", [False, True], ids=["same connection", "reconnect"])
async def test_a_new_life_begins_with_nothing(vllm: Engines, follower: Follower, reconnect: bool) -> None:
    """FC-03: the HTTP side stays, the numbers begin anew."""
    await store(vllm, 1, 2, 3)
    await until(follower.agrees)
    await asyncio.to_thread(vllm.restart, ALONE, reconnect=reconnect, down_s=0.05)
    if reconnect:
        await until(lambda: Freshness.GAP in follower.states)
        await until(lambda: follower.stream.connected)
    await store(vllm, 4)
    await until(follower.agrees)
    assert follower.index.stats().blocks == 5


async def test_lives_that_follow_at_once_are_lived_one_by_one(vllm: Engines, follower: Follower) -> None:
    before = vllm.state(ALONE)["epoch"]
    for _ in range(3):
        assert call(f"{vllm.url(ALONE)}/mock/restart", {"down_s": 0.05}).json()["epoch"]
    epochs = {before}
    await until(lambda: epochs.add(vllm.state(ALONE)["epoch"]) or len(epochs) == 4)  # type: ignore[func-returns-value]
    await store(vllm, 1)
    await until(follower.agrees)


async def test_one_rank_can_begin_anew_alone(hybrid: Engines) -> None:
    """FC-03, FC-21: the other rank keeps what it has."""
    async with following(hybrid, rank=0) as first, following(hybrid, rank=1) as second:
        for rank in ("0", "1"):
            headers = {"X-Data-Parallel-Rank": rank}
            await asyncio.to_thread(hybrid.complete, ids(81, first=60), headers=headers)
        await until(lambda: first.index.stats().blocks and second.index.stats().blocks)
        hybrid.fault(silent={"rank": 1})  # which the other rank does not feel
        await asyncio.to_thread(hybrid.complete, ids(81, first=61), headers={"X-Data-Parallel-Rank": "0"})
        await asyncio.to_thread(hybrid.complete, ids(81, first=61), headers={"X-Data-Parallel-Rank": "1"})
        await until(lambda: first.stream.counts.batches > second.stream.counts.batches)
        kept = first.index.digest(first.holder)
        assert hybrid.rank(rank=1)["cached_blocks"] == 10
        await asyncio.to_thread(hybrid.restart, ranks=[1], down_s=0.05)
        await until(lambda: second.stream.connected and not second.index.stats().blocks)
        assert hybrid.rank(rank=1)["cached_blocks"] == 0
        assert first.index.digest(first.holder) == kept


async def test_a_reset_is_told_with_the_next_step(vllm: Engines, follower: Follower) -> None:
    """FC-11: an idle engine of this make tells nothing until it works again."""
    await store(vllm, 1)
    await until(follower.agrees)
    before = vllm.rank(ALONE)["next_seq"]
    assert call(f"{vllm.url(ALONE)}/reset_prefix_cache", method="POST").json() == {"success": True}
    assert vllm.rank(ALONE)["next_seq"] == before
    assert not follower.agrees()
    await store(vllm, 2)
    await until(follower.agrees)
    assert follower.index.stats().blocks == 5


async def test_the_http_side_resets_what_is_open_and_is_gone_for_a_while(vllm: Engines) -> None:
    """FC-45: an answer that is under way breaks off like that of a process that died."""
    with OpenStream(vllm.url(ALONE), {"prompt": "x", "max_tokens": 5000, "ignore_eos": True}) as stream:
        assert stream.first_event()
        assert call(f"{vllm.url(ALONE)}/mock/restart", {"http": True, "down_s": 0.3}).status == 200
        with pytest.raises(ConnectionResetError):
            list(stream.lines())
    with pytest.raises(OSError, match="refused"):
        vllm.state(ALONE)
    await until(lambda: _serves(vllm))
    assert (vllm.rank(ALONE)["used_blocks"], vllm.state(ALONE)["open_requests"]) == (0, 0)


def _serves(engines: Engines) -> bool:
    try:
        return bool(engines.state(ALONE))
    except OSError:
        return False


async def test_what_open_requests_leave_when_the_engine_restarts(vllm: Engines, follower: Follower) -> None:
    body = {"prompt": ids(40, first=5), "max_tokens": 5000, "ignore_eos": True}
    asking = asyncio.create_task(asyncio.to_thread(call, f"{vllm.url(ALONE)}/v1/completions", body))
    await until(lambda: vllm.rank(ALONE)["running"] == 1)
    await asyncio.to_thread(vllm.restart, ALONE, reconnect=False)
    assert (await asking).status == 503
    assert vllm.rank(ALONE)["used_blocks"] == 0
