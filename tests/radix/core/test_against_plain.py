"""The compiled tree does what the plain tree and plain dictionaries do, whatever happens in whatever order."""

from __future__ import annotations

import random

import pytest

from radix.core.compiled import CompiledTree
from radix.plain import PlainTree
from tests.radix.core.twins import Twins, assert_gone, compare_shapes

pytestmark = pytest.mark.xdist_group("jit")


def run(seed: int, steps: int, grains: tuple[int, ...], holders: int, tiers: int = 1, room: int = 64) -> None:
    """A life of a tree: several roots, mixed operations, shapes compared now and then, all gone in the end."""
    chance = random.Random(seed)
    tree, plain = CompiledTree(holders=room, huge_pages=False), PlainTree()
    numbers = sorted(chance.sample(range(max(holders, 70)), holders)) if holders < 40 else list(range(holders))
    members = [(holder, tier) for holder in numbers for tier in range(tiers)]
    sides = [Twins(tree, plain, chance, grain, members) for grain in grains]
    for step in range(steps):
        chance.choice(sides).step()
        if step % 97 == 0:
            compare_shapes(tree, plain, sides)
    compare_shapes(tree, plain, sides)
    for side in sides:
        for at in range(len(members)):
            side.clear(at)
        root = tree.root(side.key, side.grain, make=False)
        assert root == 0 or tree.drop_root(root)
    assert tree.empty_roots == 0
    assert_gone(tree)


@pytest.mark.parametrize(
    ("grains", "holders", "tiers"),
    [
        ((16,), 3, 1),
        ((16,), 8, 1),
        ((16, 16), 2, 3),
        ((4,), 40, 1),
        ((1,), 5, 1),
        ((2, 3), 3, 2),
        ((5, 16), 1, 1),
        ((1, 7), 8, 4),
    ],
)
def test_it_equals_the_plain_tree_and_dictionaries(grains: tuple[int, ...], holders: int, tiers: int) -> None:
    run(hash((grains, holders, tiers)), 6_000, grains, holders, tiers)


def test_more_than_256_holders_widen_the_nodes_of_a_living_tree() -> None:
    run(7, 1_500, (16,), 300)


def test_what_stays_of_a_rejected_store_joins_what_is_above_it() -> None:
    """A life that once left two edges which should be one."""
    run(5068, 1_500, (5, 16), 1)
