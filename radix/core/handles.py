"""Ledgers: one hash table for each (holder, tier, group), from an engine's block hash to the block's place.

Invariants
- A handle's value is node << 37 | depth << 16 | copies; the node is the one recorded (see `layout` on climbing), and REFS of that
  node counts the handle. Copies stick at 65,535.
- Keys are `mix(hash ^ seed)`, one to one, so that two hashes of a ledger never meet and a dump can name them.
- A member's bit is set on a block iff a handle of the ledger lies there. A second hash on the same block is a share: an entry of
  the share table under (ledger, depth), which a removal uses up before it touches the bit.
- Only the writer comes here; tables grow outside of changes.
"""

from __future__ import annotations

from radix.core.arena import add_to
from radix.core.atomics import load_32, load_64, mul_high, prefetch, shift_right, store_32, store_64
from radix.core.jit import inner
from radix.core.layout import (
    ARENA_ROOM,
    ARENA_UNITS,
    COPIES_MASK,
    DEPTH_MASK,
    ENTRY,
    GONE,
    HANDLE_DEPTH,
    HANDLE_NODE,
    KEYS_AHEAD,
    LEDGER_BITS,
    LEDGER_FILLED,
    LEDGER_TABLE,
    LEDGER_USED,
    LEDGERS,
    REFS,
    SEED,
    SHARES_FILLED,
    SHARES_TABLE,
    SHARES_USED,
)
from radix.core.nodes import climb, dereference, node_at
from radix.core.tables import discard, entries_of, erase, find, has_room, insert, is_sparse, mix, resized, size_of, unmix

AHEAD = 16  # hashes whose entries are asked for before they are needed
_RING = 31
_DEPTH_BITS = 21


@inner
def ledger_at(base: int, ledger: int) -> int:
    """Address of a ledger's descriptor."""
    return base + LEDGERS + (ledger << LEDGER_BITS)


@inner
def handle_key(base: int, block_hash: int) -> int:
    """Key of an engine's hash."""
    key = mix(block_hash ^ load_64(base + SEED))
    return key if key not in (0, GONE) else 1


@inner
def ask_ahead(base: int, entries: int, size: int, hashes: int, at: int) -> None:
    """Make the key of hash number `at` and ask for the memory of its entry."""
    key = handle_key(base, load_64(hashes + at * 8))
    store_64(base + KEYS_AHEAD + (at & _RING) * 8, key)
    home = entries + mul_high(key, size) * ENTRY
    prefetch(home)
    prefetch(home + 3 * ENTRY)  # `probe` looks at four entries, mostly over two cache lines


@inner
def key_ahead(base: int, at: int) -> int:
    """The key made by `ask_ahead`."""
    return load_64(base + KEYS_AHEAD + (at & _RING) * 8)


@inner
def handle(node: int, depth: int, copies: int) -> int:
    """Pack a place."""
    return (node << HANDLE_NODE) | (depth << HANDLE_DEPTH) | copies


@inner
def node_in(value: int) -> int:
    """The node a handle was recorded in."""
    return shift_right(value, HANDLE_NODE)


@inner
def depth_in(value: int) -> int:
    """Which block of its chain a handle names, from 1."""
    return shift_right(value, HANDLE_DEPTH) & DEPTH_MASK


@inner
def copies_in(value: int) -> int:
    """Stores minus removals of a handle."""
    return value & COPIES_MASK


@inner
def reference(base: int, node: int, more: int) -> None:
    """More handles name this node."""
    at = node_at(base, node)
    store_32(at + REFS, load_32(at + REFS) + more)


@inner
def find_handle(base: int, ledger: int, block_hash: int) -> int:
    """Address of a handle's entry; 0 when the hash is unknown."""
    table = load_64(ledger_at(base, ledger) + LEDGER_TABLE)
    return find(entries_of(base, table), size_of(table), handle_key(base, block_hash))


@inner
def reserve_handles(base: int, ledger: int, more: int) -> bool:
    """Make room for this many new hashes; False when the arena is full."""
    at = ledger_at(base, ledger)
    return _reserve(base, at + LEDGER_TABLE, at + LEDGER_USED, at + LEDGER_FILLED, more, load_64(base + ARENA_ROOM))


@inner
def _reserve(base: int, table_field: int, used_field: int, filled_field: int, more: int, limit: int) -> bool:
    table = load_64(table_field)
    if has_room(table, load_64(filled_field) + more):
        return True
    used = load_64(used_field)
    copied = resized(base, table, used + more, limit)
    if copied == 0:
        return False
    store_64(table_field, copied)
    store_64(filled_field, used)
    discard(base, table)
    return True


@inner
def shrink_handles(base: int, table_field: int, used_field: int, filled_field: int) -> None:
    """Copy a table that has become much too large; one without entries goes."""
    table, used = load_64(table_field), load_64(used_field)
    if not is_sparse(table, used) and used != 0:
        return
    copied = resized(base, table, used, load_64(base + ARENA_ROOM)) if used != 0 else 0
    if copied != 0 or used == 0:
        store_64(table_field, copied)
        store_64(filled_field, used)
        discard(base, table)


@inner
def _share_key(ledger: int, depth: int) -> int:
    return mix(((ledger + 1) << _DEPTH_BITS) | depth)  # small numbers never become 0 or GONE


@inner
def add_share(base: int, ledger: int, depth: int, node: int) -> None:
    """One more hash of the ledger lies on a block that has one already."""
    _reserve(base, base + SHARES_TABLE, base + SHARES_USED, base + SHARES_FILLED, 1, ARENA_UNITS)
    table = load_64(base + SHARES_TABLE)
    insert(entries_of(base, table), size_of(table), _share_key(ledger, depth), handle(node, depth, 1))
    reference(base, node, 1)
    add_to(base + SHARES_USED, 1)
    add_to(base + SHARES_FILLED, 1)


@inner
def take_share(base: int, ledger: int, depth: int, node: int) -> bool:
    """One hash less on a block; False when it was the only one."""
    if load_64(base + SHARES_USED) == 0:
        return False
    table = load_64(base + SHARES_TABLE)
    entries, size, key = entries_of(base, table), size_of(table), _share_key(ledger, depth)
    at = mul_high(key, size)
    while True:
        found = load_64(entries + at * ENTRY)
        if found == 0:
            return False
        recorded = node_in(load_64(entries + at * ENTRY + 8))
        if found == key and climb(base, recorded, depth) == node:
            add_to(base + SHARES_FILLED, -erase(entries, size, entries + at * ENTRY))
            dereference(base, recorded, 1)
            add_to(base + SHARES_USED, -1)
            return True
        at += 1
        if at == size:
            at = 0


@inner
def drop_shares(base: int, ledger: int) -> None:
    """Forget all shares of a ledger."""
    if load_64(base + SHARES_USED) == 0:
        return
    table = load_64(base + SHARES_TABLE)
    entries, size = entries_of(base, table), size_of(table)
    for at in range(size):
        slot = entries + at * ENTRY
        key = load_64(slot)
        if key not in (0, GONE) and shift_right(unmix(key), _DEPTH_BITS) == ledger + 1:
            dereference(base, node_in(load_64(slot + 8)), 1)
            add_to(base + SHARES_FILLED, -erase(entries, size, slot))
            add_to(base + SHARES_USED, -1)
