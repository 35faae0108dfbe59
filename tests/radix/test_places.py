"""Where blocks count beyond a plain run: cache groups, tiers without tokens, images in the middle, pages of pairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from radix import Applied, Cleared, Index, Namespace, NamespaceHint, Removed, Stored, Tier
from radix.changes import GroupKind
from tests.radix.build import BASE, BLOCK, apply, depth, store, tokens_of
from tests.radix.shape import assert_empty
from tests.radix.trees import KINDS, new_index

pytestmark = pytest.mark.xdist_group("compiled")


@pytest.fixture(params=KINDS)
def index(request: pytest.FixtureRequest) -> Index:
    return new_index(request.param)


def test_every_cache_group_must_be_able_to_go_on(index: Index) -> None:
    """FC-13: 3,840 tokens in five blocks of the full group; each state group has the state at the end of the fifth."""
    prompt = np.arange(3840, dtype=np.int32)
    blocks = tuple(range(1, 6))
    full = Stored(blocks, None, prompt, 768, group=3, kind=GroupKind.FULL)
    states = [Stored((5,), None, prompt, 768, group=group, kind=GroupKind.STATE) for group in range(3)]
    for i, order in enumerate(permutations([full, *states])):
        holder = index.holder(f"r{i}", 0, model="m")
        assert apply(index, holder, *order).skipped == 0
        assert index.match(BASE, prompt).tokens(holder) == 3840
        assert index.block_tokens(holder) == 768
        apply(index, holder, Removed((5,), group=1))
        assert index.match(BASE, prompt).tokens(holder) == 0


def test_groups_that_say_nothing_make_credit_where_they_cover_the_prompt(index: Index) -> None:
    """FC-13: engines that do not name the kinds; hashes that do not line up with their tokens never raise."""
    prompt = np.arange(3840, dtype=np.int32)
    full = Stored(tuple(range(1, 6)), None, prompt, 768, group=3)
    others = [Stored((5,), None, prompt, 768, group=group) for group in range(3)]
    for i, order in enumerate(permutations([full, *others])):
        holder = index.holder(f"r{i}", 0, model="m")
        assert apply(index, holder, *order) == Applied(stored=5, skipped=3)
        assert index.match(BASE, prompt).tokens(holder) == 3840
        assert apply(index, holder, *(Removed((5,), group=group) for group in range(3))).unknown == 0


def test_a_window_needs_its_last_blocks_only(index: Index) -> None:
    """FC-13: what slid out of the window is not missed, a hole inside it is."""
    holder = index.holder("a", 0, model="m")
    prompt = tokens_of(range(1, 9))
    apply(index, holder, Stored(tuple(range(1, 9)), None, prompt, BLOCK, kind=GroupKind.FULL))
    window = {"group": 1, "kind": GroupKind.WINDOW, "window_tokens": 9}
    apply(index, holder, Stored(tuple(range(3, 9)), 2, prompt, BLOCK, **window))  # the first two were never kept
    credit = [index.match(BASE, prompt[: n * BLOCK]).tokens(holder) // BLOCK for n in range(9)]
    assert credit == [0, 0, 0, 0, 4, 5, 6, 7, 8]
    apply(index, holder, Removed((6,), group=1))
    assert [depth(index, holder, range(1, n + 1)) for n in range(9)] == [0, 0, 0, 0, 4, 5, 5, 5, 8]
    apply(index, holder, Removed((2,)))
    assert depth(index, holder, range(1, 9)) == 0


def test_a_model_of_windows_only_is_credited_by_its_first_group(index: Index) -> None:
    """FC-13: as long as nothing slid out, which is a lower bound."""
    holder = index.holder("a", 0, model="m")
    window = {"kind": GroupKind.WINDOW, "window_tokens": 8}
    for group in (1, 0):
        apply(index, holder, Stored((1, 2, 3), None, tokens_of([1, 2, 3]), BLOCK, group=group, **window))
    assert depth(index, holder, [1, 2, 3]) == 3
    apply(index, holder, Removed((3,), group=1))
    assert depth(index, holder, [1, 2, 3]) == 2
    apply(index, holder, Removed((1,), group=0))
    assert depth(index, holder, [1, 2, 3]) == 0


def test_groups_are_learned_anew_after_a_clear(index: Index) -> None:
    """FC-13: another process may serve another model."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, Stored((1,), None, tokens_of([1]), BLOCK, group=1, kind=GroupKind.STATE))
    apply(index, holder, Stored((1, 2), None, tokens_of([1, 2]), BLOCK, kind=GroupKind.FULL))
    assert depth(index, holder, [1, 2]) == 1
    apply(index, holder, Cleared(), store([1, 2]))
    assert depth(index, holder, [1, 2]) == 2


def test_a_block_without_tokens_lies_where_another_tier_has_it(index: Index) -> None:
    """Edge cases 19, 23: before, while and after the device has it; each tier's copy goes by itself."""
    holder = index.holder("a", 0, model="m")
    host = Stored((1, 2), None, np.zeros(0, np.int32), 0, tier=Tier.HOST)
    assert apply(index, holder, host) == Applied()
    assert (index.stats().loose, depth(index, holder, [1, 2], tier=1)) == (2, 0)
    assert apply(index, holder, store([1, 2, 3])) == Applied(stored=5)
    assert apply(index, holder, Removed((1, 2, 3))).removed == 3
    assert (depth(index, holder, [1, 2, 3]), depth(index, holder, [1, 2, 3], tier=1)) == (0, 2)
    apply(index, holder, Stored((2,), None, np.zeros(0, np.int32), 0, tier=Tier.DISK), Removed((2,), Tier.HOST))
    assert [depth(index, holder, [1, 2, 3], tier=tier) for tier in Tier] == [0, 1, 2, 2]
    apply(index, holder, Removed((1,), Tier.HOST), Removed((2,), Tier.DISK))
    assert_empty(index)


