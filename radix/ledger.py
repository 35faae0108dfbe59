"""What one holder has on one tier in one cache group, under the engine's own block names.

Engines name blocks by hash and announce copies of one block separately; the tree knows places and no names. A ledger is the
join: hash -> place, with the number of copies where there is more than one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from radix.nodes import Block, Root
from radix.tree import Placed

if TYPE_CHECKING:
    from radix.plain import PlainTree


class PlainLedger:
    """Hash -> block of one (holder, tier, group). bit: the member it stands for in the tree."""

    __slots__ = ("_copies", "_counting", "_names", "_shared", "_tree", "bit", "blocks")

    def __init__(self, tree: PlainTree, bit: int, *, counting: bool) -> None:
        self.bit = bit
        self._tree = tree
        self.blocks: dict[int, Block] = {}
        self._counting = counting
        self._copies: dict[int, int] = {}  # beyond the first, by hash; vLLM announces every copy (FC-09)
        self._names: dict[Block, tuple[int, ...]] | None = None  # the way back, kept only where it is asked for
        self._shared: dict[Block, int] = {}  # further hashes on the same tokens, e.g. one adapter id reused with new weights

    def __len__(self) -> int:
        return len(self.blocks)

    def find(self, block_hash: int) -> Block | None:
        """Where a block lies."""
        return self.blocks.get(block_hash)

    def held(self) -> Iterator[tuple[int, Block, int]]:
        """(hash, place, copies) of each, in no particular order."""
        for block_hash, block in self.blocks.items():
            yield block_hash, block, self.copies(block_hash)

    def copies(self, block_hash: int) -> int:
        """How often a present block was stored and not removed."""
        return 1 + self._copies.get(block_hash, 0)

    def names(self, block: Block) -> tuple[int, ...]:
        """The hashes of a place; the first call costs as much as there are blocks, and makes the ledger remember them."""
        if self._names is None:
            self._names = {}
            for block_hash, place in self.blocks.items():
                self._name(block_hash, place)
        return self._names.get(block, ())

    def store(self, root: Root, parent: Block | None, hashes: Sequence[int], data: bytes) -> Placed:
        """Hold `data` below `parent`, one hash a block."""
        places, held = self._tree.extend(root, parent, data, self.bit)
        if not held and self.blocks.keys().isdisjoint(hashes):
            self.blocks.update(zip(hashes, places, strict=True))
            if self._names is not None:
                self._names.update((place, (block_hash,)) for block_hash, place in zip(hashes, places, strict=True))
            return Placed(len(places), 0)
        return self._store_again(hashes, places, set(held))

    def remove(self, hashes: Sequence[int]) -> tuple[int, Sequence[int]]:
        """One copy less of each: (blocks that are gone now, hashes that were not here)."""
        removed = 0
        gone: list[Block] = []
        unknown: list[int] = []
        for block_hash in hashes:
            block = self.blocks.get(block_hash)
            if block is None:
                unknown.append(block_hash)
            elif block_hash in self._copies:
                self._take_copy(block_hash)
            else:
                del self.blocks[block_hash]
                self._unname(block_hash, block)
                removed += 1
                if block in self._shared:
                    self._take_share(block)
                else:
                    gone.append(block)
        self._tree.release(gone, self.bit)
        return removed, unknown

    def clear(self) -> int:
        """Forget everything; returns how many blocks that were."""
        count = len(self.blocks)
        self._tree.release_nodes({block.node for block in self.blocks.values()}, self.bit)
        self.blocks = {}
        self._copies = {}
        self._shared = {}
        self._names = None
        return count

    def _store_again(self, hashes: Sequence[int], places: list[Block], held: set[Block]) -> Placed:
        new = 0
        for i, (block_hash, place) in enumerate(zip(hashes, places, strict=True)):
            known = self.blocks.get(block_hash)
            if known is None:
                self.blocks[block_hash] = place
                self._name(block_hash, place)
                new += 1
                if place in held:
                    self._shared[place] = self._shared.get(place, 0) + 1
            elif known is not place:
                # A hash names one place only; what follows it is reachable by that name alone, so it is not placed either.
                self._tree.release([block for block in places[i:] if block not in held], self.bit)
                return Placed(new, len(places) - i)
            elif self._counting:
                self._copies[block_hash] = self._copies.get(block_hash, 0) + 1
        return Placed(new, 0)

    def _name(self, block_hash: int, place: Block) -> None:
        if self._names is not None:
            self._names[place] = (*self._names.get(place, ()), block_hash)

    def _unname(self, block_hash: int, place: Block) -> None:
        if self._names is not None:
            left = tuple([name for name in self._names[place] if name != block_hash])
            if left:
                self._names[place] = left
            else:
                del self._names[place]

    def _take_copy(self, block_hash: int) -> None:
        left = self._copies[block_hash] - 1
        if left:
            self._copies[block_hash] = left
        else:
            del self._copies[block_hash]

    def _take_share(self, block: Block) -> None:
        left = self._shared[block] - 1
        if left:
            self._shared[block] = left
        else:
            del self._shared[block]
