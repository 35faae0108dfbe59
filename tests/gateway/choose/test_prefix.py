"""The hash that breaks ties."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from gateway.choose.prefix import prefix_hash, rendezvous


def test_the_hash_is_fixed() -> None:
    """Gateways of any version and machine must agree: a changed value here scatters every prefix."""
    assert prefix_hash(np.arange(10, dtype=np.int32)) == 0xF862334231BAD6EB
    assert prefix_hash(np.zeros(0, np.int32)) == 0


def test_only_the_start_counts() -> None:
    tokens = np.arange(4_000, dtype=np.int32)
    changed = tokens.copy()
    changed[1_536] = 7
    assert prefix_hash(tokens) == prefix_hash(tokens[:1_536]) == prefix_hash(changed)
    changed[1_535] = 7
    assert prefix_hash(tokens) != prefix_hash(changed)
    assert prefix_hash(tokens, limit=100) == prefix_hash(changed, limit=100) != prefix_hash(tokens, limit=99)


def test_the_layout_of_the_array_does_not_count() -> None:
    tokens = np.arange(40, dtype=np.int32)
    assert prefix_hash(tokens[::2]) == prefix_hash(np.ascontiguousarray(tokens[::2]))


def test_holders_share_the_prefixes_evenly() -> None:
    source = random.Random(5)
    orders = [source.getrandbits(64) for _ in range(5)]
    prefixes = [source.getrandbits(64) for _ in range(2_000)]
    winners = Counter(max(orders, key=lambda order: rendezvous(order, prefix)) for prefix in prefixes)
    assert min(winners.values()) > 300
    assert max(winners.values()) < 500
    assert all(0 <= rendezvous(order, prefixes[0]) < 2**64 for order in orders)
