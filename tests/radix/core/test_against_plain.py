"""The compiled tree does what the plain tree and plain dictionaries do, whatever happens in whatever order."""

from __future__ import annotations

import pytest

from tests.radix.core.life import SHAPES, live

pytestmark = pytest.mark.xdist_group("jit")


@pytest.mark.parametrize(("grains", "holders", "tiers"), SHAPES)
def test_it_equals_the_plain_tree_and_dictionaries(grains: tuple[int, ...], holders: int, tiers: int) -> None:
    live(hash((grains, holders, tiers)), 6_000, grains, holders, tiers)


def test_more_than_256_holders_widen_the_nodes_of_a_living_tree() -> None:
    live(7, 1_500, (16,), 300)


def test_what_stays_of_a_rejected_store_joins_what_is_above_it() -> None:
    """A life that once left two edges which should be one."""
    live(5068, 1_500, (5, 16), 1)
