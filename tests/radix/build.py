"""Stores and matches whose tokens follow from block hashes; shared by the tests of the index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radix import Applied, Batch, Event, Index, Namespace, NamespaceHint, Stored, Tier
from radix.changes import NO_HINT

BASE = Namespace("m")
BLOCK = 4


def apply(index: Index, holder: int, *events: Event) -> Applied:
    return index.apply(holder, Batch(0, 0, 0.0, events))


def tokens_of(hashes: Sequence[int], block: int = BLOCK) -> np.ndarray:
    """Tokens that follow from a block's hash, so that equal chains have equal prompts."""
    return np.array([value % 1000 * 100 + i for value in hashes for i in range(block)], np.int32)


def store(
    hashes: Sequence[int],
    parent: int | None = None,
    *,
    block: int = BLOCK,
    hint: NamespaceHint = NO_HINT,
    tier: Tier = Tier.DEVICE,
) -> Stored:
    return Stored(tuple(hashes), parent, tokens_of(hashes, block), block, hint, tier)


def depth(
    index: Index, holder: int, hashes: Sequence[int], namespace: Namespace = BASE, *, block: int = BLOCK, tier: int = 0
) -> int:
    """Matched blocks."""
    matched = index.match(namespace, tokens_of(hashes, block)).tokens(holder, tier)
    assert matched % block == 0
    return matched // block
