"""The tile sizes that ship, in one place: the wrappers launch with them and the compile report checks them."""

from __future__ import annotations

from dataclasses import dataclass

MIN_DOT_ROWS = 16  # the smallest matrix instruction has 16 rows


@dataclass(frozen=True, slots=True)
class Tile:
    """One launch shape: query rows by key columns, warps per program, stages of the load pipeline."""

    rows: int
    columns: int
    warps: int
    stages: int


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number` (1 for 0)."""
    return 1 << max(number - 1, 0).bit_length()


def decode_tile(group: int, element_bytes: int) -> Tile:
    """Decode packs the query heads of one KV head into the rows; it waits for memory, so 64 columns and 4 warps."""
    rows = max(MIN_DOT_ROWS, next_power_of_2(group))
    if element_bytes == 4:
        return Tile(rows, 32, 8, 2)  # no matrix unit takes float32 unrounded: small tiles, or the registers spill
    return Tile(rows, 64, 8 if rows >= 128 else 4, 3)


def prefill_tile(dim: int, group: int, element_bytes: int) -> Tile:
    """Prefill fills 128 rows with (token, head) pairs so that Hopper's 64-row warp-group matrix unit is used."""
    if element_bytes == 4:
        return Tile(max(32, next_power_of_2(group)), 16, 8, 2)
    # With 4 warps a 128-wide head does not fit the registers and spills.
    return Tile(128, 64, 4 if dim <= 64 else 8, 3)
