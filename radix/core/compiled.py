"""The writing face of the compiled tree: roots, ledgers, and what is stored and removed under them.

A ledger is one (holder, tier, group): its hashes name its blocks only. One thread writes; `Matcher` objects read beside it.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from radix.core.entries import HashArray, load
from radix.core.figures import Evicted, Handle, Sizes, Stored, bytes_used, sizes_of
from radix.core.layout import (
    ARENA_HIGH,
    ARENA_ROOM,
    ARENA_TOP,
    ARENA_USED,
    BUDGET,
    CHILDREN_TABLE,
    DEPTH_MASK,
    EMPTIED,
    EMPTIED_MASK,
    EMPTIED_ROOTS,
    EMPTY_ROOTS,
    FOREIGN_PARENT,
    FULL,
    LEDGER_COUNTING,
    LEDGER_HOLDER,
    LEDGER_TIER,
    LEDGER_USED,
    LEDGERS,
    MAGIC,
    MARK,
    MAX_DEPTH,
    MAX_HOLDERS,
    MAX_LEDGERS,
    MAX_REMOVED,
    MEMBERS,
    NODE_LIMIT,
    NODE_NEXT,
    NODE_REGION,
    PAGE_BYTES,
    PLACE_BITS,
    PLACED,
    RELEASE_ADVICE,
    RELEASE_FROM,
    SEED,
    SEGMENTS,
    SHARES_TABLE,
    STORE_UNITS,
    STRIDE,
    TIERS_USED,
    TOO_DEEP,
    UNKNOWN_PARENT,
    WORDS,
)
from radix.core.matcher import Matcher
from radix.core.memory import Memory
from radix.core.naming import root_key
from radix.core.trimming import trim
from radix.errors import RadixError
from radix.match import TIERS, Int32Array

_LINE = 64
_STEPS = 8
_PARTS = 16  # the part of the memory in use that a full mapping gives up at once
_RELEASE_UNITS = 1024  # free runs from 64 KiB up go back to the system in `trim`


class CompiledTree:
    """A token tree in one mapping. Writers: one thread."""

    def __init__(
        self, *, holders: int = 64, shared: bool = False, huge_pages: bool = True, jit_folder: Path | None = None
    ) -> None:
        """holders: room to start with, more comes by itself. shared: other processes may read it (`SharedMatcher`)."""
        self._entries = load(jit_folder)
        self.memory = Memory(shared=shared, huge_pages=huge_pages)
        self._base = self.memory.base
        self._header = self.memory.words(0, 512)
        self._ledger_words = self.memory.words(LEDGERS, MAX_LEDGERS * _LINE >> 3)
        self._ledgers: dict[int, None] = {}
        self._free_ledgers: list[int] = []
        self._roots: set[int] = set()
        self._lost = Evicted(0, 0, {})
        self._unknown = self.memory.halves(SEGMENTS, MAX_REMOVED)
        self._begin(-(-max(holders, 1) // 64))
        self.matcher = self.new_matcher()

    def new_matcher(self) -> Matcher:
        """A reader for one more thread."""
        return Matcher(self.memory, self._entries)

    def root(self, namespace: bytes, grain: int, group: int = 0, *, make: bool = True) -> int:
        """The root of a namespace key, block size and group; 0 when there is none and none is to be made."""
        found = self._entries.root(self._base, root_key(namespace, grain, group), int(make))
        if make and not found:
            raise RadixError("the index is full: no room for a root")
        if found:
            self._roots.add(found)
        return found

    def drop_root(self, root: int) -> bool:
        """Forget an empty root; False while something hangs under it. Its number must not be used again."""
        if not self._entries.drop_root(self._base, self._known_root(root)):
            return False
        self._roots.discard(root)
        return True

    @property
    def empty_roots(self) -> int:
        """Roots without any block, which `drop_root` would take."""
        return int(self._header[EMPTY_ROOTS >> 3])

    def open(self, holder: int, tier: int = 0, *, counting: bool = True) -> int:
        """A ledger for one holder, tier and group. counting: each copy of a block is stored and removed by itself."""
        if not (0 <= tier < TIERS and 0 <= holder < MAX_HOLDERS):
            raise RadixError(f"no such member: holder {holder}, tier {tier}")
        self._make_room(holder, tier)
        ledger = self._free_ledgers.pop() if self._free_ledgers else len(self._ledgers)
        if ledger >= MAX_LEDGERS:
            raise RadixError(f"more than {MAX_LEDGERS} ledgers")
        self._ledgers[ledger] = None
        entry = self.memory.words(LEDGERS + ledger * _LINE, 8)
        entry[:] = 0
        entry[LEDGER_TIER >> 3], entry[LEDGER_HOLDER >> 3], entry[LEDGER_COUNTING >> 3] = tier, holder, int(counting)
        return ledger

    def close(self, ledger: int) -> int:
        """Forget a ledger and all its blocks; returns how many hashes it had."""
        removed = self.clear(ledger)
        del self._ledgers[ledger]
        self._free_ledgers.append(ledger)
        return removed

    def store(
        self, ledger: int, root: int, grain: int, hashes: HashArray, tokens: Int32Array, parent: tuple[int, int] | None = None
    ) -> Stored | None:
        """Hold blocks at the root, or below parent = (ledger, hash); None when that hash is not known there.

        hashes: uint64 [n]; tokens: int32 [n * grain].
        """
        if len(tokens) != len(hashes) * grain:
            raise RadixError(f"{len(hashes)} blocks of {grain} tokens need {len(hashes) * grain} tokens, got {len(tokens)}")
        above, name = (-1, 0) if parent is None else parent
        if ledger not in self._ledgers or (above not in self._ledgers and parent is not None):
            raise RadixError(f"no such ledger: {ledger} (parent's: {above})")
        self._known_root(root)
        answer = self._entries.store(self._base, ledger, above, root, grain, name, hashes, tokens)
        while answer == FULL and self._make_space():
            answer = self._entries.store(self._base, ledger, above, root, grain, name, hashes, tokens)
        return None if answer == UNKNOWN_PARENT else _stored(answer, len(hashes), grain)

    def store_behind(
        self, ledger: int, root: int, behind: tuple[int, int] | None, grain: int, hashes: HashArray, tokens: Int32Array
    ) -> Stored:
        """The same for callers that know the place: at the root, or behind = (node, blocks before) as `find` says it."""
        how, node, depth = (-1, root, 0) if behind is None else (PLACED, behind[0], behind[1] + 1)
        answer = self._entries.store(self._base, ledger, how, node, grain, depth, hashes, tokens)
        if answer == FULL:
            self._entries.pin(self._base, node, 1)  # its number stays good while others go
            while answer == FULL and self._make_space():
                answer = self._entries.store(self._base, ledger, how, node, grain, depth, hashes, tokens)
            self._entries.pin(self._base, node, -1)
        return _stored(answer, len(hashes), grain)

    def find(self, ledger: int, block_hash: int) -> tuple[int, int] | None:
        """(node, blocks before) of a hash, good until the next change; None when it is unknown."""
        place = self._entries.find(self._base, ledger, block_hash)
        return (place >> PLACE_BITS, (place & DEPTH_MASK) - 1) if place else None

    def copies(self, ledger: int, block_hash: int) -> int:
        """How often a hash was stored and not removed."""
        return self._entries.copies(self._base, ledger, block_hash)

    def used(self, ledger: int) -> int:
        """Hashes in a ledger."""
        return int(self._ledger_words[(ledger << 3) + (LEDGER_USED >> 3)])

    def edges_along(self, root: int, grain: int, tokens: Int32Array) -> list[tuple[int, int]]:
        """(node, matching blocks) of each edge a prompt follows, held by anybody or not."""
        out = np.zeros(2 * (len(tokens) // grain + 1), np.int64)
        count = self._entries.along(self._base, root, grain, tokens, out)
        return [(node, blocks) for node, blocks in out[: 2 * count].reshape(-1, 2).tolist()]

    def emptied(self) -> set[int]:
        """Roots that may have become empty since the last call."""
        times = int(self._header[EMPTIED >> 3])
        if not times:
            return set()
        self._header[EMPTIED >> 3] = 0
        if times > EMPTIED_MASK + 1:
            return set(self._roots)
        first = EMPTIED_ROOTS >> 3
        return self._roots.intersection(self._header[first : first + times].tolist())

    @property
    def stride(self) -> int:
        """Bytes per node."""
        return int(self._header[STRIDE >> 3])

    def place(self, ledger: int, root: int, grain: int, words: bytes) -> bool:
        """Hold a path from the root on without naming its blocks; whether the tree is larger than `budget_bytes` now.

        words: tokens, or text, of 4 bytes each; what is over after the last whole block is left out.
        """
        self._known_root(root)
        if ledger not in self._ledgers:
            raise RadixError(f"no such ledger: {ledger}")
        answer = self._entries.place(self._base, ledger, root, grain, words)
        while answer == FULL and self._make_space():
            answer = self._entries.place(self._base, ledger, root, grain, words)
        if answer == FULL:
            raise RadixError("the index is full")
        if answer == TOO_DEEP:
            raise RadixError(f"a chain of more than {MAX_DEPTH} blocks")
        return answer != 0

    def forget(self, ledger: int) -> int:
        """Take a ledger's member from all nodes, for one whose paths were only placed; returns how many nodes it was on."""
        if ledger not in self._ledgers or self.used(ledger):
            raise RadixError(f"ledger {ledger} is not one of placed paths")
        return self._entries.forget(self._base, ledger)

    @property
    def budget_bytes(self) -> int:
        """What `place` compares the tree's size with."""
        return int(self._header[BUDGET >> 3])

    @budget_bytes.setter
    def budget_bytes(self, budget: int) -> None:
        self._header[BUDGET >> 3] = budget

    def evict(self, target_bytes: int) -> Evicted:
        """Let the leaves go that were matched and stored longest ago, until not more than `target_bytes` are in use."""
        dropped = np.zeros(len(self._ledgers) + len(self._free_ledgers), np.int64)
        before = self.bytes_used
        leaves, gone = 0, 1
        while gone and (over := self.bytes_used - target_bytes) > 0:
            # In steps: how much of the tables goes with the leaves is known only after each.
            gone = self._entries.evict(self._base, min(over, self.bytes_used // _STEPS + 1), dropped)
            leaves += gone
        lost = {int(ledger): int(dropped[ledger]) for ledger in np.flatnonzero(dropped)}
        return Evicted(leaves, before - self.bytes_used, lost)

    def take_evicted(self) -> Evicted:
        """What went since the last call because a store found the mapping full; each is told once."""
        lost, self._lost = self._lost, Evicted(0, 0, {})
        return lost

    def remove(self, ledger: int, hashes: HashArray) -> tuple[int, list[int]]:
        """One copy less of each: (hashes that are gone now, positions of those that were not there)."""
        if ledger not in self._ledgers or len(hashes) > MAX_REMOVED:
            raise RadixError(f"cannot remove {len(hashes)} hashes from ledger {ledger}: no such ledger, or too many at once")
        answer = self._entries.remove(self._base, ledger, hashes)
        unknown = answer >> 32
        return answer & 0xFFFFFFFF, self._unknown[:unknown].tolist() if unknown else []

    def clear(self, ledger: int) -> int:
        """Forget all blocks of a ledger; returns how many hashes it had."""
        if ledger not in self._ledgers:
            raise RadixError(f"no such ledger: {ledger}")
        return self._entries.clear(self._base, ledger)

    def check(self, ledgers: Sequence[int], root: int) -> None:
        """Raise unless all of these exist; -1 for no ledger and 0 for no root may stand in their places."""
        if root:
            self._known_root(root)
        for ledger in ledgers:
            if ledger not in self._ledgers and ledger != -1:
                raise RadixError(f"no such ledger: {ledger}")

    def ingest(self, desk: int, payloads: bytes, count: int) -> int:
        """Apply payloads of events as a desk says (see `radix.ingest`); how it ended, a code of `feed`."""
        return self._entries.ingest(self._base, desk, payloads, count)

    def handles(self, ledger: int) -> Iterator[Handle]:
        """Every hash of a ledger, in no particular order."""
        out = np.zeros(5 * self.used(ledger), np.int64)
        count = self._entries.list(self._base, ledger, out)
        for row in out[: 5 * count].reshape(-1, 5).tolist():
            yield Handle(row[0] % (1 << 64), *row[1:])

    def sizes(self) -> Sizes:
        """Sizes now; costs nothing."""
        return sizes_of(self._header)

    @property
    def bytes_used(self) -> int:
        """`Sizes.bytes` alone."""
        return bytes_used(self._header)

    def trim(self) -> None:
        """Give free memory back to the system: what lies above the arena's top, and large free runs below it."""
        trim(self.memory)

    def _begin(self, words: int) -> None:
        header = self._header
        header[MAGIC >> 3] = MARK
        header[SEED >> 3] = secrets.randbits(62)
        header[WORDS >> 3], header[TIERS_USED >> 3] = words, 1
        stride = _stride(words)
        header[STRIDE >> 3], header[NODE_LIMIT >> 3] = stride, NODE_REGION // stride - 1
        header[NODE_NEXT >> 3] = 1
        header[ARENA_ROOM >> 3], header[BUDGET >> 3] = STORE_UNITS, 1 << 62
        header[RELEASE_FROM >> 3] = 4 << 20 if self.memory.huge_pages else 16 << 10  # smaller ones would break huge pages up
        header[PAGE_BYTES >> 3] = mmap.PAGESIZE
        header[RELEASE_ADVICE >> 3] = self.memory.release_advice
        first_tables = 17 << 32 | 64
        header[CHILDREN_TABLE >> 3], header[SHARES_TABLE >> 3] = 1 << 32 | 64, first_tables
        header[ARENA_TOP >> 3] = header[ARENA_HIGH >> 3] = 33
        header[ARENA_USED >> 3] = 32

    def _make_space(self) -> bool:
        """Evict a part of what there is; False when nothing can go."""
        gone = self.evict(self.bytes_used - self.bytes_used // _PARTS)
        self._lost += gone
        return gone.leaves > 0

    def _known_root(self, root: int) -> int:
        if root not in self._roots:
            raise RadixError(f"no such root: {root}")
        return root

    def _make_room(self, holder: int, tier: int) -> None:
        words, tiers = int(self._header[WORDS >> 3]), int(self._header[TIERS_USED >> 3])
        needed_words = words
        while holder >= needed_words * 64:
            needed_words *= 2
        needed_tiers = max(tiers, tier + 1)
        if (needed_words, needed_tiers) != (words, tiers):
            width = needed_words * needed_tiers
            if int(self._header[NODE_NEXT >> 3]) >= NODE_REGION // _stride(width) - 1:
                raise RadixError(f"no room for holder {holder}, tier {tier}: too many nodes to widen")
            self._entries.widen(self._base, needed_words, needed_tiers, _stride(width), np.zeros(_stride(width) >> 3, np.int64))


def _stored(answer: int, blocks: int, grain: int) -> Stored:
    if answer >= 0:
        return Stored(answer & 0xFFFFFFFF, answer >> 32)
    if answer == TOO_DEEP:
        return Stored(0, blocks)
    if answer == FOREIGN_PARENT:
        raise RadixError(f"blocks of {grain} tokens cannot follow blocks of another size")
    raise RadixError("the index is full")


def _stride(width: int) -> int:
    return -(-(MEMBERS + 8 * width) // _LINE) * _LINE


def as_hashes(values: Sequence[int]) -> HashArray:
    """Engine hashes as the array the tree reads."""
    return np.array(values, np.uint64)
