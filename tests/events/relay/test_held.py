"""Told again to an empty index, what a relay keeps leads to the view that all the events led to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.relay.held import Held
from events.relay.inventory import told
from radix import Index, Namespace
from radix.changes import Batch, Cleared, Event, GroupKind, NamespaceHint, Removed, Stored, Tier, as_tokens
from tests.events.relay.drawn import GROUPED, SIZE, USUAL, batches


def batch(*events: Event) -> Batch:
    return Batch(None, 0, 0.0, events)


def store(*hashes: int, parent: int | None = None, tier: Tier = Tier.DEVICE, hint: NamespaceHint | None = None) -> Stored:
    """Blocks whose tokens follow from their hashes."""
    tokens = as_tokens([10 * block + i for block in hashes for i in range(SIZE)])
    return Stored(hashes, parent, tokens, SIZE, hint or NamespaceHint(), tier)


class Pair:
    """An index that heard everything, and one that is told what was kept."""

    def __init__(self, *, counting: bool = True) -> None:
        self.counting = counting
        self.held = Held(counting=counting)
        self.index, self.holder = self._empty()

    def _empty(self) -> tuple[Index, int]:
        index = Index()
        return index, index.holder("r", 0, counting=self.counting)

    def hear(self, *events: Event) -> None:
        self.held.apply(batch(*events))
        self.index.apply(self.holder, batch(*events))

    def told(self) -> tuple[Index, int]:
        index, holder = self._empty()
        index.apply(holder, Batch(None, 0, 0.0, tuple(told(self.held.inventory()))))
        return index, holder

    def assert_same(self, *later: Event) -> None:
        """Now, and after what comes later."""
        index, holder = self.told()
        for event in (None, *later):
            if event is not None:
                self.hear(event)
                index.apply(holder, batch(event))
            assert sorted(map(repr, index.dump(holder))) == sorted(map(repr, self.index.dump(self.holder)))
            assert index.digest(holder) == self.index.digest(self.holder)


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(batches(USUAL), max_size=12), st.lists(batches(USUAL), max_size=3))
def test_what_is_told_again_leads_to_the_same_view(counting: bool, before: Sequence[Batch], after: Sequence[Batch]) -> None:
    """FC-08, FC-09, FC-10, FC-12: copies, waiting blocks, holes and tiers."""
    pair = Pair(counting=counting)
    for heard in before:
        pair.hear(*heard.events)
    pair.assert_same(*[event for heard in after for event in heard.events])


def test_a_hole_is_told_as_a_hole() -> None:
    pair = Pair()
    pair.hear(store(1, 2, 3, 4), Removed((2,)))
    pair.assert_same(store(2, parent=1))
    assert pair.index.match(Namespace(""), np.array([10, 11, 20, 21, 30, 31, 40, 41], np.int32)).tokens(0) == 8


def test_a_block_behind_a_removed_one_waits_in_both() -> None:
    pair = Pair()
    pair.hear(store(1, 2, 3), Removed((2,)), store(7, parent=2))
    pair.assert_same(store(2, parent=1))


def test_a_removed_block_that_comes_again_behind_a_removed_one_waits_in_both() -> None:
    pair = Pair()
    pair.hear(store(1, 2, 3), Removed((1, 2)), store(2, parent=1))
    pair.assert_same(store(1))


def test_nothing_is_kept_for_blocks_that_are_gone() -> None:
    """FC-15: what a relay remembers follows what is there."""
    held = Held()
    for turn in range(50):
        hashes = tuple(range(100 * turn + 1, 100 * turn + 11))
        held.apply(batch(store(*hashes), store(*hashes), Removed(hashes[:5]), Removed(hashes), Removed(hashes)))
        held.apply(batch(store(7 + turn, parent=999_999), Removed((7 + turn,))))
    assert len(held) == 0


def test_a_block_stored_with_two_copies_is_gone_after_two_removals_only() -> None:
    """FC-09: also for who joined in between."""
    pair = Pair()
    pair.hear(store(1, 2), store(1, 2), Removed((2,)))
    pair.assert_same(Removed((1, 2)), Removed((1,)))


def test_where_stores_are_repeated_freely_one_removal_is_enough() -> None:
    pair = Pair(counting=False)
    pair.hear(store(1), store(1), store(1), Removed((1,)))
    assert len(pair.held) == 0
    pair.assert_same()


def test_a_tier_that_names_blocks_only_gets_their_places() -> None:
    pair = Pair()
    named = Stored((1, 2), None, as_tokens([]), 0, tier=Tier.HOST)
    pair.hear(store(1, 2), named, Removed((1, 2)))
    pair.assert_same(Removed((1,), Tier.HOST))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_kind_a_cache_group_is_of_is_told_though_none_of_its_blocks_is_left(order: tuple[int, ...]) -> None:
    """FC-13: a hit still counts only as far as every group can serve it."""
    pair = Pair()
    parts = (
        Stored((1, 2), None, as_tokens([0, 1, 2, 3]), SIZE, group=0, kind=GroupKind.FULL),
        Stored((1, 2), None, as_tokens([0, 1, 2, 3]), SIZE, group=1, kind=GroupKind.WINDOW, window_tokens=2),
    )
    pair.hear(*(parts[i] for i in order), Removed((1, 2), group=1))
    index, holder = pair.told()
    tokens = np.array([0, 1, 2, 3], np.int32)
    assert pair.index.match(Namespace(""), tokens).tokens(pair.holder) == 0
    assert index.match(Namespace(""), tokens).tokens(holder) == 0


def test_blocks_that_depend_on_what_follows_them_are_told_so() -> None:
    pair = Pair()
    pair.hear(Stored((1, 2, 3), None, as_tokens([2, 3, 4, 5, 6, 7]), SIZE, lead=(1,)), Removed((1,)))
    pair.assert_same(Removed((3,)))


def test_images_keep_their_namespaces() -> None:
    pair = Pair()
    pair.hear(store(1, 2), store(3, 4, parent=2, hint=NamespaceHint(None, None, (b"i",))), Removed((4,)))
    pair.assert_same(Removed((2,)))


def test_a_store_that_contradicts_itself_is_not_kept() -> None:
    pair = Pair()
    pair.hear(store(1, 1), store(2, parent=2), Cleared(), Stored((5,), None, as_tokens([1, 2, 3, 4, 5, 6, 7, 8]), 2))
    pair.assert_same()
    assert pair.held.apply(batch(store(1, 1))).skipped == 1


def test_a_waiting_block_that_is_removed_leaves_no_hole() -> None:
    pair = Pair()
    pair.hear(store(2, 3, parent=1), Removed((2,)), store(1))
    pair.assert_same(store(2, parent=1))


def test_a_block_that_comes_back_by_name_only_has_no_place_before_its_tokens_come() -> None:
    pair = Pair()
    pair.hear(store(1, 2), Removed((1,)), Stored((1,), None, as_tokens([]), 0, tier=Tier.HOST))
    pair.assert_same(store(1))


@pytest.mark.parametrize("counting", [True, False])
def test_a_copy_that_waits_on_one_tier_does_so_while_another_has_its_place(counting: bool) -> None:
    """FC-10, FC-12: what is true of a block on one tier need not be on the next."""
    pair = Pair(counting=counting)
    first = Stored((1, 2, 3, 4), None, as_tokens([0, 1, 2, 3, 6, 7, 9, 10]), SIZE, tier=Tier.SHARED)
    pair.hear(first, Removed((3,), Tier.SHARED), Stored((4,), 3, as_tokens([9, 10]), SIZE, tier=Tier.DEVICE))
    assert [block.tier for block in pair.index.dump(pair.holder)] == [Tier.SHARED] * 3
    pair.assert_same(Stored((3,), 2, as_tokens([6, 7]), SIZE, tier=Tier.DEVICE))
    assert sorted(block.tier for block in pair.index.dump(pair.holder)) == [Tier.DEVICE] * 2 + [Tier.SHARED] * 3


def test_copies_of_one_tier_may_wait_beside_those_that_have_their_place() -> None:
    """FC-09: stored, its parent removed, stored again: one of two copies counts."""
    pair = Pair()
    pair.hear(store(1, 2), Removed((1,)), store(2, parent=1), store(2, parent=1))
    pair.assert_same(Removed((2,)), store(1), Removed((2,)), Removed((2,)))


def test_blocks_that_wait_for_each_other_wait_on() -> None:
    pair = Pair()
    pair.hear(store(1, parent=2), store(2, parent=1), store(3, parent=2))
    pair.assert_same(store(2))


def test_what_a_sparse_group_has_is_told_with_its_size() -> None:
    """FC-13: its blocks have no place, and a hit's end is where both groups have the end of a block."""
    pair = Pair()
    pair.hear(
        Stored((1, 2, 3, 4), None, as_tokens(range(8)), SIZE, group=0, kind=GroupKind.FULL),
        Stored((2, 4), None, as_tokens(range(8)), 2 * SIZE, group=1, kind=GroupKind.STATE),
        Removed((4,), group=1),
    )
    pair.assert_same()
    index, holder = pair.told()
    for known, number in ((index, holder), (pair.index, pair.holder)):
        assert known.match(Namespace(""), np.arange(8, dtype=np.int32)).tokens(number) == 4


def test_a_name_is_told_beside_the_place_that_a_block_of_the_same_name_has() -> None:
    """FC-13: what a window has gets places until a group is known that keeps everything."""
    pair = Pair()
    window = Stored((1,), None, as_tokens([0, 1]), SIZE, group=1, kind=GroupKind.WINDOW, window_tokens=4)
    pair.hear(window, Stored((1,), None, as_tokens([0, 1]), SIZE, kind=GroupKind.FULL), window)
    pair.assert_same(Removed((1,), group=1), Removed((1,), group=1))


@settings(max_examples=50, deadline=None)
@given(st.lists(batches(GROUPED), max_size=8), st.lists(batches(GROUPED), max_size=3))
def test_the_same_with_several_cache_groups(before: Sequence[Batch], after: Sequence[Batch]) -> None:
    """FC-13: whichever of them keep every block."""
    pair = Pair()
    for heard in before:
        pair.hear(*heard.events)
    pair.assert_same(*[event for heard in after for event in heard.events])
