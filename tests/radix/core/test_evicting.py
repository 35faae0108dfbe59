"""Eviction: who goes first, what stays whole, what is told, and what happens when the mapping is full."""

from __future__ import annotations

import numpy as np
import pytest

from radix.core import layout as lay
from radix.core.compiled import CompiledTree, as_hashes
from radix.core.matcher import Matcher
from radix.errors import RadixError
from radix.match import Int32Array
from tests.radix.core.memory_check import check_memory, header

pytestmark = pytest.mark.xdist_group("jit")

GRAIN = 16
BLOCKS = 8


def prompt(seed: int, blocks: int = BLOCKS) -> Int32Array:
    """Tokens of some blocks, different for each seed from the first one on."""
    return np.random.default_rng(seed).integers(0, 128_000, blocks * GRAIN).astype(np.int32)


def names(seed: int, blocks: int = BLOCKS) -> list[int]:
    """The hashes of those blocks."""
    return [seed * 10_000 + at + 1 for at in range(blocks)]


class Stocked:
    """A tree of one holder with prompts 0..count-1, stored in this order."""

    def __init__(self, count: int = 0) -> None:
        self.tree = CompiledTree(huge_pages=False)
        self.root = self.tree.root(b"model", GRAIN)
        self.ledger = self.tree.open(0)
        for seed in range(count):
            self.store(seed)

    def store(self, seed: int, blocks: int = BLOCKS) -> None:
        """Hold one prompt."""
        self.tree.store(self.ledger, self.root, GRAIN, as_hashes(names(seed, blocks)), prompt(seed, blocks))

    def depth(self, seed: int) -> int:
        """Blocks of a prompt that are still there, without being taken for a use of it."""
        silent = Matcher(self.tree.memory, self.tree._entries, stamping=False)
        return (silent.holders(self.root, GRAIN, prompt(seed)) or {}).get(0, 0)

    def there(self, count: int) -> list[int]:
        """The prompts that are whole; none is in part."""
        depths = [self.depth(seed) for seed in range(count)]
        assert set(depths) <= {0, BLOCKS}
        return [seed for seed in range(count) if depths[seed]]

    def set_header(self, field: int, value: int) -> None:
        """Write one header word."""
        self.tree.memory.words(field, 1)[0] = value


