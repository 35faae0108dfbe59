"""What Python may call: each function compiled once for one signature, all of them together or taken from the cache.

Writers release the GIL. Matches keep it: a match takes microseconds, and giving the GIL away costs a busy process more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numba import types

from radix.core.along import copies_of, edges_along, place_of
from radix.core.atomics import data_of, divide, load_64, shift_right, store_64
from radix.core.children import drop_root, find_child, new_root
from radix.core.evicting import evict_leaves, sweep_handles
from radix.core.handles import copies_in, depth_in, ledger_at, node_in, reference
from radix.core.ingest import ingest
from radix.core.jit import default_cache, entry, mark_whole
from radix.core.layout import ENTRY, GONE, LEDGER_TABLE, ROOT, ROOT_KEY_WORDS, SEED
from radix.core.nodes import climb, dereference, node_at
from radix.core.placing import forget_member, place_path
from radix.core.reader import best_holder, fill_depths, fill_pairs, match_rows
from radix.core.removing import clear_ledger, remove_blocks
from radix.core.sequence import begin_change, end_change
from radix.core.storing import store_blocks
from radix.core.tables import entries_of, size_of, unmix
from radix.core.widen import widen
from radix.match import Int32Array

HashArray = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_TOKENS = types.Array(types.int32, 1, "C", readonly=True)
_HASHES = types.Array(types.uint64, 1, "C", readonly=True)
_MATRIX = types.Array(types.int32, 2, "C")
_LONGS = types.Array(types.int64, 1, "C")
_BYTES = types.Bytes(types.uint8, 1, "C", readonly=True)
_I = types.int64


def _store(
    base: int, ledger: int, parent_ledger: int, root: int, grain: int, parent: int, hashes: HashArray, tokens: Int32Array
) -> int:
    return store_blocks(
        base, ledger, parent_ledger, root, grain, int(np.int64(parent)), data_of(hashes), data_of(tokens), len(hashes)
    )


def _remove(base: int, ledger: int, hashes: HashArray) -> int:
    return remove_blocks(base, ledger, data_of(hashes), len(hashes))


def _clear(base: int, ledger: int) -> int:
    return clear_ledger(base, ledger)


def _ingest(base: int, desk: int, buffer: bytes, payloads: int) -> int:
    return ingest(base, desk, data_of(buffer), payloads)


def _evict(base: int, wanted: int, dropped: Int64Array) -> int:
    """Free about `wanted` bytes; adds how many hashes each ledger lost to `dropped`. Returns how many leaves went."""
    leaves = evict_leaves(base, wanted)
    sweep_handles(base, len(dropped), data_of(dropped))
    return leaves


def _place(base: int, ledger: int, root: int, grain: int, words: bytes) -> int:
    return place_path(base, ledger, root, grain, data_of(words), divide(len(words), grain * 4))


def _forget(base: int, ledger: int) -> int:
    return forget_member(base, ledger)


def _pin(base: int, node: int, more: int) -> None:
    """Keep a node's number from being given to another, or let go of it."""
    if more > 0:
        reference(base, node, more)
    else:
        dereference(base, node, -more)


def _root(base: int, key: Int32Array, make: int) -> int:
    """The root under a key; 0 when there is none, or no room for one."""
    found = find_child(base, 0, data_of(key), ROOT_KEY_WORDS)
    if found == 0 and make != 0:
        begin_change(base)
        found = new_root(base, data_of(key))
        end_change(base)
    return found


def _drop_root(base: int, root: int) -> bool:
    begin_change(base)
    done = drop_root(base, root)
    end_change(base)
    return done


def _widen(base: int, words: int, tiers: int, stride: int, spare: Int64Array) -> None:
    widen(base, words, tiers, stride, data_of(spare))


def _list(base: int, ledger: int, out: Int64Array) -> int:
    """Write (hash, root, node, depth, copies) of each handle; returns how many there are."""
    table = load_64(ledger_at(base, ledger) + LEDGER_TABLE)
    count = 0
    for at in range(size_of(table)):
        slot = entries_of(base, table) + at * ENTRY
        if load_64(slot) not in (0, GONE):
            value = load_64(slot + 8)
            node = climb(base, node_in(value), depth_in(value))
            row = data_of(out) + count * 40
            store_64(row, unmix(load_64(slot)) ^ load_64(base + SEED))
            store_64(row + 8, load_64(node_at(base, node) + ROOT) & 0xFFFFFFFF)
            store_64(row + 16, node)
            store_64(row + 24, depth_in(value))
            store_64(row + 32, copies_in(value))
            count += 1
    return count


def _find(base: int, ledger: int, block_hash: int) -> int:
    return place_of(base, ledger, int(np.int64(block_hash)))


