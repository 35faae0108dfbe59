"""The index as another process reads it: the same answers as the one that is written, under numbers of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix import Index, Namespace, Stored
from radix.changes import GroupKind
from radix.core.compiled import CompiledTree
from radix.core.layout import SEQUENCE
from radix.core.memory import Memory
from radix.core.shared_matcher import SharedMatcher
from radix.directory import Directory, directory_of
from radix.errors import RadixError
from radix.flat import FlatTree
from radix.index import IndexStats
from radix.shared import SharedIndex
from tests.radix.build import BASE, BLOCK, apply, store, tokens_of
from tests.radix.test_index_against_oracle import Layout, Run

pytestmark = pytest.mark.xdist_group("compiled")

BOTH_FULL: Layout = {0: (GroupKind.FULL, 0), 1: (GroupKind.FULL, 0)}
LIMITED: Layout = {0: (GroupKind.FULL, 0), 1: (GroupKind.WINDOW, 5), 2: (GroupKind.NOTHING, 0)}


class Pair:
    """An index over shared memory and a reader of it, both in this process but at two addresses."""

    def __init__(self) -> None:
        self.tree = FlatTree(CompiledTree(shared=True, huge_pages=False))
        self.index = Index()
        self.index.work_on(self.tree)
        assert not self.index.move()
        self.reader = SharedIndex()

    def open(self) -> SharedMatcher:
        """Another mapping of the tree."""
        assert self.tree.compiled.memory.handle is not None
        return SharedMatcher(Memory(handle=self.tree.compiled.memory.handle))

    def start(self) -> None:
        """Let the reader read."""
        self.reader.adopt(self.open(), directory_of(self.index, self.tree))

    def tell(self) -> None:
        """What the writer's process sends when its directory changed."""
        self.reader.learn(directory_of(self.index, self.tree))

    def close(self) -> None:
        assert self.tree.compiled.memory.handle is not None
        os.close(self.tree.compiled.memory.handle)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """With one replica on both sides, whose numbers differ: 1 where it is read, 0 where it is written."""
    pair = Pair()
    assert pair.reader.holder("elsewhere", 0) == 0
    assert (pair.index.holder("r", 0, model="m"), pair.reader.holder("r", 0)) == (0, 1)
    pair.reader.set_model(1, "m")
    pair.start()
    yield pair
    pair.close()


def depth(pair: Pair, hashes: list[int], namespace: Namespace = BASE, *, tier: int = 0, holder: int = 1) -> int:
    """Matched blocks of a holder as the reader sees it."""
    match = pair.reader.match(namespace, tokens_of(hashes))
    assert match.known
    return match.tokens(holder, tier) // BLOCK


def test_what_is_stored_is_seen_under_the_readers_own_number(pair: Pair) -> None:
    apply(pair.index, 0, store([1, 2, 3]))
    pair.tell()
    assert depth(pair, [1, 2, 3, 4]) == 3
    assert depth(pair, [1, 2], holder=0) == 0
    apply(pair.index, 0, store([4], parent=3))  # what happens in known groups needs no telling
    assert depth(pair, [1, 2, 3, 4]) == 4


def test_a_model_is_the_readers_own_word(pair: Pair) -> None:
    apply(pair.index, 0, store([1]))
    pair.tell()
    pair.reader.set_model(1, "other")
    assert depth(pair, [1]) == 0
    assert depth(pair, [1], Namespace("other")) == 1


def test_a_salt_that_came_after_the_directory_is_found(pair: Pair) -> None:
    """FC-20: a root follows from the namespace; nobody has to tell that it is there."""
    apply(pair.index, 0, store([1]))
    pair.tell()
    salted = Namespace("m", salt="tenant")
    assert depth(pair, [1], salted) == 0
    stored = store([7, 8])
    hinted = Stored(stored.hashes, None, stored.tokens, BLOCK, type(stored.namespace_hint)(salt="tenant"))
    apply(pair.index, 0, hinted)
    assert depth(pair, [7, 8], salted) == 2
    assert depth(pair, [7, 8]) == 0


def test_block_sizes_are_as_the_writer_learned_them(pair: Pair) -> None:
    assert pair.reader.block_tokens(1) == 0
    apply(pair.index, 0, store([1]))
    pair.tell()
    assert (pair.reader.block_tokens(0), pair.reader.block_tokens(1)) == (0, BLOCK)


def test_guesses_are_local_and_end(pair: Pair) -> None:
    """FC-28."""
    apply(pair.index, 0, store([1]))
    pair.tell()
    guess = pair.reader.guess(1, BASE, tokens_of([1, 2, 3]), expires_at=10.0)
    match = pair.reader.match(BASE, tokens_of([1, 2, 3]), now=9.0)
    assert (match.tokens(1), match.guessed.tolist()) == (3 * BLOCK, [False, True])
    assert pair.reader.stats().guesses == 1
    pair.reader.withdraw(guess)
    assert depth(pair, [1, 2, 3]) == 1
    pair.reader.guess(1, BASE, tokens_of([1, 2, 3]), expires_at=10.0)
    assert pair.reader.match(BASE, tokens_of([1, 2, 3]), now=10.0).tokens(1) == BLOCK
    pair.reader.guess(1, BASE, tokens_of([5]), expires_at=20.0)
    pair.reader.clear(1)
    assert pair.reader.expire(30.0) == 0


