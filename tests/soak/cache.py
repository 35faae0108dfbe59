"""The truth about one rank: a paged cache as engines have it, and the events each change of it causes.

Block hashes follow from the place of a block and differ from rank to rank. Nothing of the index is used to keep the truth; only
`digest` asks a fresh index, fed in the plainest order, for the digest of the blocks that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from random import Random

import numpy as np

from radix import Batch, Cleared, Event, Index, NamespaceHint, Removed, Stored, Tier

_TIERS = (Tier.DEVICE, Tier.HOST)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One block and its way from the prompt's start. The salt is the prompt's."""

    hash: int
    parent: Block | None
    tokens: tuple[int, ...]
    depth: int
    salt: str | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and other.hash == self.hash

    def __hash__(self) -> int:
        return self.hash

    def above(self) -> Iterator[Block]:
        """Itself and all before it."""
        at: Block | None = self
        while at is not None:
            yield at
            at = at.parent


class Cache:
    """One rank's blocks. capacity: of device blocks, copies counted; the host tier holds half as many.

    counting: copies of a block are announced one by one; else a repeated store means the same block (set semantics).
    """

    def __init__(self, name: str, random: Random, *, capacity: int, block_tokens: int, counting: bool) -> None:
        self._name = name.encode()
        self._random = random
        self._capacity = {Tier.DEVICE: capacity, Tier.HOST: capacity // 2}
        self._block_tokens = block_tokens
        self._counting = counting
        self._held: dict[Tier, dict[Block, int]] = {tier: {} for tier in _TIERS}  # copies, least recently used first
        self._by_hash: dict[int, Block] = {}  # of all that are held somewhere

    def prompt(self, tokens: Sequence[int], salt: str | None, *, use_cache: bool = True) -> tuple[list[Event], int]:
        """Compute a prompt: what that announces, and how many tokens were found. Without use_cache all is computed again."""
        path = self._path(tokens, salt)
        device = self._held[Tier.DEVICE]
        found = next((i for i, block in enumerate(path) if not use_cache or block not in device), len(path))
        events: list[Event] = []
        if found < len(path):
            events.append(self._stored(path[found:]))
            for block in path[found:]:
                self._hold(block, Tier.DEVICE)
        for block in reversed(path):  # the tail is evicted first
            device[block] = device.pop(block)
        events += self._evictions(Tier.DEVICE)
        return events, found * self._block_tokens

    def lose_one(self) -> list[Event]:
        """Evict a block from the middle of something: a hole."""
        device = self._held[Tier.DEVICE]
        if not device:
            return []
        block = self._random.choice(list(device))
        return [self._release(block, Tier.DEVICE)]

    def clear(self) -> list[Event]:
        """Drop everything."""
        for held in self._held.values():
            held.clear()
        self._by_hash.clear()
        return [Cleared()]

    def rows(self) -> list[tuple[int, int, int]]:
        """(tier, hash, copies) of all blocks."""
        return [(int(tier), block.hash, copies) for tier, held in self._held.items() for block, copies in held.items()]

    def digest(self) -> bytes:
        """What `Index.digest` says of exactly these blocks."""
        index = Index()
        holder = index.holder("truth", 0, counting=self._counting)
        device, host = self._held[Tier.DEVICE], self._held[Tier.HOST]
        needed = {above: None for held in (device, host) for block in held for above in block.above()}
        events: list[Event] = []
        for block in sorted(needed, key=lambda each: each.depth):
            events += [self._stored([block])] * max(device.get(block, 1), 1)
        for block, copies in host.items():
            events += [self._named(block, Tier.HOST)] * copies
        events += [Removed((block.hash,)) for block in needed if block not in device]
        index.apply(holder, Batch(0, 0, 0.0, tuple(events)))
        return index.digest(holder)

    def _path(self, tokens: Sequence[int], salt: str | None) -> list[Block]:
        path: list[Block] = []
        size = self._block_tokens
        for start in range(0, len(tokens) - size, size):  # the last token is always computed
            block_tokens = tuple(tokens[start : start + size])
            parent = path[-1] if path else None
            seed = (parent.hash.to_bytes(8, "big") if parent else (salt or "").encode() + self._name) + bytes(
                np.array(block_tokens, np.int32)
            )
            name = int.from_bytes(blake2b(seed, digest_size=8).digest(), "big")
            path.append(self._by_hash.get(name) or Block(name, parent, block_tokens, len(path), salt))
        return path

    def _hold(self, block: Block, tier: Tier) -> None:
        held = self._held[tier]
        held[block] = held.pop(block, 0) + 1 if self._counting else 1
        self._by_hash[block.hash] = block

    def _release(self, block: Block, tier: Tier) -> Removed:
        held = self._held[tier]
        held[block] -= 1
        if not held[block]:
            del held[block]
            if not any(block in other for other in self._held.values()):
                del self._by_hash[block.hash]
        return Removed((block.hash,), tier)

    def _evictions(self, tier: Tier) -> list[Event]:
        """Down to the capacity, some blocks to the host tier first; neighbours share an event."""
        held = self._held[tier]
        events: list[Event] = []
        over = sum(held.values()) - self._capacity[tier]
        while over > 0:
            block = next(iter(held))
            if tier is Tier.DEVICE and self._random.random() < 0.3:
                events.append(self._named(block, Tier.HOST))
                self._hold(block, Tier.HOST)
            events.append(self._release(block, tier))
            over -= 1
        if tier is Tier.DEVICE and events:
            events += self._evictions(Tier.HOST)
        return _joined(events)

    def _stored(self, run: Sequence[Block]) -> Stored:
        parent = run[0].parent
        tokens = np.array([token for block in run for token in block.tokens], np.int32)
        hint = NamespaceHint(salt=run[0].salt if parent is None else None)
        return Stored(tuple(block.hash for block in run), parent.hash if parent else None, tokens, self._block_tokens, hint)

    def _named(self, block: Block, tier: Tier) -> Stored:
        """As offload tiers announce it: the hash alone."""
        return Stored((block.hash,), None, np.zeros(0, np.int32), self._block_tokens, tier=tier)


def _joined(events: Sequence[Event]) -> list[Event]:
    """Removals in a row from one tier become one event."""
    joined: list[Event] = []
    for tier, run in groupby(events, lambda event: event.tier if isinstance(event, Removed) else None):
        if tier is None:
            joined += run
        else:
            joined.append(Removed(tuple(name for event in run if isinstance(event, Removed) for name in event.hashes), tier))
    return joined