def test_loose_blocks_are_bounded_and_counted() -> None:
    """Edge case 23: those that came first are given up; copies need as many removals."""
    index = Index(orphan_limit=1)
    holder = index.holder("a", 0, model="m")
    for i in range(40):
        apply(index, holder, Stored((i,), None, np.zeros(0, np.int32), 0))
    assert index.stats().loose == 16
    apply(index, holder, Stored((39,), None, np.zeros(0, np.int32), 0), Removed((39,)))
    assert index.stats().loose == 16
    assert apply(index, holder, Removed((39, 0))) == Applied(unknown=1)
    assert index.stats().loose == 15


def test_an_image_begins_behind_the_text_it_follows(index: Index) -> None:
    """FC-18, edge case 29: the same words before two images; text, one image, the other, and what follows each."""
    holder = index.holder("a", 0, model="m")
    image = [
        replace(store([3, 4], 2), hashes=(10 * i, 10 * i + 1), namespace_hint=NamespaceHint(media=(b"i%d" % i,))) for i in (1, 2)
    ]
    assert apply(index, holder, store([1, 2]), image[0], store([5], 11), image[1]) == Applied(stored=7)
    spaces = [Namespace("m"), *(Namespace("m", None, None, (b"i%d" % i,)) for i in (1, 2, 3))]
    assert [depth(index, holder, [1, 2, 3, 4, 5], space) for space in spaces] == [2, 5, 4, 0]
    both = replace(store([6], 5), namespace_hint=NamespaceHint(media=(b"i1", b"i9")))
    apply(index, holder, both)
    assert depth(index, holder, [1, 2, 3, 4, 5, 6], Namespace("m", None, None, (b"i1", b"i9"))) == 6
    apply(index, holder, Removed((1,)))
    assert [depth(index, holder, [1, 2, 3, 4, 5], space) for space in spaces] == [0, 0, 0, 0]
    apply(index, holder, store([1]))
    assert [depth(index, holder, [1, 2, 3, 4, 5], space) for space in spaces] == [2, 5, 4, 0]
    apply(index, holder, Removed((6, 5, 11, 10, 21, 20, 2, 1)))
    assert_empty(index)


def test_an_image_may_arrive_before_the_text_in_front_of_it(index: Index) -> None:
    """FC-10: it waits like any other block."""
    holder = index.holder("a", 0, model="m")
    image = replace(store([3], 2), namespace_hint=NamespaceHint(media=(b"i",)))
    assert apply(index, holder, store([4], 3), image, store([1, 2])) == Applied(stored=4, orphans=2)
    assert depth(index, holder, [1, 2, 3, 4], Namespace("m", None, None, (b"i",))) == 4


def test_pages_of_pairs_need_the_token_behind_them(index: Index) -> None:
    """Edge case 31: N pairs cover N + 1 tokens; another token behind the last page is another page."""
    holder = index.holder("a", 0, model="m", counting=False)
    apply(index, holder, Stored((1, 2), None, np.arange(6, 14, dtype=np.int32), BLOCK, lead=(5,)))
    apply(index, holder, Stored((3,), 2, np.arange(14, 18, dtype=np.int32), BLOCK, lead=(13,)))
    prompt = np.arange(5, 30, dtype=np.int32)
    credit = [index.match(BASE, prompt[:n]).tokens(holder) for n in (4, 5, 8, 9, 13, 25)]
    assert credit == [0, 4, 4, 8, 12, 12]
    prompt[12] = 1
    assert index.match(BASE, prompt).tokens(holder) == 8
    prompt[0] = 1
    assert index.match(BASE, prompt).tokens(holder) == 0
    apply(index, holder, Removed((3, 2, 1)))
    assert_empty(index)


def test_pages_of_one_token_make_one_long_edge(index: Index) -> None:
    """SGLang's default page: an event per token, and a match all the same."""
    holder = index.holder("a", 0, model="m", counting=False)
    prompt = np.arange(300, dtype=np.int32)
    for i in range(300):
        apply(index, holder, Stored((i + 1,), i or None, prompt[i : i + 1], 1))
    assert index.match(BASE, prompt).tokens(holder) == 300
    assert index.stats().nodes == 1
    apply(index, holder, *(Removed((i,)) for i in range(300, 250, -1)))
    assert index.match(BASE, prompt).tokens(holder) == 250


def test_how_copies_count_may_be_learned_late(index: Index) -> None:
    """Edge case 17: the view starts anew only where it matters."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1]), store([1]))
    index.set_counting(holder, True)
    assert depth(index, holder, [1]) == 1
    index.set_counting(holder, False)
    assert depth(index, holder, [1]) == 0
    apply(index, holder, store([1]), store([1]), store([3], 2), store([3], 2), Removed((1, 3)))
    assert_empty(index)
