"""When a node was last matched or stored: a u32 for each node, in a region of their own, so that nodes keep their size.

The clock goes by stores. A match writes it to the deepest node it reached, and a node that goes hands what it has to its parent:
a node's clock so is that of its last use that nothing below it has already seen.

Invariants
- Readers write here too, in other processes as well, after their answer stood the check. The number is masked, so whatever they
  write stays inside; when the node has died meanwhile, a dead or a new node is taken for used, no more.
- CLOCK stays below 2^32: before it gets there, it and all clocks are halved.
"""

from __future__ import annotations

from radix.core.atomics import load_32, load_64, shift_right, store_32, store_64
from radix.core.jit import inner
from radix.core.layout import CLOCK, CLOCK_LIMIT, CLOCKS, NODE_MASK, NODE_NEXT


@inner
def clock_at(base: int, node: int) -> int:
    """Address of a node's clock; inside the region whatever the number is."""
    return base + CLOCKS + ((node & NODE_MASK) << 2)


@inner
def touch(base: int, node: int) -> None:
    """The node is in use now."""
    store_32(clock_at(base, node), load_64(base + CLOCK))


@inner
def hand_on(base: int, node: int, heir: int) -> None:
    """Let another node be as recently used as this one, at least."""
    mine, theirs = load_32(clock_at(base, node)), clock_at(base, heir)
    if mine > load_32(theirs):
        store_32(theirs, mine)


@inner
def tick(base: int) -> None:
    """Time goes on by one store."""
    now = load_64(base + CLOCK) + 1
    if now >= CLOCK_LIMIT:
        now = shift_right(now, 1)
        for node in range(load_64(base + NODE_NEXT)):
            at = clock_at(base, node)
            store_32(at, shift_right(load_32(at), 1))
    store_64(base + CLOCK, now)
