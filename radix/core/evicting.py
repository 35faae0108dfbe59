"""The byte budget: the leaves that were matched longest ago leave the tree, and then the handles that named them.

Invariants
- Only leaves go, so what stays of any chain is a beginning of it. A leaf hands its clock to its parent, which may go next.
- One change of the sequence lock covers at most `_BURST` leaves with `_CLIMB` of their ancestors each. What they need was looked
  up before it, so that the change is short and readers find time between two of them.
- Between the cutting and the end of `sweep_handles` handles may name blocks that are gone: no other operation comes between.
"""

from __future__ import annotations

from radix.core.arena import add_to
from radix.core.atomics import fill_zero, leading_zeros, load_32, load_64, prefetch, shift_right, store_64
from radix.core.children import shrink_children, slot_of
from radix.core.clocks import clock_at
from radix.core.edges import settle
from radix.core.handles import depth_in, handle, ledger_at, node_in, reference, shrink_handles
from radix.core.jit import inner
from radix.core.layout import (
    ARENA_USED,
    CHILDREN,
    CLOCK,
    CLOCK_BYTES,
    COPIES_MASK,
    ENTRY,
    GONE,
    HANDLES,
    LEDGER_FILLED,
    LEDGER_TABLE,
    LEDGER_USED,
    MEMBERS,
    NODE_NEXT,
    NODES_LIVE,
    PARENT,
    ROOT,
    SEGMENTS,
    SHARES_FILLED,
    SHARES_TABLE,
    SHARES_USED,
    STRIDE,
    STUBS,
    UNIT,
)
from radix.core.nodes import climb, dereference, extent_units, grain_of, member_words, node_at
from radix.core.sequence import begin_change, end_change
from radix.core.tables import entries_of, erase, size_of

_CLASSES = 25 << 8 | 256  # of age: exact up to 512, above that 256 to each doubling
_QUOTA = 1 << 16  # offsets in SEGMENTS; the sums by class of age come first
_VICTIMS = _QUOTA + 8
_BURST = 32
_CLIMB = 16
_AHEAD = 8  # handles whose nodes are asked for before they are needed


@inner
def bytes_used(base: int) -> int:
    """Memory in use: nodes with their clocks, stubs, tokens and tables, without freed parts."""
    nodes = load_64(base + NODES_LIVE) + load_64(base + STUBS)
    return load_64(base + ARENA_USED) * UNIT + nodes * (load_64(base + STRIDE) + CLOCK_BYTES)


@inner
def evict_leaves(base: int, wanted: int) -> int:
    """Cut leaves, longest unused first, until tokens and nodes of `wanted` bytes are free; how many went."""
    before = _bytes_alive(base)
    leaves = 0
    while before - _bytes_alive(base) < wanted:
        cut = _cut_older(base, _class_to_cut(base, wanted - before + _bytes_alive(base)), before - wanted)
        if cut == 0:
            break
        leaves += cut
    shrink_children(base)
    return leaves


@inner
def _bytes_alive(base: int) -> int:
    return load_64(base + ARENA_USED) * UNIT + load_64(base + NODES_LIVE) * (load_64(base + STRIDE) + CLOCK_BYTES)


@inner
def _class_of_age(base: int, node: int) -> int:
    age = max(load_64(base + CLOCK) - load_32(clock_at(base, node)), 0)
    shift = max(55 - leading_zeros(age | 1), 0)
    return (shift << 8) + shift_right(age, shift)


@inner
def _is_leaf(at: int, node: int) -> bool:
    root = load_32(at + ROOT)
    return load_32(at + CHILDREN) == 0 and root not in (0, node)


@inner
def _leaf_bytes(base: int, at: int, node: int) -> int:
    return extent_units(at, grain_of(base, node)) * UNIT + load_64(base + STRIDE) + CLOCK_BYTES


