"""What the compiled tree promises beside equality with the plain one: limits, errors, memory, other processes, the cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from radix.core import jit
from radix.core.compiled import CompiledTree, as_hashes
from radix.core.entries import Int64Array
from radix.core.matcher import Matcher, empty_depths
from radix.errors import RadixError
from radix.match import Int32Array
from tests.radix.core.memory_check import check_memory

pytestmark = pytest.mark.xdist_group("jit")

GRAIN = 16


def prompt(blocks: int, seed: int = 1) -> Int32Array:
    """Tokens of some blocks."""
    return np.random.default_rng(seed).integers(0, 128_000, blocks * GRAIN).astype(np.int32)


@pytest.fixture
def tree() -> CompiledTree:
    return CompiledTree(huge_pages=False)


@pytest.fixture
def root(tree: CompiledTree) -> int:
    return tree.root(b"model", GRAIN)


def test_roots_are_set_apart_by_namespace_block_size_and_group(tree: CompiledTree) -> None:
    roots = [tree.root(b"a", 16), tree.root(b"b", 16), tree.root(b"a", 32), tree.root(b"a", 16, 1)]
    assert len(set(roots)) == 4
    assert tree.root(b"a", 16) == roots[0]
    assert tree.root(b"c", 16, make=False) == 0
    assert tree.empty_roots == 4


def test_a_root_goes_only_when_nothing_hangs_under_it(tree: CompiledTree, root: int) -> None:
    ledger = tree.open(0)
    tree.store(ledger, root, GRAIN, as_hashes([1]), prompt(1))
    assert not tree.drop_root(root)
    tree.remove(ledger, as_hashes([1]))
    assert tree.drop_root(root)
    assert tree.root(b"model", GRAIN, make=False) == 0


def test_an_unknown_parent_is_told_and_changes_nothing(tree: CompiledTree, root: int) -> None:
    """FC-10: never under the root by guesswork."""
    ledger = tree.open(0)
    before = tree.sizes()
    assert tree.store(ledger, root, GRAIN, as_hashes([1]), prompt(1), (ledger, 99)) is None
    assert tree.sizes() == before


def test_a_parent_may_lie_on_another_tier(tree: CompiledTree, root: int) -> None:
    device, host = tree.open(0, 0), tree.open(0, 1)
    tokens = prompt(3)
    tree.store(host, root, GRAIN, as_hashes([1, 2]), tokens[: 2 * GRAIN])
    tree.store(device, root, GRAIN, as_hashes([3]), tokens[2 * GRAIN :], (host, 2))
    depths = empty_depths(1)
    assert tree.matcher.depths(root, GRAIN, tokens, depths)
    assert depths.tolist() == [[0, 48, 48, 48]]  # the device's block is behind a hole there, and counts on slower tiers


@pytest.mark.parametrize("tokens", [0, 15, 17, 48])
def test_tokens_must_fit_the_hashes(tree: CompiledTree, root: int, tokens: int) -> None:
    with pytest.raises(RadixError, match=f"need 32 tokens, got {tokens}"):
        tree.store(tree.open(0), root, GRAIN, as_hashes([1, 2]), np.zeros(tokens, np.int32))


def test_blocks_of_another_size_cannot_follow(tree: CompiledTree, root: int) -> None:
    ledger = tree.open(0)
    tree.store(ledger, root, GRAIN, as_hashes([1]), prompt(1))
    with pytest.raises(RadixError, match="32 tokens cannot follow"):
        tree.store(ledger, root, 32, as_hashes([2]), np.zeros(32, np.int32), (ledger, 1))


def test_the_smallest_load_wins_among_the_deepest(tree: CompiledTree, root: int) -> None:
    for holder in (3, 5, 9):
        tree.store(tree.open(holder), root, GRAIN, as_hashes([1, 2]), prompt(2))
    tree.store(tree.open(1), root, GRAIN, as_hashes([1]), prompt(2)[:GRAIN])
    assert tree.matcher.best(root, GRAIN, prompt(2)) == (3, 2)
    busy: Int64Array = np.zeros(64, np.int64)
    busy[[3, 5, 9]] = 7, 2, 4
    tree.matcher.set_load(busy)
    assert tree.matcher.best(root, GRAIN, prompt(2)) == (5, 2)
    busy[5] = 9
    assert tree.matcher.best(root, GRAIN, prompt(2)) == (9, 2)


def test_a_load_too_short_to_read_is_refused(tree: CompiledTree) -> None:
    with pytest.raises(RadixError, match=r"int64 \[64\] or longer"):
        tree.matcher.set_load(np.zeros(63, np.int64))


def test_only_wanted_holders_are_looked_at(tree: CompiledTree, root: int) -> None:
    for holder in (3, 5):
        tree.store(tree.open(holder), root, GRAIN, as_hashes([1, 2]), prompt(2))
    tree.matcher.want((5, 6))
    assert tree.matcher.holders(root, GRAIN, prompt(2)) == {5: 2}
    tree.matcher.want(())
    assert tree.matcher.best(root, GRAIN, prompt(2)) == (-1, 0)
    tree.matcher.want(None)
    assert tree.matcher.holders(root, GRAIN, prompt(2)) == {3: 2, 5: 2}


def test_room_for_more_holders_and_tiers_comes_by_itself(tree: CompiledTree, root: int) -> None:
    for count, holder in enumerate((0, 63, 64, 255, 256, 1023)):
        tree.store(tree.open(holder), root, GRAIN, as_hashes([1, 2, 3]), prompt(3))
        check_memory(tree)
        found = tree.matcher.holders(root, GRAIN, prompt(3))
        assert found is not None
        assert len(found) == count + 1
    tree.store(tree.open(5, 2), root, GRAIN, as_hashes([1, 2, 3]), prompt(3))
    depths = empty_depths(1024)
    assert tree.matcher.depths(root, GRAIN, prompt(3), depths)
    assert depths[5].tolist() == [0, 0, 48, 48]
    assert depths[1023].tolist() == [48, 48, 48, 48]


def test_copies_count_or_do_not(tree: CompiledTree, root: int) -> None:
    """FC-09: two stores of a block need two removals, where the engine counts."""
    counting, setting = tree.open(0), tree.open(1, counting=False)
    for ledger in (counting, setting):
        for _ in range(2):
            tree.store(ledger, root, GRAIN, as_hashes([1]), prompt(1))
        tree.remove(ledger, as_hashes([1]))
    assert tree.matcher.holders(root, GRAIN, prompt(1)) == {0: 1}


def test_hashes_of_all_64_bits_come_back(tree: CompiledTree, root: int) -> None:
    ledger = tree.open(0)
    hashes = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    tree.store(ledger, root, GRAIN, as_hashes(hashes), prompt(5))
    assert sorted(handle.hash for handle in tree.handles(ledger)) == hashes
    assert [handle.depth for handle in sorted(tree.handles(ledger), key=lambda each: each.hash)] == [1, 2, 3, 4, 5]
    assert tree.store(ledger, root, GRAIN, as_hashes([7]), prompt(1, 2), (ledger, 2**64 - 1)) is not None


def test_a_closed_ledger_leaves_nothing_and_its_number_is_used_again(tree: CompiledTree, root: int) -> None:
    ledger = tree.open(0)
    tree.store(ledger, root, GRAIN, as_hashes(range(1, 101)), prompt(100))
    assert tree.close(ledger) == 100
    assert tree.sizes().handles == tree.sizes().blocks == 0
    assert tree.open(7) == ledger


def test_memory_is_back_after_a_churn(tree: CompiledTree, root: int) -> None:
    """Every block stored is removed, many times over: nothing grows, and what is free goes back to the system."""
    ledger = tree.open(0)
    start = tree.sizes().bytes
    high = 0
    for turn in range(40):
        hashes = [as_hashes(range(turn * 10_000 + i * 500 + 1, turn * 10_000 + i * 500 + 501)) for i in range(20)]
        for number, names in enumerate(hashes):
            tree.store(ledger, root, GRAIN, names, prompt(500, turn * 20 + number))
        if turn == 4:
            high = tree.sizes().reserved_bytes
        for names in hashes:
            assert tree.remove(ledger, names) == (500, [])
    assert tree.sizes().reserved_bytes <= high * 1.1
    assert tree.sizes().bytes <= start + 65536
    pages_before = resident_pages()
    tree.trim()
    assert (pages_before - resident_pages()) * os.sysconf("SC_PAGE_SIZE") > high / 3
    check_memory(tree)


def resident_pages() -> int:
    """Pages of this process in RAM."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def test_a_matcher_notices_that_nodes_grew_wider(tree: CompiledTree, root: int) -> None:
    tree.store(tree.open(0), root, GRAIN, as_hashes([1]), prompt(1))
    other = tree.new_matcher()
    tree.open(200)
    assert other.rows(root, GRAIN, prompt(1)) == [(1, 1)]
    assert isinstance(other, Matcher)


