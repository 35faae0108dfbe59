"""The index stays within its bytes, gives up what was used longest ago, and says whose view is no longer whole."""

from __future__ import annotations

import numpy as np
import pytest

from radix import Index, RadixError, Removed, Stored
from radix.changes import GroupKind
from radix.core.compiled import CompiledTree
from radix.flat import FlatTree
from tests.radix.build import BASE, apply
from tests.radix.shape import assert_empty, check_shape

pytestmark = pytest.mark.xdist_group("compiled")
MIB = 1 << 20
BLOCK = 16


@pytest.fixture
def index() -> Index:
    index = Index(budget_bytes=4 * MIB)
    index.work_on(FlatTree(CompiledTree(huge_pages=False)))
    index.move()
    return index


def prompt(number: int, blocks: int = 64) -> np.ndarray:
    tokens = np.arange(blocks * BLOCK, dtype=np.int32)
    tokens[0] = -number - 1
    return tokens


def store(number: int, blocks: int = 64, **more: object) -> Stored:
    hashes = tuple(range(number * 1000, number * 1000 + blocks))
    return Stored(hashes, None, prompt(number, blocks), BLOCK, **more)  # type: ignore[arg-type]


def test_an_endless_stream_stays_within_the_budget(index: Index) -> None:
    """FC-14: an engine that never says what it removes can not make the index grow."""
    a, b = index.holder("a", 0, model="m"), index.holder("b", 0, model="m")
    apply(index, b, store(0))
    for number in range(1, 2000):
        apply(index, a, store(number))
        if number % 50 == 0:
            assert index.match(BASE, prompt(0)).tokens(b) == 64 * BLOCK  # used now and then, so it stays
            assert index.stats().bytes < 5 * MIB
    stats = index.stats()
    assert stats.budget_bytes == 4 * MIB
    assert stats.evicted == index.trimmed(a) > 64_000
    assert index.trimmed(b) == 0
    assert stats.blocks == 2000 * 64 - stats.evicted
    assert index.match(BASE, prompt(1999)).tokens(a) == 64 * BLOCK
    assert index.match(BASE, prompt(1)).tokens(a) == 0
    check_shape(index)
    index.clear(a)
    assert index.trimmed(a) == 0
    index.clear(b)
    assert_empty(index)


def test_removals_of_what_was_given_up_are_unknown_and_harmless(index: Index) -> None:
    a = index.holder("a", 0, model="m")
    for number in range(2000):
        apply(index, a, store(number))
    gone = apply(index, a, Removed(tuple(range(64))))
    assert (gone.removed, gone.unknown) == (0, 64)
    late = apply(index, a, Stored((77,), 63, np.arange(BLOCK, dtype=np.int32), BLOCK))
    assert (late.stored, late.orphans) == (0, 1)
    apply(index, a, store(0))
    assert index.stats().orphans == 0
    assert index.match(BASE, np.concatenate([prompt(0), np.arange(BLOCK, dtype=np.int32)])).tokens(a) == 65 * BLOCK


def test_groups_that_have_to_agree_stay_right_after_an_eviction(index: Index) -> None:
    """FC-13: names of blocks that went are forgotten with them."""
    a = index.holder("a", 0, model="m")
    full, state = {"group": 0, "kind": GroupKind.FULL}, {"group": 1, "kind": GroupKind.STATE}
    for number in range(1500):
        ends = Stored((number * 1000 + 63,), None, prompt(number), 64 * BLOCK, **state)  # type: ignore[arg-type]
        apply(index, a, store(number, **full), ends)
        assert index.match(BASE, prompt(number)).tokens(a) == 64 * BLOCK
    assert index.trimmed(a) > 0
    assert index.match(BASE, prompt(0)).tokens(a) == 0
    apply(index, a, store(0, **full))
    assert index.match(BASE, prompt(0)).tokens(a) == 64 * BLOCK


def test_a_budget_too_small_to_work_with_is_refused() -> None:
    index = Index(budget_bytes=1000)
    with pytest.raises(RadixError, match="budget_bytes must be at least 1048576, got 1000"):
        index.work_on(FlatTree(CompiledTree(huge_pages=False)))


def test_views_that_are_moved_are_trimmed_at_once() -> None:
    """FC-14: the plain tree has no budget; the tree its views are moved to keeps it although nothing more is stored."""
    index = Index(budget_bytes=MIB)
    holders = [index.holder(name, 0, model="m") for name in "abcd"]
    for holder in holders:
        for number in range(100):
            apply(index, holder, store(number + 1000 * holder))
    tree = FlatTree(CompiledTree(huge_pages=False))
    index.work_on(tree)
    while index.move():
        assert tree.compiled.bytes_used <= MIB
    assert sum(index.trimmed(holder) for holder in holders) == index.stats().evicted > 0
    check_shape(index)


def test_large_blocks_are_looked_at_as_often_as_their_tokens_ask(index: Index) -> None:
    a, most = index.holder("a", 0, model="m"), 0
    for number in range(100):
        hashes = tuple(range(number * 1000, number * 1000 + 40))
        apply(index, a, Stored(hashes, None, np.arange(number, number + 40 * 1024, dtype=np.int32), 1024))
        most = max(most, index.stats().bytes)
    assert 3 * MIB < most < 5 * MIB
