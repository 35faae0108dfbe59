"""Who has a block by name, for all holders at once: bits instead of a look-up per holder."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radix.match import TIERS


class Bits:
    """(group, hash) -> a bit for each holder that has the block on a tier; costs one entry per name, however many have it."""

    __slots__ = ("_on",)

    def __init__(self) -> None:
        self._on: list[dict[tuple[int, int], int]] = [{} for _ in range(TIERS)]

    def __len__(self) -> int:
        """Names, once per tier."""
        return sum(map(len, self._on))

    def add(self, holder: int, tier: int, group: int, block_hash: int) -> None:
        """The holder has it there."""
        key = group, block_hash
        self._on[tier][key] = self._on[tier].get(key, 0) | 1 << holder

    def take(self, holder: int, tier: int, group: int, block_hash: int) -> None:
        """It has it there no more."""
        key, on = (group, block_hash), self._on[tier]
        left = on[key] & ~(1 << holder)
        if left:
            on[key] = left
        else:
            del on[key]

    def of(self, tier: int, group: int, block_hash: int) -> int:
        """Who has it there or on a faster tier."""
        key, found = (group, block_hash), 0
        for on in self._on[: tier + 1]:
            if on:
                found |= on.get(key, 0)
        return found

    def uses(self, tier: int) -> bool:
        """Whether anybody has anything on this very tier."""
        return bool(self._on[tier])


class Presence:
    """Blocks without a place, of all holders. loose: known by name only; waiting: for a parent."""

    __slots__ = ("loose", "waiting")

    def __init__(self) -> None:
        self.loose = Bits()
        self.waiting = Bits()

    def of(self, tier: int, group: int, block_hash: int) -> int:
        """Bits of those that have a block on a tier or a faster one."""
        found = self.loose.of(tier, group, block_hash)
        return found | self.waiting.of(tier, group, block_hash) if len(self.waiting) else found

    def uses(self, tier: int) -> bool:
        """Whether anybody has anything on this very tier."""
        return self.loose.uses(tier) or self.waiting.uses(tier)


def bits_of(mask: npt.NDArray[np.bool_]) -> int:
    """One bit for each True of a mask [holders]."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def mask_of(bits: int, holders: int) -> npt.NDArray[np.bool_]:
    """The mask [holders] of bits."""
    raw = np.frombuffer(bits.to_bytes(-(-holders // 8), "little"), np.uint8)
    return np.unpackbits(raw, bitorder="little", count=holders).view(np.bool_)
