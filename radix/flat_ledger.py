"""What one holder has on one tier in one cache group, under the engine's own block names, in flat memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from radix.core.compiled import as_hashes
from radix.core.layout import MAX_REMOVED
from radix.spot import FlatRoot, Spot
from radix.tree import Placed, tokens_of, width_of

if TYPE_CHECKING:
    from radix.flat import FlatTree

_Key = tuple[int, int]  # depth, hash of the block's tokens: stays, wherever the block moves


class FlatLedger:
    """Hash -> block of one (holder, tier, group). It takes a number of the compiled tree with its first block."""

    __slots__ = ("_counting", "_holder", "_names", "_tier", "_tree", "number")

    def __init__(self, tree: FlatTree, holder: int, tier: int, *, counting: bool) -> None:
        self.number = -1
        self._tree = tree
        self._holder = holder
        self._tier = tier
        self._counting = counting
        self._names: dict[_Key, tuple[int, ...]] | None = None  # the way back, kept only where it is asked for

    def __len__(self) -> int:
        return self._tree.compiled.used(self.number) if self.number >= 0 else 0

    def find(self, block_hash: int) -> Spot | None:
        """Where a block lies."""
        found = self._tree.compiled.find(self.number, block_hash) if self.number >= 0 else None
        if found is None:
            return None
        node, depth = found
        return Spot(self._tree.root_above(node), node, depth)

    def copies(self, block_hash: int) -> int:
        """How often a block was stored and not removed."""
        return self._tree.compiled.copies(self.number, block_hash) if self.number >= 0 else 0

    def names(self, place: Spot) -> tuple[int, ...]:
        """The hashes of a place; the first call costs as much as there are blocks, and makes the ledger remember them."""
        if self._names is None:
            self._names = {}
            for block_hash, held, _ in self.held():
                self._name((held.depth, hash(tokens_of(self._tree, held))), block_hash)
        node, _ = self._tree.edge_of(place)
        candidates = self._names.get((place.depth, hash(tokens_of(self._tree, place))), ())
        return tuple([name for name in candidates if self._lies(name, node, place.depth)])

    def store(self, root: FlatRoot, parent: Spot | None, hashes: Sequence[int], data: bytes) -> Placed:
        """Hold `data` below `parent`, one hash a block; raises RadixError when the index is full."""
        compiled = self._tree.compiled
        if self.number < 0:
            self.number = compiled.open(self._holder, self._tier, counting=self._counting)
        behind = None if parent is None else (parent.node, parent.depth)
        stored = compiled.store_behind(self.number, root.number, behind, root.block_tokens, as_hashes(hashes), _tokens(data))
        if stored.rejected:
            self._tree.tidy()
            self._tree.drop_if_empty(root)
        if self._names is not None:
            first, width = 0 if parent is None else parent.depth + 1, width_of(root)
            for i, block_hash in enumerate(hashes[: len(hashes) - stored.rejected]):
                self._name((first + i, hash(data[i * width : (i + 1) * width])), block_hash)
        return Placed(stored.new, stored.rejected)

    def remove(self, hashes: Sequence[int]) -> tuple[int, Sequence[int]]:
        """One copy less of each: (blocks that are gone now, hashes that were not here)."""
        if self.number < 0 or not hashes:
            return 0, hashes
        named = self._keys_of(hashes) if self._names is not None else {}
        removed = 0
        unknown: list[int] = []
        for first in range(0, len(hashes), MAX_REMOVED):
            some = hashes[first : first + MAX_REMOVED]
            gone, missing = self._tree.compiled.remove(self.number, as_hashes(some))
            removed += gone
            unknown += [some[at] for at in missing]
        for block_hash, key in named.items():
            if self.find(block_hash) is None:
                self._unname(key, block_hash)
        self._tree.tidy()
        return removed, unknown

    def clear(self) -> int:
        """Forget everything, for good; returns the number of hashes that were here."""
        if self.number < 0:
            return 0
        removed = self._tree.compiled.close(self.number)
        self.number = -1
        self._names = None
        self._tree.tidy()
        return removed

    def give_up(self, lost: Mapping[int, int]) -> int:
        """The tree lost hashes, by ledger number; returns how many of them were here."""
        lost_here = lost.get(self.number, 0)
        if lost_here:
            self._names = None  # made anew when asked for
        return lost_here

    def held(self) -> Iterator[tuple[int, Spot, int]]:
        """(hash, place, copies) of each, in no particular order."""
        if self.number >= 0:
            for handle in self._tree.compiled.handles(self.number):
                yield handle.hash, Spot(self._tree.root_above(handle.node), handle.node, handle.depth - 1), handle.copies

    def _lies(self, block_hash: int, node: int, depth: int) -> bool:
        return self._tree.compiled.find(self.number, block_hash) == (node, depth)

    def _keys_of(self, hashes: Sequence[int]) -> dict[int, _Key]:
        places = {block_hash: self.find(block_hash) for block_hash in hashes}
        return {
            block_hash: (place.depth, hash(tokens_of(self._tree, place)))
            for block_hash, place in places.items()
            if place is not None
        }

    def _name(self, key: _Key, block_hash: int) -> None:
        assert self._names is not None
        names = self._names.get(key, ())
        if block_hash not in names:
            self._names[key] = (*names, block_hash)

    def _unname(self, key: _Key, block_hash: int) -> None:
        assert self._names is not None
        left = tuple([name for name in self._names[key] if name != block_hash])
        if left:
            self._names[key] = left
        else:
            del self._names[key]


def _tokens(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(data, np.int32)
