"""Blocks whose parent is not known yet: they wait here, bounded, and are never placed by guesswork (FC-10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from radix.changes import NamespaceHint, Stored, Tier
from radix.presence import Bits
from radix.tree import TOKEN_BYTES


@dataclass(slots=True)
class Orphan:
    """One waiting block. data: its tokens, int32 bytes. copies: stores minus removals seen while it waits."""

    tier: Tier
    group: int
    hash: int
    parent: int
    data: bytes
    block_tokens: int
    hint: NamespaceHint
    lead: int  # number of tokens that lead the run it came with
    copies: int = 1


class Orphans:
    """The waiting blocks of one holder; over `limit` the one that waited longest is given up."""

    def __init__(self, limit: int, *, counting: bool, holder: int, bits: Bits) -> None:
        """bits: of all holders, kept in step."""
        self._limit = limit
        self._holder = holder
        self._bits = bits
        self._counting = counting
        self._waiting: dict[tuple[int, int, int], Orphan] = {}  # (tier, group, hash), oldest first
        self._by_parent: dict[tuple[int, int], dict[tuple[int, int, int], None]] = {}  # (group, parent hash) -> keys
        self.given_up = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Orphan]:
        """All of them, in the order they came."""
        return iter(self._waiting.values())

    def add(self, event: Stored, parent: int, data: bytes) -> int:
        """Keep the blocks of a store, each under the one before it; returns how many were not waiting yet."""
        new = 0
        width = event.block_tokens * TOKEN_BYTES
        for i in range(len(data) // width):
            key = (int(event.tier), event.group, event.hashes[i])
            waiting = self._waiting.get(key)
            if waiting is None:
                block = data[i * width : (i + 1) * width]
                orphan = Orphan(
                    event.tier,
                    event.group,
                    event.hashes[i],
                    parent,
                    block,
                    event.block_tokens,
                    event.namespace_hint,
                    len(event.lead),
                )
                self._waiting[key] = orphan
                self._bits.add(self._holder, *key)
                self._by_parent.setdefault((event.group, parent), {})[key] = None
                new += 1
            elif self._counting:
                waiting.copies += 1
            parent = event.hashes[i]
        while len(self._waiting) > self._limit:
            self._take(next(iter(self._waiting)))
            self.given_up += 1
        return new

    def remove(self, tier: Tier, group: int, block_hash: int) -> bool:
        """One copy less of a waiting block; False when it does not wait here."""
        key = (int(tier), group, block_hash)
        orphan = self._waiting.get(key)
        if orphan is None:
            return False
        orphan.copies -= 1
        if orphan.copies == 0 or not self._counting:
            self._take(key)
        return True

    def has(self, tier: Tier, group: int, block_hash: int) -> bool:
        """Whether a block waits here."""
        return (int(tier), group, block_hash) in self._waiting

    def awaits(self, group: int, parent: int) -> bool:
        """Whether any block waits for `parent`."""
        return (group, parent) in self._by_parent

    def claim(self, group: int, parent: int) -> list[Orphan]:
        """Take out the blocks that wait for `parent`."""
        keys = self._by_parent.get((group, parent))
        return [self._take(key) for key in list(keys)] if keys else []

    def clear(self) -> None:
        """Give up all of them."""
        for key in self._waiting:
            self._bits.take(self._holder, *key)
        self._waiting.clear()
        self._by_parent.clear()

    def _take(self, key: tuple[int, int, int]) -> Orphan:
        orphan = self._waiting.pop(key)
        self._bits.take(self._holder, *key)
        siblings = self._by_parent[orphan.group, orphan.parent]
        del siblings[key]
        if not siblings:
            del self._by_parent[orphan.group, orphan.parent]
        return orphan
