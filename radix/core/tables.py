"""Hash tables of 16-byte entries in the arena: open addressing, linear probing.

An erased entry leaves a mark unless nothing follows it. Pulling later entries forward instead costs each removal more than the
marks cost: they go when the table is copied, which happens by the number of filled places.

Invariants
- A key is spread over all 64 bits (`mix`) and never 0, which is an empty place, nor GONE, which is a mark.
- Home of a key: the high half of key * entries, so any number will do, and a copy goes through memory in order.
- A descriptor is unit << 32 | entries, one word, so that a reader never sees the address of one table and the size of another.
- At least three in sixteen entries are empty, so probing ends; loops are bounded by the size all the same, for torn reads.
"""

from __future__ import annotations

from radix.core.arena import fits_below, give, take, unit_at
from radix.core.atomics import advise, fill_zero, first_of_four, load_64, mul_high, shift_right, store_64
from radix.core.jit import inner
from radix.core.layout import ENTRY, GONE, MIX_A, MIX_B, PAGE_BYTES, RELEASE_ADVICE, RELEASE_FROM, UNIT, UNMIX_A, UNMIX_B

_SIZE_MASK = (1 << 32) - 1
_PER_UNIT = UNIT // ENTRY
_LARGE = 8192  # entries


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
def probe(entries: int, size: int, at: int, key: int) -> int:
    """Address of the first entry from number `at` on that has this key or none."""
    if at + 4 <= size:
        first = first_of_four(entries + at * ENTRY, key)  # nearly always decides, without a branch to mispredict
        if first < 4:
            return entries + (at + first) * ENTRY
    for _ in range(size):
        found = load_64(entries + at * ENTRY)
        if found in (key, 0):
            break
        at += 1
        if at == size:
            at = 0
    return entries + at * ENTRY


@inner
def find(entries: int, size: int, key: int) -> int:
    """Address of the entry with this key; 0 when there is none."""
    if size == 0:
        return 0
    slot = probe(entries, size, mul_high(key, size), key)
    return slot if load_64(slot) == key else 0


@inner
def insert(entries: int, size: int, key: int, value: int) -> None:
    """Add an entry; equal keys are kept side by side."""
    slot = probe(entries, size, mul_high(key, size), 0)
    store_64(slot, key)
    store_64(slot + 8, value)


@inner
def erase(entries: int, size: int, slot: int) -> int:
    """Remove the entry at address `slot`; 1 when its place is empty now, 0 when it stays filled by a mark."""
    following = slot + ENTRY if slot + ENTRY != entries + size * ENTRY else entries
    ends = load_64(following) == 0
    store_64(slot, 0 if ends else GONE)
    return 1 if ends else 0


@inner
def has_room(table: int, filled: int) -> bool:
    """Whether this many filled places leave enough empty: half of a small table, which is for speed, less of a large one."""
    size = size_of(table)
    return filled * 2 <= size if size < _LARGE else filled * 16 <= size * 13


@inner
def is_sparse(table: int, used: int) -> bool:
    """Whether so few are used that a copy would save a third."""
    return size_of(table) * 2 > _roomy(used) * 3 + 128


@inner
def _roomy(used: int) -> int:
    """Entries that leave room for growth."""
    return used * 4 if used * 4 < _LARGE else max(used * 2, _LARGE)


@inner
def resized(base: int, table: int, used: int, limit: int) -> int:
    """A copy without marks, with room for `used` entries and growth; 0 when it would lift the arena's top above a limit."""
    units = shift_right(_roomy(used) * ENTRY, 6) + 1
    unit = take(base, units) if fits_below(base, units, limit) else 0
    if unit == 0:
        return 0
    size = units * _PER_UNIT
    entries = unit_at(base, unit)
    fill_zero(entries, size * ENTRY)
    old = entries_of(base, table)
    for at in range(size_of(table)):
        key = load_64(old + at * ENTRY)
        if key not in (0, GONE):
            _insert_in_order(entries, size, key, load_64(old + at * ENTRY + 8))
    return (unit << 32) | size


@inner
def _insert_in_order(entries: int, size: int, key: int, value: int) -> None:
    """`insert` for keys that come nearly in order: one entry at a time, since wide loads stall on what was just written."""
    at = mul_high(key, size)
    while load_64(entries + at * ENTRY) != 0:
        at += 1
        if at == size:
            at = 0
    store_64(entries + at * ENTRY, key)
    store_64(entries + at * ENTRY + 8, value)


@inner
def discard(base: int, table: int) -> None:
    """Give back a table's memory, a large one's to the system too; a table of no entries has none."""
    if table == 0:
        return
    size = size_of(table) * ENTRY
    if size >= load_64(base + RELEASE_FROM):
        page = load_64(base + PAGE_BYTES)
        first = (entries_of(base, table) + page - 1) & -page
        last = (entries_of(base, table) + size) & -page
        if last > first:
            advise(first, last - first, load_64(base + RELEASE_ADVICE))
    give(base, shift_right(table, 32), shift_right(size_of(table), 2))
