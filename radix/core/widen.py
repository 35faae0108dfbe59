"""Wider nodes: more holders, or another tier. All nodes are laid out anew in their own region, from the last to the first."""

from __future__ import annotations

from radix.core.atomics import copy, load_64, store_64
from radix.core.jit import inner
from radix.core.layout import MEMBERS, NODE_LIMIT, NODE_NEXT, NODE_REGION, NODES, STRIDE, TIERS_USED, WORDS
from radix.core.sequence import begin_change, end_change


@inner
def widen(base: int, words: int, tiers: int, stride: int, spare: int) -> None:
    """Give every node `words` member words for each of `tiers` tiers; `spare`: memory for one node."""
    old_words, old_tiers, old_stride = load_64(base + WORDS), load_64(base + TIERS_USED), load_64(base + STRIDE)
    begin_change(base)
    for node in range(load_64(base + NODE_NEXT) - 1, -1, -1):
        copy(spare, base + NODES + node * old_stride, old_stride)
        at = base + NODES + node * stride
        copy(at, spare, MEMBERS)
        for word in range(words * tiers):
            store_64(at + MEMBERS + word * 8, 0)
        for tier in range(old_tiers):
            copy(at + MEMBERS + tier * words * 8, spare + MEMBERS + tier * old_words * 8, old_words * 8)
    store_64(base + WORDS, words)
    store_64(base + TIERS_USED, tiers)
    store_64(base + STRIDE, stride)
    store_64(base + NODE_LIMIT, NODE_REGION // stride - 1)
    end_change(base)
