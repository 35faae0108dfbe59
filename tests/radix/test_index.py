"""What the index answers, case by case; `test_index_against_oracle` does the same at random."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix import Applied, Cleared, Index, Namespace, NamespaceHint, RadixError, Removed, Stored, Tier
from radix.changes import NO_HINT
from tests.radix.build import BASE, BLOCK, apply, depth, store, tokens_of
from tests.radix.shape import assert_empty, check_shape
from tests.radix.trees import KINDS, new_index

pytestmark = pytest.mark.xdist_group("compiled")


@pytest.fixture(params=KINDS)
def index(request: pytest.FixtureRequest) -> Index:
    return new_index(request.param)


def test_copies_are_counted(index: Index) -> None:
    """FC-08, FC-09: two stores need two removals; in between the number of distinct blocks stays."""
    a, b = index.holder("a", 0, model="m"), index.holder("b", 0, model="m")
    apply(index, b, store([1, 2, 3]))
    for _ in range(2):
        apply(index, a, store([1, 2, 3]))
        assert index.stats().blocks == 6
        assert index.match(BASE, tokens_of([1, 2, 3])).depth[:, 0].tolist() == [12, 12]
    assert apply(index, a, Removed((3, 2, 1))).removed == 0
    assert depth(index, a, [1, 2, 3]) == 3
    assert apply(index, a, Removed((1, 2, 3))).removed == 3
    assert (depth(index, a, [1, 2, 3]), depth(index, b, [1, 2, 3])) == (0, 3)


def test_a_hash_stored_again_inside_another_run_counts_once_more(index: Index) -> None:
    """FC-09: X is present after the first removal and absent after the second; a clear resets the counts."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1, 7]), store([7, 8], 1), Removed((7,)))
    assert depth(index, holder, [1, 7, 8]) == 3
    apply(index, holder, Removed((7,)))
    assert depth(index, holder, [1, 7, 8]) == 1
    apply(index, holder, store([7], 1), store([7], 1), Cleared(), store([1, 7]), Removed((7,)))
    assert depth(index, holder, [1, 7]) == 1


def test_without_counting_the_first_removal_empties(index: Index) -> None:
    """FC-08, edge case 17: SGLang repeats stores freely."""
    holder = index.holder("s", 0, model="m", counting=False)
    apply(index, holder, store([1, 2, 3]), store([1, 2, 3]))
    assert apply(index, holder, Removed((1, 2, 3))).removed == 3
    assert_empty(index)


def test_orphans_wait_and_are_attached_when_their_parent_comes(index: Index) -> None:
    """FC-10: B3 and B4 are never credited as a prompt's start; with B1 the whole chain is."""
    holder = index.holder("a", 0, model="m")
    assert apply(index, holder, store([3], 1)) == Applied(orphans=1)
    assert apply(index, holder, store([4], 3)) == Applied(orphans=1)
    assert (depth(index, holder, [3, 4]), index.stats().orphans, index.stats().nodes) == (0, 2, 0)
    assert apply(index, holder, store([1])) == Applied(stored=3)
    assert (depth(index, holder, [1, 3, 4]), index.stats().orphans) == (3, 0)


