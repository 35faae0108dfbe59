"""The modelled block pool: nothing lost, eviction in the engine's order, equal to the real engine's pool."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.blocks import BlockPool
from simulations.cost import EngineSpec
from simulations.errors import SettingError
from simulations.pool import Lease, Pool
from simulations.run import FleetSpec, replay
from simulations.traces.columns import Trace


def chain(node: int) -> list[int]:
    """The path from the root of a binary tree to a node: chained ids by construction."""
    return [*chain(node // 2), node] if node else []


def fill(pool: Pool, *prompts: list[int]) -> None:
    """Compute prompts one after the other."""
    for ids in prompts:
        lease = pool.admit(ids, len(ids))
        assert lease is not None
        pool.publish(lease, ids[lease.hit_blocks :])
        pool.release(lease)


@given(
    capacity=st.integers(8, 20),
    steps=st.lists(st.tuples(st.integers(1, 63), st.integers(0, 3), st.integers(0, 5)), max_size=60),
)
def test_no_order_of_requests_loses_blocks_or_orphans_one(capacity: int, steps: list[tuple[int, int, int]]) -> None:
    pool, running = Pool(capacity), list[tuple[Lease, list[int]]]()
    cached: set[int] = set()
    for node, output_blocks, choice in steps:
        ids = chain(node)
        if choice < 2 and running:
            lease, prompt = running.pop(choice % len(running))
            cached.update(pool.publish(lease, prompt[len(lease.named) :]))
            pool.release(lease)
        elif (admitted := pool.admit(ids, len(ids) + output_blocks)) is not None:
            running.append((admitted, ids))
        cached.difference_update(pool.evicted)
        pool.evicted.clear()
        pool.check([lease for lease, _ in running])
        assert pool.cached_blocks == len(cached) <= capacity
        assert all(block // 2 in cached for block in cached if block > 1), "a block is cached without its prefix"


def test_released_blocks_stay_hits_and_go_oldest_prompt_first_tail_before_head() -> None:
    """FC-66: freed blocks are hits until their room is needed, in the engine's order."""
    pool = Pool(6)
    fill(pool, [1, 2, 3], [7, 8])
    assert pool.cached_blocks == 5
    lease = pool.admit([9, 10, 11], 3)
    assert lease is not None and lease.hit_blocks == 0
    assert pool.evicted == [3, 2]
    again = pool.admit([1, 2, 3], 1)
    assert again is not None and again.hit_blocks == 1


def test_pinned_blocks_are_never_evicted() -> None:
    pool = Pool(4)
    fill(pool, [1, 2])
    lease = pool.admit([1, 2], 3)
    assert lease is not None and pool.pinned_blocks == 2
    assert pool.admit([5, 6], 2) is None
    assert pool.evicted == []
    pool.release(lease)
    assert pool.admit([5, 6], 3) is not None
    assert pool.evicted == [2]


def test_a_block_published_meanwhile_by_another_is_shared_and_the_copy_given_back() -> None:
    pool = Pool(4)
    first, second = pool.admit([1, 2], 2), pool.admit([1, 2], 2)
    assert first is not None and second is not None
    assert pool.publish(first, [1, 2]) == [1, 2]
    assert pool.publish(second, [1, 2]) == []
    assert pool.free == 2
    pool.check([first, second])


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(SettingError, match="at least 1 block, got 0"):
        Pool(0)


def engine_hits(trace: Trace, num_blocks: int) -> list[int]:
    """Hit tokens of each request on the real engine's pool, requests one after the other."""
    pool = BlockPool(num_blocks, trace.block_tokens)
    hits = []
    for request in range(len(trace)):
        ids = trace.ids(request)
        # Chained ids as tokens: a block of equal tokens, different from every other block's.
        tokens = np.repeat(ids.astype(np.int32), trace.block_tokens)
        found = pool.lookup(tokens)
        total = pool.blocks_for(int(trace.input_tokens[request] + trace.output_tokens[request]))
        fresh = pool.allocate(total - len(found), found)
        assert fresh is not None
        blocks = found + fresh
        if len(found) < len(ids):
            pool.commit(blocks[: len(ids)], len(found), tokens[len(found) * trace.block_tokens :])
        pool.free(blocks)
        hits.append(len(found) * trace.block_tokens)
    return hits


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.6, 0.2, 0.1])
def test_hit_counts_equal_the_real_engines(trace_of: Callable[..., Trace], seed: int, share: float) -> None:
    """FC-66: shared prefixes, a pool for 60 % of the blocks or much less; hits equal request by request."""
    draw = random.Random(seed)
    rows = []
    for request in range(120):
        # A shared head of up to five blocks and a tail nobody else has, so that the last token is never a hit.
        ids = [*chain(draw.randrange(1, 32)), 1_000 + request]
        rows.append((request * 100.0, len(ids) * 4, draw.randrange(1, 9), ids))
    trace = trace_of(*rows, block_tokens=4)
    num_blocks = int(share * len(set(trace.block_ids.tolist())))
    run = replay(trace, "round_robin", FleetSpec(replicas=1, engine=EngineSpec(kv_tokens=num_blocks * 4)))
    assert run.hit_tokens.tolist() == engine_hits(trace, num_blocks)
    assert run.hit_tokens.sum() > 0 and run.blocks_removed > 0
