"""Hash tables of 16-byte entries in the arena: open addressing, linear probing, no tombstones.

Invariants
- A key is never 0 and spread over all 64 bits (`mix`); 0 marks an empty entry. Home of a key: the high half of key * entries, so
  any number of entries will do, and growing a table reads and writes memory in order.
- A descriptor is unit << 32 | entries, one word, so that a reader never sees the address of one table and the size of another.
- At least a quarter of the entries is empty, so probing ends; loops are bounded by the size all the same, for torn reads.
"""

from __future__ import annotations

from radix.core.arena import give, take, unit_at
from radix.core.atomics import load_64, mul_high, shift_right, store_64
from radix.core.jit import inner
from radix.core.layout import ENTRY, MIX_A, MIX_B, UNIT, UNMIX_A, UNMIX_B

_SIZE_MASK = (1 << 32) - 1
_PER_UNIT = UNIT // ENTRY


@inner
def mix(value: int) -> int:
    """A one-to-one scramble of 64 bits (splitmix64)."""
    value = (value ^ shift_right(value, 30)) * MIX_A
    value = (value ^ shift_right(value, 27)) * MIX_B
    return value ^ shift_right(value, 31)


@inner
def unmix(value: int) -> int:
    """What `mix` made this from."""
    value = (value ^ shift_right(value, 31) ^ shift_right(value, 62)) * UNMIX_B
    value = (value ^ shift_right(value, 27) ^ shift_right(value, 54)) * UNMIX_A
    return value ^ shift_right(value, 30) ^ shift_right(value, 60)


@inner
def size_of(table: int) -> int:
    """Entries of a table."""
    return table & _SIZE_MASK


@inner
def entries_of(base: int, table: int) -> int:
    """Address of a table's first entry."""
    return unit_at(base, shift_right(table, 32))


@inner
def find(entries: int, size: int, key: int) -> int:
    """Address of the entry with this key; 0 when there is none."""
    at = mul_high(key, size)
    for _ in range(size):
        found = load_64(entries + at * ENTRY)
        if found == key:
            return entries + at * ENTRY
        if found == 0:
            return 0
        at += 1
        if at == size:
            at = 0
    return 0


@inner
def insert(entries: int, size: int, key: int, value: int) -> None:
    """Add an entry; equal keys are kept side by side."""
    at = mul_high(key, size)
    while load_64(entries + at * ENTRY) != 0:
        at += 1
        if at == size:
            at = 0
    store_64(entries + at * ENTRY, key)
    store_64(entries + at * ENTRY + 8, value)


@inner
def erase(entries: int, size: int, slot: int) -> None:
    """Remove the entry at address `slot`, pulling later ones of its cluster forward."""
    gap = shift_right(slot - entries, 4)
    at = gap
    while True:
        at += 1
        if at == size:
            at = 0
        key = load_64(entries + at * ENTRY)
        if key == 0:
            break
        from_home = at - mul_high(key, size)
        from_gap = at - gap
        if from_home < 0:
            from_home += size
        if from_gap < 0:
            from_gap += size
        if from_home >= from_gap:
            store_64(entries + gap * ENTRY, key)
            store_64(entries + gap * ENTRY + 8, load_64(entries + at * ENTRY + 8))
            gap = at
    store_64(entries + gap * ENTRY, 0)


@inner
def has_room(table: int, used: int) -> bool:
    """Whether this many entries leave enough empty."""
    return used * 4 <= size_of(table) * 3


@inner
def resized(base: int, table: int, used: int) -> int:
    """A copy with room for `used` entries and some growth, small tables doubling, large ones in smaller steps; 0 when full."""
    wanted = shift_right(used * 11, 2) if used < 4096 else shift_right(used * 27, 4)
    units = shift_right(wanted * ENTRY, 6) + 1
    unit = take(base, units)
    if unit == 0:
        return 0
    size = units * _PER_UNIT
    entries = unit_at(base, unit)
    for at in range(size * 2):
        store_64(entries + at * 8, 0)
    old = entries_of(base, table)
    for at in range(size_of(table)):
        key = load_64(old + at * ENTRY)
        if key != 0:
            insert(entries, size, key, load_64(old + at * ENTRY + 8))
    return (unit << 32) | size


@inner
def discard(base: int, table: int) -> None:
    """Give back a table's memory; a table of no entries has none."""
    if table != 0:
        give(base, shift_right(table, 32), shift_right(size_of(table), 2))