def _copies(base: int, ledger: int, block_hash: int) -> int:
    return copies_of(base, ledger, int(np.int64(block_hash)))


def _along(base: int, root: int, grain: int, tokens: Int32Array, out: Int64Array) -> int:
    return edges_along(base, root, grain, data_of(tokens), len(tokens), data_of(out), len(out) >> 1)


def _match(base: int, scratch: int, root: int, grain: int, tokens: Int32Array) -> int:
    return match_rows(base, scratch, root, grain, data_of(tokens), len(tokens))


def _best(base: int, scratch: int, root: int, grain: int, tokens: Int32Array) -> int:
    return best_holder(base, scratch, root, grain, data_of(tokens), len(tokens))


def _depths(base: int, scratch: int, root: int, grain: int, tokens: Int32Array, depths: Int32Array) -> int:
    answer = match_rows(base, scratch, root, grain, data_of(tokens), len(tokens))
    if answer > 0:
        rows = shift_right(answer, 32)
        fill_depths(scratch, rows, grain, data_of(depths), depths.shape[0], depths.shape[1])
    return answer


def _pairs(base: int, scratch: int, root: int, grain: int, tokens: Int32Array, out: Int64Array) -> int:
    answer = match_rows(base, scratch, root, grain, data_of(tokens), len(tokens))
    if answer <= 0:
        return answer
    half = len(out) >> 1
    return fill_pairs(scratch, shift_right(answer, 32), data_of(out), data_of(out) + half * 8)


@dataclass(frozen=True, slots=True)
class Entries:
    """The compiled functions; negative answers are codes of `layout`."""

    store: Callable[[int, int, int, int, int, int, HashArray, Int32Array], int]
    remove: Callable[[int, int, HashArray], int]
    clear: Callable[[int, int], int]
    ingest: Callable[[int, int, bytes, int], int]
    evict: Callable[[int, int, Int64Array], int]
    place: Callable[[int, int, int, int, bytes], int]
    forget: Callable[[int, int], int]
    pin: Callable[[int, int, int], None]
    root: Callable[[int, Int32Array, int], int]
    drop_root: Callable[[int, int], bool]
    widen: Callable[[int, int, int, int, Int64Array], None]
    list: Callable[[int, int, Int64Array], int]
    find: Callable[[int, int, int], int]
    copies: Callable[[int, int, int], int]
    along: Callable[[int, int, int, Int32Array, Int64Array], int]
    match: Callable[[int, int, int, int, Int32Array], int]
    best: Callable[[int, int, int, int, Int32Array], int]
    depths: Callable[[int, int, int, int, Int32Array, Int32Array], int]
    pairs: Callable[[int, int, int, int, Int32Array, Int64Array], int]


@cache
def load(folder: Path | None = None) -> Entries:
    """All entry points, from the cache where it fits, else compiled now (some 20 s)."""
    at = folder if folder is not None else default_cache()
    reading = (_I, _I, _I, _I, _TOKENS)
    entries = Entries(
        store=entry(_store, _I(_I, _I, _I, _I, _I, types.uint64, _HASHES, _TOKENS), at, nogil=True),
        remove=entry(_remove, _I(_I, _I, _HASHES), at, nogil=True),
        clear=entry(_clear, _I(_I, _I), at, nogil=True),
        ingest=entry(_ingest, _I(_I, _I, _BYTES, _I), at, nogil=True),
        evict=entry(_evict, _I(_I, _I, _LONGS), at, nogil=True),
        place=entry(_place, _I(_I, _I, _I, _I, _BYTES), at, nogil=True),
        forget=entry(_forget, _I(_I, _I), at, nogil=True),
        pin=entry(_pin, types.void(_I, _I, _I), at, nogil=True),
        root=entry(_root, _I(_I, _TOKENS, _I), at, nogil=True),
        drop_root=entry(_drop_root, types.boolean(_I, _I), at, nogil=True),
        widen=entry(_widen, types.void(_I, _I, _I, _I, _LONGS), at, nogil=True),
        list=entry(_list, _I(_I, _I, _LONGS), at, nogil=True),
        find=entry(_find, _I(_I, _I, types.uint64), at, nogil=False),
        copies=entry(_copies, _I(_I, _I, types.uint64), at, nogil=False),
        along=entry(_along, _I(_I, _I, _I, _TOKENS, _LONGS), at, nogil=False),
        match=entry(_match, _I(*reading), at, nogil=False),
        best=entry(_best, _I(*reading), at, nogil=False),
        depths=entry(_depths, _I(*reading, _MATRIX), at, nogil=False),
        pairs=entry(_pairs, _I(*reading, _LONGS), at, nogil=False),
    )
    mark_whole(at)
    return entries
