"""Indexes for measurements, filled through `Index.apply` as events would: shared prefixes, and what features put beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radix import Batch, Event, Index, Namespace, NamespaceHint, Stored, Tier
from radix.changes import GroupKind
from radix.core.compiled import CompiledTree
from radix.flat import FlatTree
from radix.match import Int32Array

MODEL = "benchmark"
BLOCK_TOKENS = 16
VOCABULARY = 128_000
FEATURES = ("plain", "tiers", "guesses", "namespaces", "groups")


@dataclass(frozen=True, slots=True)
class Chain:
    """A run of blocks from a prompt's start. tokens: int32 [len(hashes) * BLOCK_TOKENS]."""

    hashes: tuple[int, ...]
    tokens: Int32Array

    def stored(self, **more: object) -> Stored:
        """The event that announces it; more: fields of it."""
        return Stored(self.hashes, None, self.tokens, BLOCK_TOKENS, **more)  # type: ignore[arg-type]


def new_index(tree: str, compiled: CompiledTree | None = None) -> Index:
    """An empty index on the `compiled` tree (on this one, where it is given), as a gateway has it once it is warm, or `plain`."""
    index = Index()
    if tree == "compiled":
        index.work_on(FlatTree(compiled or CompiledTree()))
        while index.move():
            pass
    return index


def chains(chance: np.random.Generator, count: int, blocks: int) -> list[Chain]:
    """Random chains; in real ones hashes follow from tokens, which the index does not look at."""
    return [
        Chain(
            tuple(chance.integers(1, 2**63, blocks).tolist()),
            chance.integers(0, VOCABULARY, blocks * BLOCK_TOKENS).astype(np.int32),
        )
        for _ in range(count)
    ]


def filled(tree: str, holders: int, shared: Sequence[Chain], feature: str = "plain") -> Index:
    """Every holder has every chain, and one thing more:

    tiers: every other one also on the host tier, a quarter on disk. guesses: 1,000, half of them below the chains. namespaces:
    1,000 salts with a chain each. groups: models of a full and a sliding window group.
    """
    index = new_index(tree)
    for number in range(holders):
        holder = index.holder(f"r{number}", 0, model=MODEL)
        apply(index, holder, _announced(number, shared, feature))
    if feature == "guesses":
        chance = np.random.default_rng(1)
        for number in range(1_000):
            base = shared[number % len(shared)].tokens if number % 2 else np.zeros(0, np.int32)
            tail = chance.integers(0, VOCABULARY, 512).astype(np.int32)
            index.guess(number % holders, Namespace(MODEL), np.concatenate([base, tail]), expires_at=1e18)
    if feature == "namespaces":
        for number, chain in enumerate(chains(np.random.default_rng(2), 1_000, 4)):
            apply(index, number % holders, [chain.stored(namespace_hint=NamespaceHint(salt=f"tenant{number}"))])
    return index


def apply(index: Index, holder: int, events: Sequence[Event]) -> None:
    """One batch of events."""
    index.apply(holder, Batch(0, 0, 0.0, tuple(events)))


def _announced(number: int, shared: Sequence[Chain], feature: str) -> list[Event]:
    events: list[Event] = []
    for chain in shared:
        if feature == "groups":
            events.append(chain.stored(kind=GroupKind.FULL))
            events.append(chain.stored(group=1, kind=GroupKind.WINDOW, window_tokens=128))
            continue
        events.append(chain.stored())
        if feature == "tiers" and number % 2:
            events.append(chain.stored(tier=Tier.HOST))
        if feature == "tiers" and number % 4 == 0:
            events.append(chain.stored(tier=Tier.DISK))
    return events
