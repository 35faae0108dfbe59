"""Where things lie: the place of a hash, and the edges along a prompt, held by anybody or not. For the one writer.

Invariants
- A place is node << 21 | depth, depth from 1; it is good until the next change.
"""

from __future__ import annotations

from radix.core.atomics import divide, load_32, load_64, store_64
from radix.core.children import find_child
from radix.core.handles import copies_in, depth_in, find_handle, node_in
from radix.core.jit import inner
from radix.core.layout import LENGTH, OFFSET, PLACE_BITS
from radix.core.nodes import climb, common, node_at, tokens_at


@inner
def place_of(base: int, ledger: int, block_hash: int) -> int:
    """Where a hash's block lies now; 0 when the hash is unknown."""
    slot = find_handle(base, ledger, block_hash)
    if slot == 0:
        return 0
    depth = depth_in(load_64(slot + 8))
    return (climb(base, node_in(load_64(slot + 8)), depth) << PLACE_BITS) | depth


@inner
def copies_of(base: int, ledger: int, block_hash: int) -> int:
    """How often a hash was stored and not removed."""
    slot = find_handle(base, ledger, block_hash)
    return copies_in(load_64(slot + 8)) if slot != 0 else 0


@inner
def edges_along(base: int, root: int, grain: int, tokens: int, count: int, out: int, most: int) -> int:
    """Write (node, matching blocks) of each edge that a prompt follows, at most `most`; returns how many."""
    node, done, edges = root, 0, 0
    while done + grain <= count and edges < most:
        child = find_child(base, node, tokens + done * 4, grain)
        if child == 0:
            break
        at = node_at(base, child)
        length = load_32(at + LENGTH) * grain
        same = common(tokens_at(base, load_32(at + OFFSET)), tokens + done * 4, min(length, count - done))
        store_64(out + edges * 16, child)
        store_64(out + edges * 16 + 8, divide(same, grain))
        edges += 1
        node = child
        done += length
        if same < length:
            break
    return edges