def test_numbers_that_name_nothing_are_refused(tree: CompiledTree, root: int) -> None:
    ledger, none = tree.open(0), np.zeros(0, np.int32)
    with pytest.raises(RadixError, match="no such ledger: 7"):
        tree.store(7, root, GRAIN, as_hashes([]), none)
    with pytest.raises(RadixError, match="parent's: 9"):
        tree.store(ledger, root, GRAIN, as_hashes([]), none, (9, 1))
    with pytest.raises(RadixError, match="no such root: 5"):
        tree.store(ledger, 5, GRAIN, as_hashes([]), none)
    with pytest.raises(RadixError, match="from ledger 7"):
        tree.remove(7, as_hashes([1]))
    with pytest.raises(RadixError, match="no such ledger: 7"):
        tree.clear(7)
    with pytest.raises(RadixError, match="no such root: 5"):
        tree.drop_root(5)
    with pytest.raises(RadixError, match="no such member: holder 16384, tier 0"):
        tree.open(16384)
    with pytest.raises(RadixError, match=r"block_tokens must be in 1\.\.65535, got 0"):
        tree.root(b"model", 0)
    assert tree.sizes().handles == 0


def test_machine_code_is_kept_under_a_name_of_all_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNKLINE_CACHE", str(tmp_path))
    assert jit.default_cache() == tmp_path / "jit"
    assert len(jit.version()) == 16
    folder = jit.default_cache()
    jit.entry(_double, "int64(int64)", folder, nogil=True)
    assert [path.name for path in folder.iterdir()] == [jit.version()]


def _double(value: int) -> int:
    return value * 2
