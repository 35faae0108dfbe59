"""The child table: which node follows another with which first block; and the roots, children of node 0.

Invariants
- An entry's key comes from (parent, first block of the child), read from the arena: enter once the tokens are there, strike
  before they go.
- CHILDREN and ONLY of a node agree with the table; EMPTY_ROOTS counts the roots without children.
"""

from __future__ import annotations

from radix.core.arena import add_to, give, take, unit_at
from radix.core.atomics import copy, load_32, load_64, mul_high, shift_right, store_32, store_64
from radix.core.jit import inner
from radix.core.layout import (
    ARENA_ROOM,
    ARENA_UNITS,
    CHILDREN,
    CHILDREN_FILLED,
    CHILDREN_TABLE,
    CHILDREN_USED,
    EMPTIED,
    EMPTIED_MASK,
    EMPTIED_ROOTS,
    EMPTY_ROOTS,
    ENTRY,
    GOLDEN,
    GONE,
    KEY_MUL,
    NODE_MASK,
    NODES_LIVE,
    OFFSET,
    ONLY,
    PARENT,
    REFS,
    ROOT,
    ROOT_GRAIN,
    ROOT_KEY_WORDS,
    UNIT_WORDS,
    WORD_BITS,
)
from radix.core.nodes import common, free_node, new_node, node_at, tokens_at
from radix.core.sequence import begin_change, end_change
from radix.core.tables import discard, entries_of, erase, has_room, insert, is_sparse, resized, size_of


@inner
def child_key(node: int, tokens: int, count: int) -> int:
    """Key of a child by its parent and the tokens of its first block."""
    key = node * GOLDEN
    at = 0
    while at + 2 <= count:
        key = (key ^ load_64(tokens + at * 4)) * KEY_MUL
        key ^= shift_right(key, 32)
        at += 2
    if at < count:
        key = (key ^ load_32(tokens + at * 4)) * KEY_MUL
        key ^= shift_right(key, 32)
    key *= KEY_MUL
    return key if key not in (0, GONE) else 1


@inner
def find_child(base: int, node: int, tokens: int, count: int) -> int:
    """The child that starts with these tokens, all of them compared; 0 when there is none."""
    table = load_64(base + CHILDREN_TABLE)
    size = size_of(table)
    entries = entries_of(base, table)
    key = child_key(node, tokens, count)
    at = mul_high(key, size)
    for _ in range(size):
        found = load_64(entries + at * ENTRY)
        if found == 0:
            return 0
        if found == key:
            child = load_64(entries + at * ENTRY + 8) & NODE_MASK
            place = node_at(base, child)
            if load_32(place + PARENT) == node and common(tokens_at(base, load_32(place + OFFSET)), tokens, count) == count:
                return child
        at += 1
        if at == size:
            at = 0
    return 0


@inner
def slot_of(base: int, parent: int, child: int, count: int) -> int:
    """Address of the table entry of a child that is there."""
    table = load_64(base + CHILDREN_TABLE)
    size = size_of(table)
    entries = entries_of(base, table)
    key = child_key(parent, tokens_at(base, load_32(node_at(base, child) + OFFSET)), count)
    at = mul_high(key, size)
    while load_64(entries + at * ENTRY) != key or load_64(entries + at * ENTRY + 8) != child:
        at += 1
        if at == size:
            at = 0
    return entries + at * ENTRY


@inner
def make_room_for_children(base: int, more: int) -> bool:
    """Make room in the child table before a change; False when the arena is full."""
    if has_room(load_64(base + CHILDREN_TABLE), load_64(base + CHILDREN_FILLED) + more):
        return True
    copied = resized(base, load_64(base + CHILDREN_TABLE), load_64(base + CHILDREN_USED) + more, load_64(base + ARENA_ROOM))
    if copied == 0:
        return False
    begin_change(base)  # who still reads the old table has to try again: what it was is overwritten now
    _exchange(base, copied)
    end_change(base)
    return True


@inner
def shrink_children(base: int) -> None:
    """Copy a child table that has become much too large; not inside a change."""
    table, used = load_64(base + CHILDREN_TABLE), load_64(base + CHILDREN_USED)
    if is_sparse(table, used):
        copied = resized(base, table, used + 1, load_64(base + ARENA_ROOM))
        if copied != 0:
            begin_change(base)
            _exchange(base, copied)
            end_change(base)


