"""A view is the same after it went from the plain tree to the compiled one, and both kinds of tree have equal digests."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix import Batch, Index, NamespaceHint, Removed, Stored
from radix.core.compiled import CompiledTree
from radix.flat import FlatTree
from tests.radix.build import BASE, apply, depth, store, tokens_of
from tests.radix.shape import assert_empty, check_shape
from tests.radix.test_index_against_oracle import LAYOUTS, Run

pytestmark = pytest.mark.xdist_group("compiled")


def start_moving(index: Index) -> None:
    index.work_on(FlatTree(CompiledTree(huge_pages=False)))


@pytest.mark.parametrize("seed", range(6))
def test_a_life_goes_on_where_it_was_moved(seed: int) -> None:
    """Holes, copies, tiers, leads, images, placeholders: every answer stays, one holder after the other moves, life goes on."""
    layout = LAYOUTS[seed % len(LAYOUTS)] if seed % 2 else None
    run = Run(seed, holders=4, grains=[1, 2], honest=True, kind="plain", layout=layout, richness=0.3)
    for _ in range(60):
        run.step()
    before = [run.index.digest(holder) for holder in run.views]
    start_moving(run.index)
    while run.index.move():
        run.compare()
    assert [run.index.digest(holder) for holder in run.views] == before
    assert len(run.index._trees) == 1
    run.compare_dumps()
    for _ in range(30):
        run.step()
    run.compare_dumps()
    run.finish()


def test_both_trees_answer_while_holders_move() -> None:
    index = Index()
    old = index.holder("old", 0, model="m")
    apply(index, old, store([1, 2, 3]), store([1, 2, 3]), Removed((2,)), Removed((2,)))
    start_moving(index)
    new = index.holder("new", 0, model="m")
    apply(index, new, store([1, 2]))
    assert (depth(index, old, [1, 2, 3]), depth(index, new, [1, 2, 3])) == (1, 2)
    assert index.stats().blocks == 4
    assert index.move()
    assert not index.move()
    assert (depth(index, old, [1, 2, 3]), depth(index, new, [1, 2, 3])) == (1, 2)
    check_shape(index)
    apply(index, old, store([2], 1))
    assert depth(index, old, [1, 2, 3]) == 3
    for holder in (old, new):
        index.clear(holder)
    assert_empty(index)


def test_a_holder_that_moves_keeps_its_waiting_blocks() -> None:
    """FC-10: blocks that wait for their parent find it after the move."""
    index = Index()
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([3, 4], 2), store([1]))
    start_moving(index)
    assert index.move()
    assert (index.stats().orphans, depth(index, holder, [1, 2, 3, 4])) == (2, 1)
    apply(index, holder, store([2], 1))
    assert (index.stats().orphans, depth(index, holder, [1, 2, 3, 4])) == (0, 4)


def test_many_salts_leave_nothing_behind() -> None:
    """FC-14: a root goes with its last block, also where many go at once."""
    index = Index()
    start_moving(index)
    index.move()
    holder = index.holder("a", 0, model="m")
    rnd = random.Random(1)
    for count in (3, 100):
        salted = [index.apply(holder, Batch(0, 0, 0.0, (_salted(name),))).stored for name in rnd.sample(range(1, 10_000), count)]
        assert sum(salted) == count
        index.clear(holder)
        assert_empty(index)
    assert not index.match(BASE, np.arange(64, dtype=np.int32)).depth.any()


def _salted(name: int) -> Stored:
    return Stored((name,), None, tokens_of([name]), 4, NamespaceHint(salt=f"s{name}"))
