"""One byte budget for the whole index: above it, what was matched and stored longest ago is given up, and the holder is marked.

A view that was trimmed lacks blocks the engine still has: its credit is a lower bound, until the view begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from radix.errors import RadixError
from radix.flat import FlatTree
from radix.flat_ledger import FlatLedger
from radix.holder import Holder

LEAST_BYTES = 1 << 20
_PART = 16  # of the budget that is made free at once, so that giving up is rare
_SPARE_BYTES = 32 << 20  # kept for what comes next
_LOOK_EVERY = 1 << 16  # stored tokens, in blocks of 16 about half a megabyte


class Budget:
    """Keeps a compiled tree within `limit_bytes`. evicted: hashes given up, in all."""

    def __init__(self, tree: FlatTree, limit_bytes: int) -> None:
        if limit_bytes < LEAST_BYTES:
            raise RadixError(f"budget_bytes must be at least {LEAST_BYTES}, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.evicted = 0
        self._tree = tree
        self._unseen = 0

    def grew(self, blocks: int) -> bool:
        """So many blocks were stored; whether it is time to look at the tree's size."""
        self._unseen += blocks
        return self._unseen * self._tree.largest_block >= _LOOK_EVERY

    def trim(self) -> None:
        """Give memory back to the system, where much is free inside."""
        sizes = self._tree.compiled.sizes()
        if sizes.reserved_bytes - sizes.bytes > _SPARE_BYTES:
            self._tree.compiled.trim()

    def keep(self, holders: Iterable[Holder]) -> None:
        """Give up what is above the budget. Costs nothing below it, else some nanoseconds for each block of the whole index."""
        self._unseen = 0
        lost = self._tree.shrink(self.limit_bytes, self.limit_bytes - self.limit_bytes // _PART)
        if not lost:
            return
        for owner in holders:
            if owner.tree is self._tree:
                owner.trimmed += sum(_given_up(ledger, lost) for ledgers in owner.ledgers.values() for ledger in ledgers)
        self.evicted += sum(lost.values())


def _given_up(ledger: object, lost: dict[int, int]) -> int:
    assert isinstance(ledger, FlatLedger)
    return ledger.give_up(lost)
