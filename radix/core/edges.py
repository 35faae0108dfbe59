"""Cutting and joining edges, growing and shrinking leaves.

Invariants
- `settle` leaves no node without members and children, and no two neighbours that could be one (up to JOIN_UNITS to copy).
- Every arena unit belongs to one node: a cut inside a unit moves the smaller part out.
- All of it happens between `begin_change` and `end_change` of the caller.
"""

from __future__ import annotations

from radix.core.arena import add_to, give, stretch, take, unit_at
from radix.core.atomics import copy, load_32, load_64, shift_right, store_32, store_64
from radix.core.children import enter, link, replace, strike, unlink
from radix.core.clocks import clock_at, hand_on, touch
from radix.core.jit import inner
from radix.core.layout import (
    BLOCKS,
    CHILDREN,
    JOIN_UNITS,
    LENGTH,
    MEMBERS,
    NOWHERE,
    OFFSET,
    ONLY,
    PARENT,
    PLACE,
    ROOT,
    SLACK_MASK,
    UNIT_WORDS,
    WORD_BITS,
)
from radix.core.nodes import (
    bury,
    extent_units,
    is_held,
    member_words,
    new_node,
    node_at,
    set_place,
    start_of,
    tokens_at,
    units_for,
)


@inner
def split(base: int, node: int, cut: int, grain: int) -> int:
    """Cut before block `cut`; returns the new node, which is the upper part."""
    upper = new_node(base)
    low, up = node_at(base, node), node_at(base, upper)
    parent, start = load_32(low + PARENT), start_of(low)
    replace(base, parent, node, upper, grain)
    for word in range(member_words(base)):
        store_64(up + MEMBERS + word * 8, load_64(low + MEMBERS + word * 8))
    store_32(up + LENGTH, cut)
    set_place(up, start, 0)
    store_32(up + PARENT, parent)
    store_32(up + ROOT, load_32(low + ROOT))
    store_32(up + CHILDREN, 1)
    store_32(up + ONLY, node)
    store_32(clock_at(base, upper), load_32(clock_at(base, node)))
    _share_extent(base, low, up, cut, grain)
    store_32(low + PARENT, upper)
    enter(base, upper, node, grain)
    return upper


@inner
def _share_extent(base: int, low: int, up: int, cut: int, grain: int) -> None:
    """Divide the tokens at a cut; where it is inside a unit, the smaller part moves out."""
    offset, length = load_32(low + OFFSET), load_32(low + LENGTH)
    slack = load_32(low + PLACE) & SLACK_MASK
    middle = offset + cut * grain
    units = extent_units(low, grain)
    first = shift_right(offset, WORD_BITS)
    border = shift_right(middle, WORD_BITS)
    rest = (length - cut) * grain
    store_32(up + OFFSET, offset)
    store_32(low + OFFSET, middle)
    if middle & (UNIT_WORDS - 1) != 0:
        if cut * grain <= rest:
            moved = take(base, units_for(cut * grain))
            copy(unit_at(base, moved), tokens_at(base, offset), cut * grain * 4)
            store_32(up + OFFSET, moved * UNIT_WORDS)
            if border > first:
                give(base, first, border - first)
        else:
            moved = take(base, units_for(rest))
            copy(unit_at(base, moved), tokens_at(base, middle), rest * 4)
            store_32(low + OFFSET, moved * UNIT_WORDS)
            slack = 0
            spare = first + units - border - 1
            if spare > 0:
                give(base, border + 1, spare)
    store_32(low + LENGTH, length - cut)
    set_place(low, start_of(up) + cut, slack)


@inner
def free_extent(base: int, at: int, grain: int) -> None:
    """Give back the tokens of a node."""
    give(base, shift_right(load_32(at + OFFSET), WORD_BITS), extent_units(at, grain))


@inner
def extend_leaf(base: int, node: int, tokens: int, blocks: int, grain: int) -> bool:
    """Append blocks in place or after moving a small run; False when a new node is the better way."""
    at = node_at(base, node)
    offset, length = load_32(at + OFFSET), load_32(at + LENGTH)
    first = shift_right(offset, WORD_BITS)
    units = extent_units(at, grain)
    needed = units_for((offset & (UNIT_WORDS - 1)) + (length + blocks) * grain)
    if needed > units and stretch(base, first, units, needed - units):
        units = needed
    if needed <= units:
        set_place(at, start_of(at), units - needed)
    else:
        needed = units_for((length + blocks) * grain)
        if needed > JOIN_UNITS:
            return False
        slack = min(shift_right(needed, 1), 16)
        moved = take(base, needed + slack)
        copy(unit_at(base, moved), tokens_at(base, offset), length * grain * 4)
        give(base, first, units)
        store_32(at + OFFSET, moved * UNIT_WORDS)
        set_place(at, start_of(at), slack)
    copy(tokens_at(base, load_32(at + OFFSET) + length * grain), tokens, blocks * grain * 4)
    store_32(at + LENGTH, length + blocks)
    add_to(base + BLOCKS, blocks)
    return True


