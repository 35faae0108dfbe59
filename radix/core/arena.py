"""The arena: runs of 64-byte units, given out exactly, taken back in any pieces, joined at once with free neighbours.

Free runs of about one length hang in one list (a class: up to 15 units exact, above that eight classes to each doubling). A run
that comes back whole so serves the next one of its length, which is what a tree that forgets as much as it learns needs. Token
runs of all sizes and the hash tables live here together, so no class of sizes can starve another.

Invariants
- TAGS has one byte for each unit: STARTS on the first of a free run, ENDS on the last, 0 elsewhere. Unit 0 is never given out.
- A free run's first unit holds its links and its length (u32 next, previous, length; 0 = none), its last unit the length again.
- No two free runs touch, and none ends at ARENA_TOP: the top sinks instead. Above it `memory` gives pages back to the system.
- Bit k of FREE_CLASSES says whether list k has any. Contents are not zeroed. Only the writer comes here.
"""

from __future__ import annotations

from radix.core.atomics import leading_zeros, load_8, load_32, load_64, shift_right, store_8, store_32, store_64, trailing_zeros
from radix.core.jit import inner
from radix.core.layout import (
    ARENA,
    ARENA_HIGH,
    ARENA_TOP,
    ARENA_UNITS,
    ARENA_USED,
    CLASS_WORDS,
    FREE_CLASSES,
    FREE_HEADS,
    TAGS,
    UNIT,
)

_STARTS, _ENDS = 1, 2
_LENGTH, _LENGTH_AGAIN = 8, 12
_TRIES = 4  # runs of the same class looked at for one that is long enough


@inner
def add_to(address: int, amount: int) -> None:
    """Add to a counter."""
    store_64(address, load_64(address) + amount)


@inner
def unit_at(base: int, unit: int) -> int:
    """Address of a unit."""
    return base + ARENA + unit * UNIT


@inner
def take(base: int, units: int) -> int:
    """The first unit of a new run; 0 when the arena is full."""
    unit = _fitting(base, units)
    if unit != 0:
        length = load_32(unit_at(base, unit) + _LENGTH)
        _unhang(base, unit, length)
        if length > units:
            _hang(base, unit + units, length - units)
    else:
        unit = load_64(base + ARENA_TOP)
        if not _raise_top(base, unit + units):
            return 0
    add_to(base + ARENA_USED, units)
    return unit


@inner
def give(base: int, unit: int, units: int) -> None:
    """Take back a run, or any part of one."""
    add_to(base + ARENA_USED, -units)
    if load_8(base + TAGS + unit - 1) & _ENDS != 0:
        before = load_32(unit_at(base, unit - 1) + _LENGTH_AGAIN)
        _unhang(base, unit - before, before)
        unit -= before
        units += before
    if unit + units == load_64(base + ARENA_TOP):
        store_64(base + ARENA_TOP, unit)
        return
    if load_8(base + TAGS + unit + units) & _STARTS != 0:
        after = load_32(unit_at(base, unit + units) + _LENGTH)
        _unhang(base, unit + units, after)
        units += after
    _hang(base, unit, units)


@inner
def stretch(base: int, unit: int, units: int, more: int) -> bool:
    """Make a run longer in place, when what follows is free."""
    end = unit + units
    if end == load_64(base + ARENA_TOP):
        if not _raise_top(base, end + more):
            return False
    else:
        length = load_32(unit_at(base, end) + _LENGTH) if load_8(base + TAGS + end) & _STARTS != 0 else 0
        if length < more:
            return False
        _unhang(base, end, length)
        if length > more:
            _hang(base, end + more, length - more)
    add_to(base + ARENA_USED, more)
    return True


@inner
def fits_below(base: int, units: int, limit: int) -> bool:
    """Whether runs of this many units in all can be taken, surely, without lifting the top above a limit."""
    return load_64(base + ARENA_TOP) + units <= limit or _first_from(base, _class_of(units) + 1) >= 0


@inner
def _raise_top(base: int, top: int) -> bool:
    if top > ARENA_UNITS:
        return False
    store_64(base + ARENA_TOP, top)
    if top > load_64(base + ARENA_HIGH):
        store_64(base + ARENA_HIGH, top)
    return True


@inner
def _class_of(units: int) -> int:
    if units < 16:
        return units
    shift = 60 - leading_zeros(units)
    return (shift << 3) + shift_right(units, shift)


@inner
def _first_from(base: int, least: int) -> int:
    """The first class from `least` on that has any run; -1 when none has."""
    word = shift_right(least, 6)
    bits = load_64(base + FREE_CLASSES + word * 8) & (-1 << (least & 63))
    while bits == 0:
        word += 1
        if word == CLASS_WORDS:
            return -1
        bits = load_64(base + FREE_CLASSES + word * 8)
    return (word << 6) + trailing_zeros(bits)


@inner
def _fitting(base: int, units: int) -> int:
    """A free run of at least this length: of the same class where one is soon found, else of the next that has any."""
    same = _class_of(units)
    unit = load_64(base + FREE_HEADS + same * 8)
    for _ in range(_TRIES):
        if unit == 0 or load_32(unit_at(base, unit) + _LENGTH) >= units:
            break
        unit = load_32(unit_at(base, unit))
    if unit != 0 and load_32(unit_at(base, unit) + _LENGTH) >= units:
        return unit
    above = _first_from(base, same + 1)
    return load_64(base + FREE_HEADS + above * 8) if above >= 0 else 0


@inner
def _hang(base: int, unit: int, units: int) -> None:
    """Make a run free."""
    kind = _class_of(units)
    head = load_64(base + FREE_HEADS + kind * 8)
    at = unit_at(base, unit)
    store_64(at, head)  # and no previous one
    store_32(at + _LENGTH, units)
    store_32(unit_at(base, unit + units - 1) + _LENGTH_AGAIN, units)
    if head != 0:
        store_32(unit_at(base, head) + 4, unit)
    store_64(base + FREE_HEADS + kind * 8, unit)
    word = base + FREE_CLASSES + shift_right(kind, 6) * 8
    store_64(word, load_64(word) | (1 << (kind & 63)))
    store_8(base + TAGS + unit + units - 1, _ENDS)
    store_8(base + TAGS + unit, _STARTS | _ENDS if units == 1 else _STARTS)


@inner
def _unhang(base: int, unit: int, units: int) -> None:
    """A free run's end as such."""
    kind = _class_of(units)
    following, previous = load_32(unit_at(base, unit)), load_32(unit_at(base, unit) + 4)
    if following != 0:
        store_32(unit_at(base, following) + 4, previous)
    if previous != 0:
        store_32(unit_at(base, previous), following)
    else:
        store_64(base + FREE_HEADS + kind * 8, following)
        if following == 0:
            word = base + FREE_CLASSES + shift_right(kind, 6) * 8
            store_64(word, load_64(word) & ~(1 << (kind & 63)))
    store_8(base + TAGS + unit, 0)
    store_8(base + TAGS + unit + units - 1, 0)