def test_blocks_behind_one_that_has_its_place_do_not_wait(index: Index) -> None:
    """FC-10: their parent is known on another tier; only the copies before it wait."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, replace(store([1, 2, 3]), tier=Tier.HOST), Removed((1,), Tier.HOST))
    assert apply(index, holder, store([2, 3, 4], 1)) == Applied(stored=2, orphans=1)
    assert apply(index, holder, store([1])) == Applied(stored=2)
    assert depth(index, holder, [1, 2, 3, 4]) == 4
    assert index.stats().orphans == 0


def test_orphans_are_bounded() -> None:
    """FC-10, edge case 16: those that waited longest are given up."""
    index = Index(orphan_limit=10)
    holder = index.holder("a", 0, model="m")
    for i in range(50):
        apply(index, holder, store([1000 + i], 100 + i))
    assert index.stats().orphans == 10
    apply(index, holder, *[store([100 + i]) for i in range(50)])
    assert [depth(index, holder, [100 + i, 1000 + i]) for i in (0, 39, 40, 49)] == [1, 1, 2, 2]
    assert index.stats().orphans == 0


def test_a_clear_takes_all_tiers_of_one_holder(index: Index) -> None:
    """FC-11, case 1, edge case 21: blocks, waiting blocks and guesses; other holders keep theirs."""
    a, b = index.holder("a", 0, model="m"), index.holder("b", 0, model="m")
    for holder in (a, b):
        apply(index, holder, store([1, 2]), store([1], tier=Tier.HOST), store([9], 8))
    index.guess(a, BASE, tokens_of([5, 6]), 1e9)
    assert apply(index, a, Cleared(), Cleared()).removed == 3
    assert [depth(index, a, chain, tier=3) for chain in ([1, 2], [5, 6])] == [0, 0]
    assert depth(index, b, [1, 2]) == 2
    assert (index.stats().orphans, index.stats().guesses) == (1, 0)


def test_removing_what_is_not_there_is_counted_and_nothing_else(index: Index) -> None:
    """FC-12, edge case 17: a and c are gone, b was never stored; other holders are untouched."""
    a, b = index.holder("a", 0, model="m"), index.holder("b", 0, model="m")
    for holder in (a, b):
        apply(index, holder, store([1, 3]))
    assert apply(index, a, Removed((1, 2, 3))) == Applied(removed=2, unknown=1)
    assert (depth(index, a, [1, 3]), depth(index, b, [1, 3])) == (0, 2)


def test_replicas_come_and_go_without_a_trace(index: Index) -> None:
    """FC-14: numbers are reused, memory and nodes stay where they were."""
    stays = index.holder("stays", 0, model="m")
    apply(index, stays, store(range(1, 33)))
    start = index.stats()

    def round_trip(i: int) -> None:
        holder = index.holder(f"r{i}", 0, model=f"m{i}")
        assert holder == 1
        private = np.array([[i, j] for j in range(200)], np.int32).reshape(-1)
        apply(index, holder, store(range(1, 33)), Stored(tuple(range(100, 300)), 32, private, 2))
        apply(index, holder, Stored(tuple(range(400, 600)), None, private, 2))
        index.guess(holder, BASE, private, 1e9)
        index.drop(holder)
        assert index.stats() == start

    for i in range(20):
        round_trip(i)
    tracemalloc.start()
    round_trip(20)
    before = tracemalloc.get_traced_memory()[0]
    for i in range(21, 120):
        round_trip(i)
    assert tracemalloc.get_traced_memory()[0] < before + 20_000
    tracemalloc.stop()
    with pytest.raises(RadixError, match="holder 1 "):
        apply(index, 1, store([1]))


def test_node_count_follows_live_blocks(index: Index) -> None:
    """FC-15: unique suffixes under a shared prefix, stored and removed in random order."""
    rnd = random.Random(3)
    holders = [index.holder(f"r{i}", 0, model="m") for i in range(4)]
    for holder in holders:
        apply(index, holder, store(range(1, 33)))
    start = index.stats()
    assert start.nodes == 1
    live: list[tuple[int, tuple[int, ...]]] = []
    for i in range(4000):
        hashes = tuple(range(1000 + 3 * i, 1003 + 3 * i))
        tokens = np.array([hashes[0], 1, 2, 3] * 3, np.int32)
        holder = rnd.choice(holders)
        apply(index, holder, Stored(hashes, rnd.randint(1, 32), tokens, BLOCK))
        live.append((holder, hashes))
        if len(live) > 50:
            holder, hashes = live.pop(rnd.randrange(len(live)))
            apply(index, holder, *[Removed((value,)) for value in reversed(hashes)])
        assert index.stats().nodes <= len(live) + 32
    check_shape(index)
    for holder, hashes in live:
        apply(index, holder, Removed(hashes))
    assert replace(index.stats(), bytes=0) == replace(start, bytes=0)
    assert index.stats().bytes < start.bytes + 50_000  # tables keep some room


def test_hashes_are_names_of_one_holder_only(index: Index) -> None:
    """FC-16: equal tokens under unrelated hashes are one prefix; a removal reaches its own holder's."""
    a, b = index.holder("a", 0, model="m"), index.holder("b", 0, model="m")
    prompt = np.arange(16, dtype=np.int32)
    apply(index, a, Stored((1, 2, 3, 4), None, prompt, 4))
    apply(index, b, Stored((4, 3, 2**64 - 1, 9), None, prompt, 4))
    assert index.match(BASE, prompt).depth[:, 0].tolist() == [16, 16]
    assert index.stats().nodes == 1
    apply(index, a, Removed((3, 4)))
    assert index.match(BASE, prompt).depth[:, 0].tolist() == [8, 16]


