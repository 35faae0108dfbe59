"""Blocks a holder has that have no place in the tree: known by name only.

Offload tiers announce blocks without their tokens, sparse cache groups leave out blocks of a run. Such a block is found again by
its hash: it gets a place when another tier of the holder has or brings the same one, and a sparse group's is looked up where a
hit would end.
"""

from __future__ import annotations

from collections.abc import Iterator

from radix.changes import Tier
from radix.presence import Bits


class Loose:
    """The loose blocks of one holder; over `limit` the one that came first is given up."""

    def __init__(self, limit: int, *, counting: bool, holder: int, bits: Bits) -> None:
        """bits: of all holders, kept in step."""
        self._limit = limit
        self._holder = holder
        self._bits = bits
        self._counting = counting
        self._copies: dict[tuple[int, int, int], int] = {}  # (group, tier, hash) -> stores minus removals, oldest first
        self._tiers: dict[tuple[int, int], tuple[Tier, ...]] = {}  # (group, hash) -> where
        self._on = [0] * len(Tier)  # blocks per tier

    def __len__(self) -> int:
        return len(self._copies)

    def __iter__(self) -> Iterator[tuple[int, Tier, int, int]]:
        """(group, tier, hash, copies) of each."""
        for (group, tier, block_hash), copies in self._copies.items():
            yield group, Tier(tier), block_hash, copies

    def add(self, tier: Tier, group: int, block_hash: int) -> None:
        """One more copy."""
        key = (group, int(tier), block_hash)
        copies = self._copies.get(key)
        if copies is None:
            self._copies[key] = 1
            self._on[tier] += 1
            self._bits.add(self._holder, tier, group, block_hash)
            self._tiers[group, block_hash] = (*self._tiers.get((group, block_hash), ()), tier)
            if len(self._copies) > self._limit:
                self._forget(next(iter(self._copies)))
        elif self._counting:
            self._copies[key] = copies + 1

    def remove(self, tier: Tier, group: int, block_hash: int) -> bool:
        """One copy less; False when there is none."""
        key = (group, int(tier), block_hash)
        copies = self._copies.get(key)
        if copies is None:
            return False
        if copies > 1:
            self._copies[key] = copies - 1
        else:
            self._forget(key)
        return True

    def has(self, tier: Tier, group: int, block_hash: int) -> bool:
        """Whether a block is on this very tier."""
        return (group, int(tier), block_hash) in self._copies

    def awaits(self, group: int, block_hash: int) -> bool:
        """Whether any tier has it."""
        return (group, block_hash) in self._tiers

    def uses(self, tier: Tier) -> bool:
        """Whether anything is on this tier."""
        return self._on[tier] > 0

    def claim(self, group: int, block_hash: int) -> list[tuple[Tier, int]]:
        """Take a block out: (tier, copies) of each tier that had it."""
        taken = [(tier, self._copies.pop((group, int(tier), block_hash))) for tier in self._tiers.pop((group, block_hash))]
        for tier, _ in taken:
            self._on[tier] -= 1
            self._bits.take(self._holder, tier, group, block_hash)
        return taken

    def clear(self) -> None:
        """Give up all of them."""
        for group, tier, block_hash in self._copies:
            self._bits.take(self._holder, tier, group, block_hash)
        self._copies.clear()
        self._tiers.clear()
        self._on = [0] * len(Tier)

    def _forget(self, key: tuple[int, int, int]) -> None:
        group, tier, block_hash = key
        del self._copies[key]
        self._on[tier] -= 1
        self._bits.take(self._holder, tier, group, block_hash)
        left = tuple([other for other in self._tiers[group, block_hash] if other != tier])
        if left:
            self._tiers[group, block_hash] = left
        else:
            del self._tiers[group, block_hash]