@inner
def _class_to_cut(base: int, wanted: int) -> int:
    """The class of age at which all older leaves and some of its own have `wanted` bytes; what its own are to give at QUOTA."""
    sums = base + SEGMENTS
    fill_zero(sums, _CLASSES * 8)
    for node in range(1, load_64(base + NODE_NEXT)):
        at = node_at(base, node)
        if _is_leaf(at, node):
            add_to(sums + _class_of_age(base, node) * 8, _leaf_bytes(base, at, node))
    age, quota = _CLASSES, 0
    while age > 0 and wanted > 0:
        age -= 1
        quota = wanted
        wanted -= load_64(sums + age * 8)
    store_64(base + SEGMENTS + _QUOTA, quota)
    return age


@inner
def _cut_older(base: int, age: int, enough: int) -> int:
    """Cut all leaves older than this class, and of the class itself until `enough` bytes are left; how many went."""
    victims, quota = base + SEGMENTS + _VICTIMS, load_64(base + SEGMENTS + _QUOTA)
    count, cut = 0, 0
    for node in range(1, load_64(base + NODE_NEXT)):
        at = node_at(base, node)
        if not _is_leaf(at, node):
            continue
        kind = _class_of_age(base, node)
        if kind < age or (kind == age and quota <= 0):
            continue
        if kind == age:
            quota -= _leaf_bytes(base, at, node)
        store_64(victims + count * 8, node)
        prefetch(slot_of(base, load_32(at + PARENT), node, grain_of(base, node)))
        count += 1
        if count == _BURST:
            cut += _cut_burst(base, victims, count, age, enough)
            count = 0
    return cut + _cut_burst(base, victims, count, age, enough)


@inner
def _cut_burst(base: int, victims: int, count: int, age: int, enough: int) -> int:
    """Cut some leaves, and those of their ancestors that are leaves then and whose turn it is."""
    cut = 0
    begin_change(base)
    for number in range(count):
        node, least = load_64(victims + number * 8), age
        for _ in range(_CLIMB):
            at = node_at(base, node)
            if not (_is_leaf(at, node) and _class_of_age(base, node) >= least):
                break  # joined with what was used later, or not a leaf
            parent = load_32(at + PARENT)
            for word in range(member_words(base)):
                store_64(at + MEMBERS + word * 8, 0)
            settle(base, node, grain_of(base, node))
            cut += 1
            node, least = parent, age if _bytes_alive(base) > enough else age + 1
    end_change(base)
    return cut


@inner
def sweep_handles(base: int, ledgers: int, dropped: int) -> None:
    """Drop all handles and shares of blocks that are gone; adds how many each of `ledgers` ledgers lost to int64 `dropped`."""
    for ledger in range(ledgers):
        place = ledger_at(base, ledger)
        if load_64(place + LEDGER_USED) == 0:
            continue
        table = load_64(place + LEDGER_TABLE)
        lost = _sweep(base, table, place + LEDGER_USED, place + LEDGER_FILLED)
        if lost != 0:
            add_to(base + HANDLES, -lost)
            add_to(dropped + ledger * 8, lost)
            shrink_handles(base, place + LEDGER_TABLE, place + LEDGER_USED, place + LEDGER_FILLED)
    if load_64(base + SHARES_USED) != 0:
        _sweep(base, load_64(base + SHARES_TABLE), base + SHARES_USED, base + SHARES_FILLED)


@inner
def _sweep(base: int, table: int, used: int, filled: int) -> int:
    """Erase what names a block that is gone, and point what names a stub at the node its block is in; how many went."""
    entries, size = entries_of(base, table), size_of(table)
    lost, emptied = 0, 0
    for at in range(size):
        slot = entries + at * ENTRY
        if at + _AHEAD < size:
            prefetch(node_at(base, node_in(load_64(slot + _AHEAD * ENTRY + 8))))
        if load_64(slot) in (0, GONE):
            continue
        value = load_64(slot + 8)
        recorded, depth = node_in(value), depth_in(value)
        now = climb(base, recorded, depth)
        if load_32(node_at(base, now) + ROOT) == 0:
            emptied += erase(entries, size, slot)
            lost += 1
        elif load_32(node_at(base, recorded) + ROOT) == 0:
            store_64(slot + 8, handle(now, depth, value & COPIES_MASK))
            reference(base, now, 1)
        else:
            continue
        dereference(base, recorded, 1)
    add_to(used, -lost)
    add_to(filled, -emptied)
    return lost