def test_block_sizes_are_learned_per_holder(index: Index) -> None:
    """FC-17: 768 and 64 live side by side, credit is in tokens, an odd event is placed up to its last full block."""
    a, b, c = (index.holder(name, 0, model="m") for name in "abc")
    prompt = np.arange(2000, dtype=np.int32)
    apply(index, a, Stored((1, 2), None, prompt[:1536], 768))
    apply(index, b, Stored(tuple(range(10, 30)), None, prompt[:1280], 64))
    assert apply(index, c, Stored((1, 2, 3), None, prompt[:150], 64)) == Applied(stored=2, skipped=1)
    assert apply(index, c, Stored((8,), 2, prompt[128:192], 16)) == Applied(skipped=1)
    assert index.match(BASE, prompt).depth[:, 0].tolist() == [1536, 1280, 128]
    assert [index.block_tokens(holder) for holder in (a, b, c)] == [768, 64, 64]


def test_credit_stays_inside_a_namespace(index: Index) -> None:
    """FC-18: adapter, adapter with image, adapter with salt: each is credited on its exact counterpart only."""
    holder = index.holder("a", 0, model="m")
    hints = [NamespaceHint("a1"), NamespaceHint("a1", None, (b"img",)), NamespaceHint("a1", "salt")]
    for length, hint in enumerate(hints, 1):
        apply(index, holder, Stored(tuple(range(10 * length, 11 * length)), None, tokens_of(range(1, 1 + length)), BLOCK, hint))
    wanted = [
        Namespace("m"),
        Namespace("m", "a1"),
        Namespace("m", "a2"),
        Namespace("m", "a1", None, (b"img",)),
        Namespace("m", "a1", "salt"),
    ]
    assert [depth(index, holder, [1, 2, 3, 4], namespace) for namespace in wanted] == [0, 1, 0, 2, 3]
    assert depth(index, holder, [1, 2, 3], Namespace("other", "a1")) == 0


words = st.one_of(st.none(), st.text("ka", max_size=2))
namespaces = st.builds(
    Namespace, st.just("m"), words, words, st.lists(st.sampled_from([b"k", b"a", b"ka"]), max_size=2).map(tuple)
)


@given(namespaces, namespaces)
def test_no_credit_crosses_namespaces(stored: Namespace, asked: Namespace) -> None:
    """FC-19: adapter, salt and image strings of one alphabet; an empty string is none."""
    index = Index()
    holder = index.holder("a", 0, model="m")
    hint = NamespaceHint(stored.adapter, stored.salt, stored.media)
    apply(index, holder, store([1, 2], hint=hint))
    same = (stored.adapter or None, stored.salt or None, stored.media) == (asked.adapter or None, asked.salt or None, asked.media)
    assert depth(index, holder, [1, 2], asked) == (2 if same else 0)
    assert (stored.key() == asked.key()) == same