@inner
def _exchange(base: int, copied: int) -> None:
    table = load_64(base + CHILDREN_TABLE)
    store_64(base + CHILDREN_TABLE, copied)
    store_64(base + CHILDREN_FILLED, load_64(base + CHILDREN_USED))
    discard(base, table)


@inner
def enter(base: int, parent: int, child: int, count: int) -> None:
    if not has_room(load_64(base + CHILDREN_TABLE), load_64(base + CHILDREN_FILLED) + 1):  # seldom, see `make_room_for_children`
        copied = resized(base, load_64(base + CHILDREN_TABLE), load_64(base + CHILDREN_USED) + 1, ARENA_UNITS)
        if copied != 0:
            _exchange(base, copied)
    table = load_64(base + CHILDREN_TABLE)
    key = child_key(parent, tokens_at(base, load_32(node_at(base, child) + OFFSET)), count)
    insert(entries_of(base, table), size_of(table), key, child)
    add_to(base + CHILDREN_USED, 1)
    add_to(base + CHILDREN_FILLED, 1)


@inner
def strike(base: int, parent: int, child: int, count: int) -> None:
    table = load_64(base + CHILDREN_TABLE)
    emptied = erase(entries_of(base, table), size_of(table), slot_of(base, parent, child, count))
    add_to(base + CHILDREN_FILLED, -emptied)
    add_to(base + CHILDREN_USED, -1)


@inner
def link(base: int, parent: int, child: int, count: int) -> None:
    """Hang a node under another one; `count` tokens name it there."""
    enter(base, parent, child, count)
    at = node_at(base, parent)
    children = load_32(at + CHILDREN) + 1
    store_32(at + CHILDREN, children)
    store_32(at + ONLY, load_32(at + ONLY) ^ child)
    if children == 1 and parent != 0 and load_32(at + ROOT) == parent:
        add_to(base + EMPTY_ROOTS, -1)


@inner
def unlink(base: int, parent: int, child: int, count: int) -> None:
    """Take a node away from its parent."""
    strike(base, parent, child, count)
    at = node_at(base, parent)
    children = load_32(at + CHILDREN) - 1
    store_32(at + CHILDREN, children)
    store_32(at + ONLY, load_32(at + ONLY) ^ child)
    if children == 0 and parent != 0 and load_32(at + ROOT) == parent:
        add_to(base + EMPTY_ROOTS, 1)
        store_64(base + EMPTIED_ROOTS + (load_64(base + EMPTIED) & EMPTIED_MASK) * 8, parent)
        add_to(base + EMPTIED, 1)


@inner
def replace(base: int, parent: int, old: int, new: int, count: int) -> None:
    store_64(slot_of(base, parent, old, count) + 8, new)
    at = node_at(base, parent)
    store_32(at + ONLY, load_32(at + ONLY) ^ old ^ new)


@inner
def new_root(base: int, key: int) -> int:
    """A root under the 16 words at `key`; 0 when the arena is full."""
    unit = take(base, 1)
    if unit == 0:
        return 0
    root = new_node(base)
    at = node_at(base, root)
    copy(unit_at(base, unit), key, ROOT_KEY_WORDS * 4)
    store_32(at + OFFSET, unit * UNIT_WORDS)
    store_32(at + ROOT, root)
    store_64(at + ROOT_GRAIN, load_32(key + 32))
    link(base, 0, root, ROOT_KEY_WORDS)
    add_to(base + EMPTY_ROOTS, 1)
    return root


@inner
def drop_root(base: int, root: int) -> bool:
    """Forget a root; False while something hangs under it or names it."""
    at = node_at(base, root)
    if load_32(at + CHILDREN) != 0 or load_32(at + REFS) != 0:
        return False
    unlink(base, 0, root, ROOT_KEY_WORDS)
    give(base, shift_right(load_32(at + OFFSET), WORD_BITS), 1)
    add_to(base + NODES_LIVE, -1)
    add_to(base + EMPTY_ROOTS, -1)
    free_node(base, root)
    return True