@inner
def new_leaf(base: int, parent: int, tokens: int, blocks: int, grain: int) -> int:
    """A node with these blocks under `parent`; has no member yet."""
    unit = take(base, units_for(blocks * grain))
    node = new_node(base)
    at, above = node_at(base, node), node_at(base, parent)
    copy(unit_at(base, unit), tokens, blocks * grain * 4)
    store_32(at + OFFSET, unit * UNIT_WORDS)
    store_32(at + LENGTH, blocks)
    set_place(at, start_of(above) + load_32(above + LENGTH), 0)
    store_32(at + PARENT, parent)
    store_32(at + ROOT, load_32(above + ROOT))
    link(base, parent, node, grain)
    touch(base, node)
    add_to(base + BLOCKS, blocks)
    return node


@inner
def shorten(base: int, node: int, keep: int, grain: int) -> None:
    """Drop the last blocks of a leaf and the units behind them."""
    at = node_at(base, node)
    units = extent_units(at, grain)
    add_to(base + BLOCKS, keep - load_32(at + LENGTH))
    store_32(at + LENGTH, keep)
    set_place(at, start_of(at), 0)
    kept = extent_units(at, grain)
    if kept < units:
        give(base, shift_right(load_32(at + OFFSET), WORD_BITS) + kept, units - kept)


@inner
def settle(base: int, node: int, grain: int) -> None:
    """Restore the tree's shape around a node that lost a member."""
    while True:
        at = node_at(base, node)
        if load_32(at + ROOT) == node:
            return
        if load_32(at + CHILDREN) != 0 or is_held(base, at):
            break
        parent = load_32(at + PARENT)
        unlink(base, parent, node, grain)
        free_extent(base, at, grain)
        add_to(base + BLOCKS, -load_32(at + LENGTH))
        hand_on(base, node, parent)
        bury(base, node, parent)
        node = parent
    join(base, node, grain)
    at = node_at(base, node)
    if load_32(at + CHILDREN) == 1:
        join(base, load_32(at + ONLY), grain)


@inner
def join(base: int, node: int, grain: int) -> None:
    """Make a node and its parent one, where nothing sets them apart; the node keeps its number."""
    low = node_at(base, node)
    parent = load_32(low + PARENT)
    up = node_at(base, parent)
    if load_32(up + CHILDREN) != 1 or load_32(up + ROOT) == parent or parent == 0:
        return
    for word in range(member_words(base)):
        if load_64(up + MEMBERS + word * 8) != load_64(low + MEMBERS + word * 8):
            return
    if not _fuse(base, up, low, node, parent, grain):
        return
    store_32(low + PARENT, load_32(up + PARENT))
    set_place(up, NOWHERE, 0)
    hand_on(base, parent, node)
    bury(base, parent, node)


@inner
def _fuse(base: int, up: int, low: int, node: int, parent: int, grain: int) -> bool:
    """Give the lower node its parent's place and the tokens of both; False when that is too much to copy."""
    offset, length = load_32(up + OFFSET), load_32(up + LENGTH)
    below, rest = load_32(low + OFFSET), load_32(low + LENGTH)
    slack = load_32(low + PLACE) & SLACK_MASK
    adjacent = offset + length * grain == below and below & (UNIT_WORDS - 1) == 0 and load_32(up + PLACE) & SLACK_MASK == 0
    if not adjacent:
        units = units_for((length + rest) * grain)
        moved = take(base, units) if units <= JOIN_UNITS else 0
        if moved == 0:
            return False
        copy(unit_at(base, moved), tokens_at(base, offset), length * grain * 4)
        copy(unit_at(base, moved) + length * grain * 4, tokens_at(base, below), rest * grain * 4)
    strike(base, parent, node, grain)  # keys are made from tokens, so both before an extent is given back
    replace(base, load_32(up + PARENT), parent, node, grain)
    if not adjacent:
        free_extent(base, up, grain)
        free_extent(base, low, grain)
        offset = moved * UNIT_WORDS
        slack = 0
    store_32(low + OFFSET, offset)
    store_32(low + LENGTH, length + rest)
    set_place(low, start_of(up), slack)
    return True