def test_a_salt_is_inherited_from_the_first_block(index: Index) -> None:
    """FC-20, edge case 28: later blocks do not repeat it; the other tenant gets nothing, the same one everything."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1, 2], hint=NamespaceHint(salt="A")), store([3], 2))
    credit = [depth(index, holder, [1, 2, 3], Namespace("m", None, salt)) for salt in ("A", "B", None)]
    assert credit == [3, 0, 0]


def test_the_key_of_a_namespace_is_pinned() -> None:
    """FC-20: request side and event side share this formula; a change of it must be noticed."""
    key = Namespace("m", "ad", "s", (b"i1", b"i2")).key()
    assert key.hex() == "6d010000006d610200000061647301000000736902000000693169020000006932"


def test_ranks_are_separate_holders(index: Index) -> None:
    """FC-21: one rank's restart leaves the other alone; the same (replica, rank) is the same number."""
    ranks = [index.holder("r", rank, model="m") for rank in (0, 1)]
    assert index.holder("r", 1) == ranks[1]
    assert [index.owner(holder) for holder in ranks] == [("r", 0), ("r", 1)]
    for holder in ranks:
        apply(index, holder, store([1, 2]))
    index.clear(ranks[1])
    assert index.match(BASE, tokens_of([1, 2])).depth[:, 0].tolist() == [8, 0]


def test_a_view_built_before_the_model_is_known_stays(index: Index) -> None:
    holder = index.holder("a", 0)
    apply(index, holder, store([1, 2]))
    assert depth(index, holder, [1, 2]) == 0
    index.set_model(holder, "m")
    assert depth(index, holder, [1, 2]) == 2
    index.set_model(holder, "n")
    assert (depth(index, holder, [1, 2]), depth(index, holder, [1, 2], Namespace("n"))) == (0, 2)


def test_a_hole_stops_a_match_until_it_is_filled(index: Index) -> None:
    """FC-15: what lies beyond is kept, and reachable again once the middle is stored again."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1, 2, 3, 4, 5]), Removed((3,)))
    assert depth(index, holder, [1, 2, 3, 4, 5]) == 2
    assert apply(index, holder, store([3], 2)).stored == 1
    assert depth(index, holder, [1, 2, 3, 4, 5]) == 5
    assert index.stats().nodes == 1


def test_filling_a_hole_and_leaving_the_old_path_behind_it_joins_what_is_alike(index: Index) -> None:
    """FC-15: the edge behind the hole is cut, and its upper part belongs to the filled piece."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1, 2, 3, 4, 5, 6]), Removed((1,)), store([1, 2, 9]))
    check_shape(index)
    assert index.stats().nodes == 3
    assert (depth(index, holder, [1, 2, 9]), depth(index, holder, [1, 2, 3, 4, 5, 6])) == (3, 6)


def test_tiers_add_up(index: Index) -> None:
    """FC-16, edge case 19: a column counts what its tier or a faster one has; losing one copy leaves the other."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1, 2]), store([2, 3], 1, tier=Tier.HOST), store([4], 3, tier=Tier.SHARED))
    assert index.match(BASE, tokens_of([1, 2, 3, 4])).depth[holder].tolist() == [8, 12, 12, 16]
    apply(index, holder, Removed((2,)))
    assert index.match(BASE, tokens_of([1, 2, 3, 4])).depth[holder].tolist() == [4, 12, 12, 16]
    apply(index, holder, Removed((1,)))
    assert index.match(BASE, tokens_of([1, 2, 3, 4])).depth[holder].tolist() == [0, 0, 0, 0]


def test_groups_do_not_mix(index: Index) -> None:
    """FC-16, edge case 26: the same hash in two groups is two residencies; only the main group makes credit."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, Stored((1,), None, tokens_of([1]), 4, NO_HINT, Tier.DEVICE, 1), store([1, 2]))
    apply(index, holder, Removed((1,), Tier.DEVICE, 1))
    assert depth(index, holder, [1, 2]) == 2
    apply(index, holder, Stored((3,), 2, tokens_of([3]), 4, NO_HINT, Tier.DEVICE, 1))
    assert (depth(index, holder, [1, 2, 3]), index.stats().orphans) == (2, 1)