def test_what_was_stored_first_goes_first() -> None:
    stocked = Stocked(200)
    stocked.tree.evict(stocked.tree.bytes_used // 2)
    left = stocked.there(200)
    assert 50 < len(left) < 150
    assert left == list(range(200 - len(left), 200))


def test_what_was_matched_stays_and_what_was_not_goes() -> None:
    stocked = Stocked(200)
    used = list(range(0, 60, 3))
    for seed in used:
        stocked.tree.matcher.best(stocked.root, GRAIN, prompt(seed))
    stocked.store(200)  # time goes by stores
    stocked.tree.evict(stocked.tree.bytes_used // 2)
    left = stocked.there(200)
    assert set(used) <= set(left)
    rest = [seed for seed in left if seed not in used]
    assert rest == list(range(rest[0], 200))


def test_a_reader_that_may_not_write_leaves_no_trace() -> None:
    stocked = Stocked(100)
    assert stocked.depth(0) == BLOCKS
    stocked.tree.evict(stocked.tree.bytes_used - 1)
    assert stocked.depth(0) == 0


def test_a_prompt_that_is_stored_again_is_in_use() -> None:
    stocked = Stocked(100)
    stocked.store(0)
    stocked.tree.evict(stocked.tree.bytes_used // 2)
    assert stocked.depth(0) == BLOCKS
    assert stocked.depth(1) == 0


def test_a_chain_is_cut_from_its_end_and_a_use_of_its_end_is_one_of_its_beginning() -> None:
    stocked = Stocked(1)
    tree, ledger = stocked.tree, stocked.ledger
    other = tree.open(1)
    for seed in range(1, 40):  # each begins like prompt 0 and goes on by itself
        tree.store(ledger, stocked.root, GRAIN, as_hashes(names(seed, 1)), prompt(seed, 1), (ledger, names(0)[-1]))
    for seed in range(40, 80):
        tree.store(other, stocked.root, GRAIN, as_hashes(names(seed)), prompt(seed))
    tree.evict(tree.bytes_used // 2)
    assert stocked.depth(0) == 0  # all of it was older than prompts 40 and on
    check_memory(tree)
    for seed in range(40, 80):
        tree.remove(other, as_hashes(names(seed)))
    tree.clear(ledger)
    stocked.store(0)
    for seed in range(1, 40):
        tree.store(ledger, stocked.root, GRAIN, as_hashes(names(seed, 1)), prompt(seed, 1), (ledger, names(0)[-1]))
    tree.evict(tree.bytes_used * 9 // 10)
    assert 1 < tree.sizes().nodes - 2 < 40
    assert stocked.depth(0) == BLOCKS  # ends went first, and some are left
    check_memory(tree)


def test_a_beginning_whose_end_is_removed_is_as_recently_used_as_the_end_was() -> None:
    stocked = Stocked(1)
    tree, ledger = stocked.tree, stocked.ledger
    tree.store(tree.open(1), stocked.root, GRAIN, as_hashes(names(0)), prompt(0))  # so that the end is an edge of its own
    tree.store(ledger, stocked.root, GRAIN, as_hashes(names(500, 1)), prompt(500, 1), (ledger, names(0)[-1]))
    for seed in range(1, 50):
        stocked.store(seed)
    tree.matcher.best(stocked.root, GRAIN, np.concatenate([prompt(0), prompt(500, 1)]))
    stocked.store(50)
    tree.remove(ledger, as_hashes(names(500, 1)))
    tree.evict(tree.bytes_used // 2)
    assert stocked.depth(0) == BLOCKS
    assert stocked.depth(1) == 0


def test_edges_that_become_one_are_as_recently_used_as_either_was() -> None:
    stocked = Stocked(1)
    tree = stocked.tree
    other = tree.open(1)
    tree.store(other, stocked.root, GRAIN, as_hashes(names(0, 3)), prompt(0)[: 3 * GRAIN])
    for seed in range(1, 50):
        stocked.store(seed)
    tree.matcher.best(stocked.root, GRAIN, prompt(0)[: 3 * GRAIN])
    stocked.store(50)
    nodes = tree.sizes().nodes
    tree.clear(other)
    assert tree.sizes().nodes == nodes - 1
    tree.evict(tree.bytes_used // 2)
    assert stocked.depth(0) == BLOCKS
    assert stocked.depth(1) == 0


def test_a_beginning_that_is_used_stays_when_its_only_end_goes() -> None:
    stocked = Stocked(1)
    tree, ledger = stocked.tree, stocked.ledger
    tree.store(tree.open(1), stocked.root, GRAIN, as_hashes(names(0)), prompt(0))  # so that the end is an edge of its own
    tree.store(ledger, stocked.root, GRAIN, as_hashes(names(500, 1)), prompt(500, 1), (ledger, names(0)[-1]))
    for seed in range(1, 50):
        stocked.store(seed)
    tree.matcher.best(stocked.root, GRAIN, prompt(0))
    stocked.store(50)
    tree.evict(tree.bytes_used // 2)
    assert tree.find(ledger, names(500, 1)[0]) is None
    assert stocked.depth(0) == BLOCKS
    assert stocked.depth(1) == 0


def test_what_stays_of_a_cut_chain_is_still_found_by_its_hashes() -> None:
    stocked = Stocked(1)
    tree = stocked.tree
    tree.store(tree.open(1), stocked.root, GRAIN, as_hashes(names(0, 3)), prompt(0, 8)[: 3 * GRAIN])
    assert tree.evict(tree.bytes_used - 1).dropped == {stocked.ledger: BLOCKS - 3}
    assert stocked.depth(0) == 3
    assert tree.sizes().stubs == 0  # the hashes name the node that stayed, not the one that went
    assert tree.remove(stocked.ledger, as_hashes(names(0))) == (3, [3, 4, 5, 6, 7])
    check_memory(tree)


def test_an_eviction_is_a_number_of_changes_that_readers_can_tell_apart() -> None:
    stocked = Stocked(320)
    before = header(stocked.tree.memory, lay.SEQUENCE)
    evicted = stocked.tree.evict(0)
    changes = header(stocked.tree.memory, lay.SEQUENCE) - before
    assert evicted.leaves == 320
    assert changes % 2 == 0
    assert changes // 2 >= 320 // 32


def test_the_ledgers_are_told_what_they_lost() -> None:
    stocked = Stocked(50)
    tree = stocked.tree
    second = tree.open(1, 2)
    tree.store(second, stocked.root, GRAIN, as_hashes(names(0)), prompt(0))
    tree.store(second, stocked.root, GRAIN, as_hashes([77]), prompt(0)[:GRAIN])  # a second name of a block
    third = tree.open(2)
    evicted = tree.evict(0)
    assert evicted.dropped == {stocked.ledger: 50 * BLOCKS, second: BLOCKS + 1}
    assert evicted.leaves == 50
    sizes = tree.sizes()
    assert (sizes.blocks, sizes.handles, sizes.shares, sizes.stubs, sizes.nodes) == (0, 0, 0, 0, 1)
    assert tree.remove(second, as_hashes([77])) == (0, [0])
    assert tree.clear(third) == 0
    check_memory(tree)


def test_tables_shrink_with_what_they_hold() -> None:
    stocked = Stocked()
    for seed in range(400):
        stocked.store(seed, 60)
    tables = (lay.CHILDREN_TABLE, lay.LEDGERS + stocked.ledger * 64)
    before = [header(stocked.tree.memory, field) & 0xFFFFFFFF for field in tables]
    stocked.tree.evict(stocked.tree.bytes_used // 20)
    after = [header(stocked.tree.memory, field) & 0xFFFFFFFF for field in tables]
    assert all(now * 4 < then for now, then in zip(after, before, strict=True))
    assert stocked.tree.bytes_used > 0
    assert stocked.depth(399) == BLOCKS
    check_memory(stocked.tree)


def test_the_clock_goes_on_when_it_is_full() -> None:
    stocked = Stocked()
    stocked.set_header(lay.CLOCK, lay.CLOCK_LIMIT - 100)
    for seed in range(200):
        stocked.store(seed)
    assert header(stocked.tree.memory, lay.CLOCK) < lay.CLOCK_LIMIT
    stocked.tree.evict(stocked.tree.bytes_used // 2)
    left = stocked.there(200)
    assert 50 < len(left) < 150
    assert left == list(range(200 - len(left), 200))


@pytest.mark.parametrize("field", [lay.ARENA_ROOM, lay.NODE_LIMIT])
def test_a_store_never_fails_while_anything_can_go(field: int) -> None:
    stocked = Stocked(60)
    memory = stocked.tree.memory
    stocked.set_header(field, header(memory, lay.ARENA_TOP if field == lay.ARENA_ROOM else lay.NODE_NEXT))
    top, numbers = header(memory, lay.ARENA_TOP), header(memory, lay.NODE_NEXT)
    for seed in range(60, 2_000):
        stocked.store(seed)
        assert stocked.depth(seed) == BLOCKS
    if field == lay.ARENA_ROOM:
        assert header(memory, lay.ARENA_TOP) <= top
    else:
        assert header(memory, lay.NODE_NEXT) <= numbers
    told = stocked.tree.take_evicted()
    assert told.dropped == {stocked.ledger: 2_000 * BLOCKS - stocked.tree.sizes().handles}
    assert stocked.tree.take_evicted().leaves == 0
    check_memory(stocked.tree)


def test_the_place_that_a_full_store_goes_behind_is_the_last_to_go() -> None:
    stocked = Stocked(60)
    tree = stocked.tree
    stocked.set_header(lay.ARENA_ROOM, header(tree.memory, lay.ARENA_TOP))
    for seed in range(60, 200):  # one long chain by places, block by block the oldest thing there is
        behind = tree.find(stocked.ledger, names(seed - 1, 1)[0] if seed > 60 else names(0)[-1])
        assert behind is not None
        tree.store_behind(stocked.ledger, stocked.root, behind, GRAIN, as_hashes(names(seed, 1)), prompt(seed, 1))
    assert stocked.depth(0) == BLOCKS
    assert stocked.depth(1) == 0
    check_memory(tree)


def test_a_tree_in_which_nothing_fits_says_so() -> None:
    stocked = Stocked()
    stocked.set_header(lay.ARENA_ROOM, 0)
    with pytest.raises(RadixError, match="the index is full"):
        stocked.store(0)
    assert stocked.tree.sizes().blocks == 0


def test_placed_paths_have_no_handles_and_are_forgotten_by_member() -> None:
    stocked = Stocked()
    tree, root = stocked.tree, stocked.root
    first, second = tree.open(0), tree.open(1)
    for seed in range(20):
        assert not tree.place(first, root, GRAIN, prompt(seed).tobytes())
        tree.place(second, root, GRAIN, prompt(seed)[: 3 * GRAIN].tobytes() + b"some more")
    assert tree.sizes().handles == 0
    assert tree.matcher.holders(root, GRAIN, prompt(3)) == {0: BLOCKS, 1: 3}
    check_memory(tree)
    assert tree.forget(first) == 40
    assert tree.matcher.holders(root, GRAIN, prompt(3)) == {1: 3}
    check_memory(tree)
    tree.forget(second)
    assert tree.sizes().blocks == 0
    check_memory(tree)


def test_a_ledger_with_hashes_cannot_be_forgotten_like_that() -> None:
    stocked = Stocked(1)
    with pytest.raises(RadixError, match="placed paths"):
        stocked.tree.forget(stocked.ledger)
