"""Matching from another process: by a root's key instead of its number, and giving up soon.

A number would have to be told to that process, and by the time it is used the root may be gone and the number another's. Its key
is a pure function of the namespace, so it is looked up and followed within one check of the sequence number.

The writer may have been killed in the middle of a change; then the number is odd for ever. Tries are few, and `SharedMatcher`
remembers the number at which it gave up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from numba import types

from radix.core.atomics import data_of, load_64, shift_right
from radix.core.children import find_child
from radix.core.clocks import touch
from radix.core.jit import default_cache, entry, inner
from radix.core.layout import GAVE_UP, ROOT_KEY_WORDS, SCRATCH_NODE, SCRATCH_STAMPS, SHARED_ODD_TRIES, SHARED_WORK
from radix.core.reader import fill_depths, walk
from radix.core.sequence import begin_read, unchanged
from radix.match import Int32Array

_TOKENS = types.Array(types.int32, 1, "C", readonly=True)
_MATRIX = types.Array(types.int32, 2, "C")
_I = types.int64


@inner
def match_rows_by_key(base: int, scratch: int, key: int, grain: int, tokens: int, count: int) -> int:
    """The rows of one state of the tree below the root with the 16 words at `key`, or a negative code."""
    work = 0
    for _ in range(SHARED_ODD_TRIES):
        sequence = begin_read(base)
        if sequence & 1 != 0:
            continue
        root = find_child(base, 0, key, ROOT_KEY_WORDS)
        answer = walk(base, scratch, root, grain, tokens, count) if root != 0 else 0
        if unchanged(base, sequence):
            if answer > 0 and load_64(scratch + 8 * SCRATCH_STAMPS) != 0:
                touch(base, load_64(scratch + 8 * SCRATCH_NODE))
            return answer
        work += 64 + (answer & 0xFFFFFFFF if answer > 0 else 0)
        if work > SHARED_WORK:
            break
    return GAVE_UP


def _depths(base: int, scratch: int, key: Int32Array, grain: int, tokens: Int32Array, depths: Int32Array) -> int:
    answer = match_rows_by_key(base, scratch, data_of(key), grain, data_of(tokens), len(tokens))
    if answer > 0:
        rows = shift_right(answer, 32)
        fill_depths(scratch, rows, grain, data_of(depths), depths.shape[0], depths.shape[1])
    return answer


@dataclass(frozen=True, slots=True)
class KeyedEntries:
    """The compiled functions of a reader elsewhere; negative answers are codes of `layout`."""

    depths: Callable[[int, int, Int32Array, int, Int32Array, Int32Array], int]


@cache
def load_keyed(folder: Path | None = None) -> KeyedEntries:
    """The entry points, from the cache where it fits, else compiled now (some seconds)."""
    at = folder if folder is not None else default_cache()
    return KeyedEntries(depths=entry(_depths, _I(_I, _I, _TOKENS, _I, _TOKENS, _MATRIX), at, nogil=False))
