"""Nodes and their numbers: fields, making and freeing, and the stubs that old handles climb through.

Invariants
- REFS counts handles, shares and stubs that name the node. A live node is never freed for want of them.
- A stub's parent is where to go on: the parent of one that died, the lower half of one that was joined away.
- What readers can see is changed between `begin_change` and `end_change` of the caller.
"""

from __future__ import annotations

from radix.core.arena import add_to
from radix.core.atomics import differ_32, differ_256, load_32, load_64, shift_right, store_32, store_64
from radix.core.jit import inner
from radix.core.layout import (
    ARENA,
    LENGTH,
    MEMBERS,
    NODE_FREE,
    NODE_MASK,
    NODE_NEXT,
    NODE_REGION,
    NODES,
    NODES_LIVE,
    OFFSET,
    PARENT,
    PLACE,
    REFS,
    ROOT,
    ROOT_GRAIN,
    SLACK_BITS,
    SLACK_MASK,
    STRIDE,
    STUBS,
    TIERS_USED,
    UNIT_WORDS,
    WORD_BITS,
    WORDS,
)


@inner
def node_at(base: int, node: int) -> int:
    """Address of a node; inside the region whatever the number is."""
    return base + NODES + ((node & NODE_MASK) * load_64(base + STRIDE) & (NODE_REGION - 1))


@inner
def tokens_at(base: int, words: int) -> int:
    """Address of the token at an offset in the arena."""
    return base + ARENA + words * 4


@inner
def member_words(base: int) -> int:
    """64-bit words of members in a node."""
    return load_64(base + WORDS) * load_64(base + TIERS_USED)


@inner
def is_held(base: int, at: int) -> bool:
    """Whether the node at an address has any member."""
    any_bit = 0
    for word in range(member_words(base)):
        any_bit |= load_64(at + MEMBERS + word * 8)
    return any_bit != 0


@inner
def start_of(at: int) -> int:
    """Blocks before the node at an address."""
    return shift_right(load_32(at + PLACE), SLACK_BITS)


@inner
def set_place(at: int, start: int, slack: int) -> None:
    """Write a node's start and slack."""
    store_32(at + PLACE, (start << SLACK_BITS) | slack)


@inner
def common(left: int, right: int, count: int) -> int:
    """Equal leading tokens of two runs of `count`."""
    same = 0
    while same + 64 <= count and differ_256(left + same * 4, right + same * 4) == 0:
        same += 64
    while same + 8 <= count and differ_32(left + same * 4, right + same * 4) == 0:
        same += 8
    while same < count and load_32(left + same * 4) == load_32(right + same * 4):
        same += 1
    return same


@inner
def units_for(words: int) -> int:
    """Units that hold this many words."""
    return shift_right(words + UNIT_WORDS - 1, WORD_BITS)


@inner
def extent_units(at: int, grain: int) -> int:
    """Units of a node's extent, slack included."""
    first = load_32(at + OFFSET) & (UNIT_WORDS - 1)
    return units_for(first + load_32(at + LENGTH) * grain) + (load_32(at + PLACE) & SLACK_MASK)


@inner
def grain_of(base: int, node: int) -> int:
    """Tokens per block under the root of a node."""
    return load_64(node_at(base, load_32(node_at(base, node) + ROOT)) + ROOT_GRAIN)


@inner
def climb(base: int, node: int, depth: int) -> int:
    """The node in which a block lies now, given the one it was recorded in."""
    at = node_at(base, node)
    while depth <= start_of(at):
        node = load_32(at + PARENT)
        at = node_at(base, node)
    return node


@inner
def new_node(base: int) -> int:
    """An empty node; there is always one, stores see to that."""
    node = load_64(base + NODE_FREE)
    if node != 0:
        store_64(base + NODE_FREE, load_32(node_at(base, node) + PARENT))
    else:
        node = load_64(base + NODE_NEXT)
        store_64(base + NODE_NEXT, node + 1)
    add_to(base + NODES_LIVE, 1)
    at = node_at(base, node)
    for word in range(4 + member_words(base)):
        store_64(at + word * 8, 0)
    return node


@inner
def free_node(base: int, node: int) -> None:
    """Give back a number that nothing names any more."""
    at = node_at(base, node)
    store_32(at + ROOT, 0)
    store_32(at + PARENT, load_64(base + NODE_FREE))
    store_64(base + NODE_FREE, node)


@inner
def dereference(base: int, node: int, count: int) -> None:
    """This many handles or stubs less name the node."""
    while count > 0:
        at = node_at(base, node)
        left = load_32(at + REFS) - count
        store_32(at + REFS, left)
        if left != 0 or load_32(at + ROOT) != 0:
            return
        following = load_32(at + PARENT)
        add_to(base + STUBS, -1)
        free_node(base, node)
        node, count = following, 1


@inner
def bury(base: int, node: int, following: int) -> None:
    """A node's end: free at once, or a stub that leads to `following`."""
    at = node_at(base, node)
    add_to(base + NODES_LIVE, -1)
    if load_32(at + REFS) == 0:
        free_node(base, node)
        return
    store_32(at + ROOT, 0)
    store_32(at + PARENT, following)
    place = node_at(base, following)
    store_32(place + REFS, load_32(place + REFS) + 1)
    add_to(base + STUBS, 1)