@pytest.mark.parametrize(
    "event",
    [
        Stored((5,), None, np.arange(3, dtype=np.int32), 4),
        Stored((5,), None, np.arange(4, dtype=np.int32), 0),
        Stored((5,), None, np.arange(16, dtype=np.int32), 4),  # masked blocks: 1 hash, 4 blocks of tokens
        Stored((5, 5), None, np.arange(8, dtype=np.int32), 4),
        Stored((5, 6), 6, np.arange(8, dtype=np.int32), 4),
        Stored((5,), 1, np.arange(8, dtype=np.int32), 8),  # another block size than its parent's
        Stored((5,), None, np.arange(2, dtype=np.int32), 2),  # the short tail of a prompt
        Stored((5,), 1, np.arange(4, dtype=np.int32), 4, lead=(3,)),  # behind a block that depends on nothing that follows
    ],
)
def test_a_store_that_cannot_be_placed_is_skipped_and_counted(index: Index, event: Stored) -> None:
    """FC-17, edge cases 15, 22, 24: the rest of the batch counts, and its removal finds what can be found."""
    holder = index.holder("a", 0, model="m")
    assert apply(index, holder, store([1]), event, store([2], 1)) == Applied(stored=2, skipped=1)
    assert depth(index, holder, [1, 2]) == 2
    loose = len(event.hashes) == 1
    assert index.stats().loose == loose
    assert apply(index, holder, Removed((5,))) == Applied(unknown=not loose)
    assert index.stats().loose == 0


def test_an_empty_store_is_nothing(index: Index) -> None:
    holder = index.holder("a", 0, model="m")
    assert apply(index, holder, Stored((), 7, np.arange(8, dtype=np.int32), 4)) == Applied()


def test_a_hash_that_names_two_places_stops_at_the_second(index: Index) -> None:
    """FC-16: what follows it could not be removed by name, so it is not placed."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1, 2]))
    assert apply(index, holder, Stored((8, 2, 9), None, tokens_of([8, 7, 9]), BLOCK)) == Applied(stored=1, skipped=1)
    assert (depth(index, holder, [8, 7, 9]), depth(index, holder, [1, 2])) == (1, 2)
    apply(index, holder, Removed((8, 2, 1)))
    assert_empty(index)


def test_two_hashes_on_the_same_tokens_need_two_removals(index: Index) -> None:
    """FC-09: e.g. blocks hashed together with the tokens that follow them."""
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1, 2]), Stored((12,), 1, tokens_of([2]), BLOCK), Removed((2,)))
    assert depth(index, holder, [1, 2]) == 2
    apply(index, holder, Removed((12,)))
    assert depth(index, holder, [1, 2]) == 1


def test_a_match_never_exceeds_the_prompt(index: Index) -> None:
    holder = index.holder("a", 0, model="m")
    apply(index, holder, store([1, 2, 3]))
    prompt = tokens_of([1, 2, 3])
    assert [index.match(BASE, prompt[:n]).tokens(holder) for n in (0, 3, 4, 11, 12)] == [0, 0, 4, 8, 12]
    assert index.match(BASE, prompt.astype(np.int64)[::1]).best() == (holder, 12)  # type: ignore[arg-type]


def test_a_digest_tells_views_apart_and_nothing_else(index: Index) -> None:
    """FC-16: order, edges and other holders do not matter; content, copies, tiers and namespaces do."""
    a, b = index.holder("a", 0, model="m"), index.holder("b", 3)
    apply(index, a, store([1, 2, 3, 4]), store([1, 9]), Removed((1,)))
    for event in (store([1]), store([9], 1), store([2], 1), store([3], 2), store([4, 5], 3), Removed((5,))):
        apply(index, b, event)
    assert index.digest(a) == index.digest(b)
    seen = {index.digest(a)}
    for event in (store([1, 2]), store([5], tier=Tier.HOST), store([6], hint=NamespaceHint("x")), Removed((4,)), Cleared()):
        apply(index, b, event)
        seen.add(index.digest(b))
    assert len(seen) == 6
    assert index.digest(b) == index.digest(index.holder("empty", 0))
