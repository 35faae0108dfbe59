"""One (replica, rank) and everything the index knows of it, except where its blocks lie in the tree."""

from __future__ import annotations

from radix.changes import Tier
from radix.groups import Groups
from radix.loose import Loose
from radix.match import TIERS
from radix.orphans import Orphans
from radix.presence import Presence
from radix.tree import AnyLedger, AnyTree, Place

LOOSE_PER_ORPHAN = 16  # a loose block costs about a sixteenth of a waiting one


class Holder:
    """One (replica, rank) and what it has."""

    __slots__ = (
        "_orphan_limit",
        "_presence",
        "counting",
        "groups",
        "ledgers",
        "loose",
        "model",
        "number",
        "orphans",
        "rank",
        "replica",
        "tree",
        "trimmed",
    )

    def __init__(
        self,
        number: int,
        replica: str,
        rank: int,
        tree: AnyTree,
        presence: Presence,
        *,
        counting: bool,
        orphan_limit: int,
        model: str = "",
    ) -> None:
        """tree: where its blocks lie. presence: of all holders' blocks that have no place."""
        self.number = number
        self.tree = tree
        self.replica = replica
        self.rank = rank
        self.model = model
        self.trimmed = 0  # hashes given up for the byte budget since the view began
        self.groups = Groups()
        self.ledgers: dict[int, list[AnyLedger]] = {}  # by group, then by tier
        self._orphan_limit = orphan_limit
        self._presence = presence
        self.count_copies(counting)

    def count_copies(self, counting: bool) -> None:
        """Begin to count copies of blocks, or to take a repeated store for the same block; only while there are none."""
        self.counting = counting
        self.orphans = Orphans(self._orphan_limit, counting=counting, holder=self.number, bits=self._presence.waiting)
        limit = self._orphan_limit * LOOSE_PER_ORPHAN
        self.loose = Loose(limit, counting=counting, holder=self.number, bits=self._presence.loose)

    def ledger(self, group: int, tier: Tier) -> AnyLedger:
        """What it has on one tier in one group."""
        ledgers = self.ledgers.get(group)
        if ledgers is None:
            ledgers = [self.tree.ledger(self.number, place, counting=self.counting) for place in range(TIERS)]
            self.ledgers[group] = ledgers
        return ledgers[tier]

    def find(self, group: int, block_hash: int) -> Place | None:
        """Where a block lies, whichever tier has it."""
        for ledger in self.ledgers.get(group, ()):
            place: Place | None = ledger.find(block_hash)
            if place is not None:
                return place
        return None

    def has(self, group: int, block_hash: int, tier: Tier) -> bool:
        """Whether a block is on a tier or a faster one, with a place or without."""
        if self.loose.awaits(group, block_hash) and any(self.loose.has(at, group, block_hash) for at in Tier if at <= tier):
            return True  # where the blocks of sparse groups mostly are
        for ledger in self.ledgers.get(group, ())[: tier + 1]:
            if ledger.find(block_hash) is not None:
                return True
        return len(self.orphans) > 0 and any(self.orphans.has(at, group, block_hash) for at in Tier if at <= tier)

    def uses(self, tier: Tier) -> bool:
        """Whether anything may be on this very tier."""
        return len(self.orphans) > 0 or self.loose.uses(tier) or any(len(of_group[tier]) for of_group in self.ledgers.values())

    def names(self, place: Place) -> tuple[int, ...]:
        """The hashes this holder has for a place, on all tiers; one may come twice."""
        names: tuple[int, ...] = ()
        for ledger in self.ledgers.get(place.root.group, ()):
            if len(ledger):
                names += ledger.names(place)
        return names

    def clear(self) -> list[AnyLedger]:
        """Forget everything; returns the ledgers whose blocks are still in the tree."""
        ledgers = [ledger for group in self.ledgers.values() for ledger in group]
        self.ledgers = {}
        self.orphans.clear()
        self.loose.clear()
        self.trimmed = 0
        self.groups = Groups()  # another life of the engine may have others
        return ledgers
