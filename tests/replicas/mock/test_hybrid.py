"""Models with several cache groups: a hit ends where all of them can go on, for the engine and for who follows it."""

from __future__ import annotations

import asyncio
import random
from array import array
from itertools import permutations

import numpy as np
import pytest

from events.decode import decode
from events.types import Batch, Event, Stored
from radix.index import Index
from radix.namespace import Namespace
from replicas.errors import ReplicaError
from replicas.mock.groups import parse_groups
from replicas.mock.pool import CachePool
from replicas.mock.wire import encoder_of
from tests.fakes.mock_engines import Engines, following, ids
from tests.fakes.publisher import until


def prompt_of(count: int) -> array[int]:
    """That many ids."""
    return array("i", range(count))


def computed(pool: CachePool, tokens: array[int], *, step_tokens: int) -> list[Event]:
    """The events of a prompt that is computed in steps of so many tokens, what is cached aside."""
    size = pool.block_tokens
    hits = pool.lookup(tokens)
    whole = len(tokens) // size
    blocks = pool.allocate(whole - len(hits), hits)
    assert blocks is not None
    blocks = [*hits, *blocks]
    first = len(hits)
    while first < whole:
        end = min(whole, first + step_tokens // size)
        pool.commit(blocks[:end], first, tokens[first * size : end * size])
        first = end
    pool.free(blocks)
    return pool.drain_events()


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_a_prompt_in_four_groups_is_five_blocks_in_every_order(order: tuple[int, ...]) -> None:
    """FC-13: three states and the full attention group."""
    pool = CachePool(16, 768, parse_groups("state,state,state,full"))
    events = computed(pool, prompt_of(3840), step_tokens=4096)
    stores = {event.group: event for event in events if isinstance(event, Stored)}
    assert {group: len(event.hashes) for group, event in stores.items()} == {0: 1, 1: 1, 2: 1, 3: 5}
    index = Index()
    holder = index.holder("r", 0)
    for group in order:
        batch = decode(encoder_of("vllm", "map")([stores[group]], 0.0, 0), 0)
        index.apply(holder, batch)
    assert index.match(Namespace(""), np.arange(3841, dtype=np.int32)).tokens(holder) == 5 * 768
    assert len(pool.lookup(prompt_of(3841))) == 5


def test_a_state_serves_only_where_it_was_captured() -> None:
    pool = CachePool(64, 16, parse_groups("full,state"))
    computed(pool, prompt_of(100), step_tokens=64)
    assert [len(pool.lookup(prompt_of(count))) for count in (101, 97, 96, 80, 65, 64)] == [6, 6, 4, 4, 4, 0]


def test_a_window_needs_its_last_blocks_only() -> None:
    pool = CachePool(64, 16, parse_groups("full,window:33"), group_blocks=3)
    computed(pool, prompt_of(96), step_tokens=96)
    assert len(pool.lookup(prompt_of(97))) == 6  # the window keeps the last three blocks and needs two
    assert len(pool.lookup(prompt_of(81))) == 5
    assert len(pool.lookup(prompt_of(65))) == 0  # the block before it slid out


def test_a_state_that_served_is_kept_longest() -> None:
    pool = CachePool(64, 16, parse_groups("full,state"), group_blocks=2)
    for first in (0, 1):
        computed(pool, array("i", [first, *range(40)]), step_tokens=64)
    assert len(pool.lookup(array("i", [0, *range(40)]))) == 2
    computed(pool, array("i", [2, *range(40)]), step_tokens=64)
    assert [len(pool.lookup(array("i", [first, *range(40)]))) for first in (0, 1, 2)] == [2, 0, 2]


@pytest.mark.parametrize("text", ["state", "full,full", "window,full", "full,window:0", "full,state:4", "full,odd", ""])
def test_groups_that_make_no_sense_are_named(text: str) -> None:
    with pytest.raises(ReplicaError, match="group"):
        parse_groups(text)


def test_a_view_of_random_prompts_predicts_what_the_pool_finds() -> None:
    """The index of who follows and the pool agree after every prompt, evictions included."""
    rng = random.Random(5)
    for groups in ("", "full,state", "window:40,full", "state,window:64,full"):
        pool = CachePool(40, 16, parse_groups(groups) if groups else (), 30)
        index = Index()
        holder = index.holder("r", 0)
        for step in range(150):
            family, count = rng.randrange(4), rng.choice((40, 70, 100, 200, 330))
            tokens = array("i", [family, *range(count)] if rng.random() < 0.7 else [family, *range(50), step, *range(count)])
            events = computed(pool, tokens, step_tokens=rng.choice((64, 512)))
            index.apply(holder, Batch(0, step, 0.0, tuple(events)))
            probe = array("i", [rng.randrange(4), *range(rng.choice((41, 90, 202, 300)))])
            found = len(pool.lookup(probe)) * 16
            asked = np.frombuffer(probe, np.int32)[: (len(probe) - 1) // 16 * 16]
            assert index.match(Namespace(""), asked).tokens(holder) == found, (groups, step)


async def test_what_ranks_hold_is_what_their_followers_credit(hybrid: Engines) -> None:
    """FC-21: per rank, with groups and adapters, over the wire."""
    rng = random.Random(11)
    seen: set[int] = set()
    async with following(hybrid, rank=0) as first, following(hybrid, rank=1) as second:
        for _ in range(24):
            follower = rng.choice((first, second))
            adapter = rng.choice((None, "tuned"))
            prompt = ids(rng.choice((50, 90, 130, 210)), first=rng.randrange(80, 83))
            namespace = Namespace("", adapter=adapter)
            asked = np.array(prompt[: (len(prompt) - 1) // 16 * 16], np.int32)
            told = follower.engines.rank(rank=follower.rank)["next_seq"]
            await until(lambda f=follower, at=told: f.stream.counts.batches >= at)  # type: ignore[misc]
            credit = follower.index.match(namespace, asked).tokens(follower.holder)
            reply = await asyncio.to_thread(
                hybrid.complete, prompt, headers={"X-Data-Parallel-Rank": str(follower.rank)}, model=adapter or "h"
            )
            assert reply.cached_tokens == credit
            seen.add(credit)
    assert len(seen) > 2
