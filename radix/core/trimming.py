"""Free memory goes back to the system."""

from __future__ import annotations

from radix.core.layout import ARENA, ARENA_HIGH, ARENA_TOP, CLASS_WORDS, FREE_HEADS, UNIT
from radix.core.memory import Memory

_LARGE_UNITS = 1024  # free runs from 64 KiB up
_LARGE_CLASS = 64  # the first with such runs, see `arena`


def trim(memory: Memory) -> None:
    """Give back what lies above the arena's top, and the large free runs below it. For the writer, between two changes."""
    header = memory.words(0, (FREE_HEADS >> 3) + 64 * CLASS_WORDS)
    top, high = int(header[ARENA_TOP >> 3]), int(header[ARENA_HIGH >> 3])
    memory.give_back(ARENA + top * UNIT, (high - top) * UNIT)
    header[ARENA_HIGH >> 3] = top
    for head in header[(FREE_HEADS >> 3) + _LARGE_CLASS :].tolist():
        unit = head
        while unit:
            start = ARENA + unit * UNIT
            following, _, units = memory.halves(start, 3).tolist()
            if units >= _LARGE_UNITS:
                memory.give_back(start + UNIT, (units - 2) * UNIT)  # its links and its end stay
            unit = following
