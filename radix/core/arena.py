"""The arena: runs of 64-byte units, given out exactly, taken back in any pieces, joined again with their neighbours.

A buddy system without rounding up: a run of any length is cut from a power of two and the rest goes back at once; what comes
back is cut into aligned powers of two, each joined with its other half when that is free. Token runs of all sizes and the hash
tables live here together, so no class of sizes can starve another.

Invariants
- The order byte of a unit is k + 1 iff a free run of 2^k units starts there, else 0; unit 0 is never given out.
- A free run's first 8 bytes are its links (next, previous: u32, 0 = none); bit k of FREE_ORDERS says whether list k has any.
- No free run ends at ARENA_TOP: the top sinks instead. Whole pages above it are given back to the system by `memory`.
- Contents are not zeroed. Only the writer comes here.
"""

from __future__ import annotations

from radix.core.atomics import leading_zeros, load_8, load_32, load_64, store_8, store_32, store_64, trailing_zeros
from radix.core.jit import inner
from radix.core.layout import (
    ARENA,
    ARENA_HIGH,
    ARENA_TOP,
    ARENA_UNITS,
    ARENA_USED,
    FREE_HEADS,
    FREE_ORDERS,
    MAX_ORDER,
    ORDERS,
    UNIT,
)


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
    fitting = load_64(base + FREE_ORDERS) & (-1 << (64 - leading_zeros(units - 1)))
    if fitting != 0:
        order = trailing_zeros(fitting)
        unit = load_64(base + FREE_HEADS + order * 8)
        _unlink(base, unit, order)
        add_to(base + ARENA_USED, units)
        _release(base, unit + units, (1 << order) - units)
        return unit
    unit = load_64(base + ARENA_TOP)
    if unit + units > ARENA_UNITS:
        return 0
    store_64(base + ARENA_TOP, unit + units)
    if unit + units > load_64(base + ARENA_HIGH):
        store_64(base + ARENA_HIGH, unit + units)
    add_to(base + ARENA_USED, units)
    return unit


@inner
def give(base: int, unit: int, units: int) -> None:
    """Take back a run, or any part of one."""
    add_to(base + ARENA_USED, -units)
    if unit + units == load_64(base + ARENA_TOP):
        _sink(base, unit)
    else:
        _release(base, unit, units)


@inner
def stretch(base: int, unit: int, units: int, more: int) -> bool:
    """Make a run longer in place, when it is the last one."""
    if unit + units != load_64(base + ARENA_TOP) or unit + units + more > ARENA_UNITS:
        return False
    store_64(base + ARENA_TOP, unit + units + more)
    if unit + units + more > load_64(base + ARENA_HIGH):
        store_64(base + ARENA_HIGH, unit + units + more)
    add_to(base + ARENA_USED, more)
    return True


@inner
def _release(base: int, unit: int, units: int) -> None:
    while units > 0:
        order = min(trailing_zeros(unit), 63 - leading_zeros(units))
        _free(base, unit, order)
        unit += 1 << order
        units -= 1 << order


@inner
def _free(base: int, unit: int, order: int) -> None:
    while order < MAX_ORDER:
        other = unit ^ (1 << order)
        if load_8(base + ORDERS + other) != order + 1:
            break
        _unlink(base, other, order)
        unit = min(unit, other)
        order += 1
    head = load_64(base + FREE_HEADS + order * 8)
    store_64(unit_at(base, unit), head)  # and no previous one
    if head != 0:
        store_32(unit_at(base, head) + 4, unit)
    store_64(base + FREE_HEADS + order * 8, unit)
    store_64(base + FREE_ORDERS, load_64(base + FREE_ORDERS) | (1 << order))
    store_8(base + ORDERS + unit, order + 1)


@inner
def _unlink(base: int, unit: int, order: int) -> None:
    following, previous = load_32(unit_at(base, unit)), load_32(unit_at(base, unit) + 4)
    if following != 0:
        store_32(unit_at(base, following) + 4, previous)
    if previous != 0:
        store_32(unit_at(base, previous), following)
    else:
        store_64(base + FREE_HEADS + order * 8, following)
        if following == 0:
            store_64(base + FREE_ORDERS, load_64(base + FREE_ORDERS) & ~(1 << order))
    store_8(base + ORDERS + unit, 0)


@inner
def _sink(base: int, top: int) -> None:
    """Lower the top, also over free runs right below it."""
    sinking = True
    while sinking:
        sinking = False
        for order in range(min(trailing_zeros(top), MAX_ORDER) + 1):
            below = top - (1 << order)
            if below > 0 and load_8(base + ORDERS + below) == order + 1:
                _unlink(base, below, order)
                top = below
                sinking = True
                break
    store_64(base + ARENA_TOP, top)