def test_without_a_tree_the_answer_is_unknown(pair: Pair) -> None:
    apply(pair.index, 0, store([1]))
    pair.tell()
    pair.reader.lose()
    match = pair.reader.match(BASE, tokens_of([1]))
    assert (match.known, match.tokens(1), pair.reader.reads) == (False, 0, False)
    pair.start()
    assert depth(pair, [1]) == 1


def test_a_writer_that_died_in_a_change_makes_the_answer_unknown(pair: Pair) -> None:
    apply(pair.index, 0, store([1]))
    pair.tell()
    pair.tree.compiled.memory.words(0, 8)[SEQUENCE >> 3] += 1
    assert not pair.reader.match(BASE, tokens_of([1])).known


def test_a_dropped_holder_is_gone_and_its_number_is_given_again(pair: Pair) -> None:
    """FC-14."""
    apply(pair.index, 0, store([1]))
    pair.tell()
    pair.reader.drop(1)
    with pytest.raises(RadixError, match="holder 1 is not in use"):
        pair.reader.block_tokens(1)
    assert pair.reader.match(BASE, tokens_of([1])).tokens(1) == 0
    assert pair.reader.holder("other", 0) == 1
    pair.reader.set_model(1, "m")
    assert pair.reader.match(BASE, tokens_of([1])).tokens(1) == 0


def test_a_limited_hit_is_an_upper_bound_and_counted(pair: Pair) -> None:
    """FC-13: where a recurrent state is missing the writer gives no credit; a reader does not know of it, and says so."""
    tokens = tokens_of([1, 2])
    apply(pair.index, 0, Stored((1, 2), None, tokens, BLOCK, group=3, kind=GroupKind.FULL))
    pair.tell()
    assert (depth(pair, [1, 2]), pair.reader.upper_bounds) == (2, 0)
    apply(pair.index, 0, Stored((9,), None, tokens[:0], 0, group=0, kind=GroupKind.STATE))
    pair.tell()
    assert pair.index.match(BASE, tokens).tokens(0) == 0
    assert (depth(pair, [1, 2]), pair.reader.upper_bounds) == (2, 1)


def test_groups_that_must_agree_meet_where_both_have_the_end_of_a_block(pair: Pair) -> None:
    tokens = tokens_of([1, 2, 3, 4])
    apply(pair.index, 0, Stored((1, 2, 3), None, tokens[: 3 * BLOCK], BLOCK, group=0, kind=GroupKind.FULL))
    apply(pair.index, 0, Stored((7, 8), None, tokens, 2 * BLOCK, group=1, kind=GroupKind.FULL))
    pair.tell()
    assert depth(pair, [1, 2, 3, 4]) == pair.index.match(BASE, tokens).tokens(0) // BLOCK == 2


def test_sizes_are_the_writers(pair: Pair) -> None:
    pair.reader.note(IndexStats(3, 4, 5, 6, 7, 8, 9))
    assert pair.reader.stats() == IndexStats(3, 4, 5, 0, 7, 8, 9)


class SharedRun(Run):
    """A random life of an index over shared memory, with a reader that knows its holders in another order."""

    def __init__(self, seed: int, *, exact: bool, layout: Layout | None, grains: list[int], richness: float) -> None:
        self.pair = Pair()
        super().__init__(seed, holders=3, grains=grains, honest=True, kind="plain", layout=layout, richness=richness)
        owners = [self.index.owner(holder) for holder in self.views]
        self.index = self.pair.index
        for holder, (replica, rank) in enumerate(owners):
            assert self.index.holder(replica, rank, model="m", counting=holder % 3 != 2) == holder
        shuffled = list(owners)
        random.Random(seed).shuffle(shuffled)
        self.numbers = {owner: self.pair.reader.holder(*owner) for owner in shuffled}
        for number in self.numbers.values():
            self.pair.reader.set_model(number, "m")
        self.pair.start()
        self.exact = exact
        self.told = Directory()
        self.compared = 0

    def compare(self) -> None:
        directory = directory_of(self.index, self.pair.tree)
        if directory != self.told:
            self.told = directory
            self.pair.reader.learn(directory)
        for hint, prompt in self._prompts():
            namespace = Namespace("m", *hint)
            if any(root.key_in_namespace.before for root in self.pair.tree.roots_of(namespace.without_model().key())):
                continue  # an image behind the first block
            self.compared += 1
            ours, theirs = (each.match(namespace, np.array(prompt, np.int32)) for each in (self.pair.reader, self.index))
            assert ours.known
            for holder in self.views:
                mine, other = ours.depth[self.numbers[self.index.owner(holder)]], theirs.depth[holder]
                assert (mine == other).all() if self.exact else (mine >= other).all(), (hint, prompt, holder, mine, other)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    layout=st.sampled_from([None, BOTH_FULL, LIMITED]),
    grains=st.sampled_from([[1], [2], [4]]),
    richness=st.sampled_from([0.0, 0.3]),
)
def test_a_reader_sees_what_the_writer_sees(seed: int, layout: Layout | None, grains: list[int], richness: float) -> None:
    """Exactly where no group limits a hit, and never less where one does."""
    run = SharedRun(
        seed, exact=layout is not LIMITED and not (layout and richness), layout=layout, grains=grains, richness=richness
    )
    try:
        for _ in range(25):
            run.step()
        assert run.compared > 0
    finally:
        run.pair.close()
