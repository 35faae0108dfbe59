"""One (replica, rank) and everything the index knows of it, except where its blocks lie in the tree."""

from __future__ import annotations

from radix.changes import Tier
from radix.groups import Groups
from radix.ledger import Ledger
from radix.loose import Loose
from radix.match import TIERS
from radix.nodes import Block
from radix.orphans import Orphans

_LOOSE_PER_ORPHAN = 16  # a loose block costs about a sixteenth of a waiting one


class Holder:
    """One (replica, rank) and what it has."""

    __slots__ = ("_orphan_limit", "counting", "groups", "ledgers", "loose", "model", "number", "orphans", "rank", "replica")

    def __init__(self, number: int, replica: str, rank: int, model: str, *, counting: bool, orphan_limit: int) -> None:
        self.number = number
        self.replica = replica
        self.rank = rank
        self.model = model
        self.groups = Groups()
        self.ledgers: dict[int, list[Ledger]] = {}  # by group, then by tier
        self._orphan_limit = orphan_limit
        self.count_copies(counting)

    def count_copies(self, counting: bool) -> None:
        """Begin to count copies of blocks, or to take a repeated store for the same block; only while there are none."""
        self.counting = counting
        self.orphans = Orphans(self._orphan_limit, counting=counting)
        self.loose = Loose(self._orphan_limit * _LOOSE_PER_ORPHAN, counting=counting)

    def ledger(self, group: int, tier: Tier) -> Ledger:
        ledgers = self.ledgers.get(group)
        if ledgers is None:
            base = self.number * TIERS
            ledgers = [Ledger(1 << base + place, counting=self.counting) for place in range(TIERS)]
            self.ledgers[group] = ledgers
        return ledgers[tier]

    def find(self, group: int, block_hash: int) -> Block | None:
        """Where a block lies, whichever tier has it."""
        for ledger in self.ledgers.get(group, ()):
            block = ledger.blocks.get(block_hash)
            if block is not None:
                return block
        return None

    def has(self, group: int, block_hash: int, tier: Tier) -> bool:
        """Whether a block is on a tier or a faster one, with a place or without."""
        for ledger in self.ledgers.get(group, ())[: tier + 1]:
            if block_hash in ledger.blocks:
                return True
        if self.loose.awaits(group, block_hash) and any(self.loose.has(at, group, block_hash) for at in Tier if at <= tier):
            return True
        return len(self.orphans) > 0 and any(self.orphans.has(at, group, block_hash) for at in Tier if at <= tier)

    def uses(self, tier: Tier) -> bool:
        """Whether anything may be on this very tier."""
        return len(self.orphans) > 0 or self.loose.uses(tier) or any(of_group[tier].blocks for of_group in self.ledgers.values())

    def names(self, block: Block) -> tuple[int, ...]:
        """The hashes this holder has for a place, on all tiers; one may come twice."""
        names: tuple[int, ...] = ()
        for ledger in self.ledgers.get(block.node.root.group, ()):
            if ledger.blocks:
                names += ledger.names(block)
        return names

    def clear(self) -> list[Ledger]:
        """Forget everything; returns the ledgers whose blocks are still in the tree."""
        ledgers = [ledger for group in self.ledgers.values() for ledger in group]
        self.ledgers = {}
        self.orphans.clear()
        self.loose.clear()
        self.groups = Groups()  # another life of the engine may have others
        return ledgers
