"""Blocks leave a holder: by hash, or all of a ledger. For the one writer.

Invariants
- One change of the sequence lock covers one run of neighbouring blocks: readers see it whole.
- The last removal of the last hash on a block takes the member's bit, not an earlier one.
"""

from __future__ import annotations

from radix.core.arena import add_to
from radix.core.atomics import load_32, load_64, shift_right, store_32, store_64
from radix.core.edges import settle, shorten, split
from radix.core.handles import AHEAD, ask_ahead, copies_in, depth_in, drop_shares, key_ahead, ledger_at, node_in, take_share
from radix.core.jit import inner
from radix.core.layout import (
    CHILDREN,
    ENTRY,
    GONE,
    HANDLES,
    LEDGER_FILLED,
    LEDGER_HOLDER,
    LEDGER_TABLE,
    LEDGER_TIER,
    LEDGER_USED,
    LENGTH,
    MEMBERS,
    ROOT,
    SEGMENTS,
    WORDS,
)
from radix.core.nodes import climb, dereference, grain_of, member_words, node_at, start_of
from radix.core.sequence import begin_change, end_change
from radix.core.tables import discard, entries_of, erase, find, size_of


@inner
def member_at(base: int, ledger: int) -> int:
    """Offset in a node of the word that holds the ledger's member bit."""
    at = ledger_at(base, ledger)
    return MEMBERS + 8 * (load_64(at + LEDGER_TIER) * load_64(base + WORDS) + shift_right(load_64(at + LEDGER_HOLDER), 6))


@inner
def member_bit(base: int, ledger: int) -> int:
    """The ledger's bit in that word."""
    return 1 << (load_64(ledger_at(base, ledger) + LEDGER_HOLDER) & 63)


@inner
def is_alone(base: int, at: int, word: int, bit: int) -> bool:
    """Whether this member is the only one."""
    if load_64(at + word) != bit:
        return False
    count = 0
    for other in range(member_words(base)):
        count += load_64(at + MEMBERS + other * 8) != 0
    return count == 1


@inner
def release(base: int, node: int, low: int, high: int, word: int, bit: int, grain: int) -> None:
    """Take a member away from blocks low..high-1 of a node."""
    at = node_at(base, node)
    if low > 0 and high == load_32(at + LENGTH) and load_32(at + CHILDREN) == 0 and is_alone(base, at, word, bit):
        shorten(base, node, low, grain)
        return
    if high < load_32(at + LENGTH):
        node = split(base, node, high, grain)
    if low > 0:
        split(base, node, low, grain)
    at = node_at(base, node)
    store_64(at + word, load_64(at + word) & ~bit)
    settle(base, node, grain)


@inner
def _release_run(base: int, node: int, low: int, high: int, word: int, bit: int) -> None:
    begin_change(base)
    release(base, node, low, high, word, bit, grain_of(base, node))
    end_change(base)


@inner
def remove_blocks(base: int, ledger: int, hashes: int, blocks: int) -> int:
    """One copy less of each; removed | unknown << 32. The positions of unknown hashes are at SEGMENTS."""
    place = ledger_at(base, ledger)
    table = load_64(place + LEDGER_TABLE)
    entries, size = entries_of(base, table), size_of(table)
    word, bit = member_at(base, ledger), member_bit(base, ledger)
    node, low, high = 0, 0, 0  # the run of neighbours that leaves next; blocks of `node`
    removed, unknown, emptied = 0, 0, 0
    last, owed = 0, 0  # handles that named `last` and are gone
    for at in range(min(AHEAD, blocks)):
        ask_ahead(base, entries, size, hashes, at)
    for at in range(blocks):
        if at + AHEAD < blocks:
            ask_ahead(base, entries, size, hashes, at + AHEAD)
        slot = find(entries, size, key_ahead(base, at))
        if slot == 0:
            store_32(base + SEGMENTS + unknown * 4, at)
            unknown += 1
            continue
        value = load_64(slot + 8)
        if copies_in(value) > 1:
            store_64(slot + 8, value - 1)
            continue
        emptied += erase(entries, size, slot)
        removed += 1
        recorded, depth = node_in(value), depth_in(value)
        now = climb(base, recorded, depth)
        if recorded != last:
            dereference(base, last, owed)
            last, owed = recorded, 0
        owed += 1
        if take_share(base, ledger, depth, now):
            continue
        block = depth - 1 - start_of(node_at(base, now))
        if now == node and block == high:
            high += 1
        elif now == node and block == low - 1:
            low -= 1
        else:
            if node != 0:
                _release_run(base, node, low, high, word, bit)
                now = climb(base, recorded, depth)
                block = depth - 1 - start_of(node_at(base, now))
            node, low, high = now, block, block + 1
    dereference(base, last, owed)
    if node != 0:
        _release_run(base, node, low, high, word, bit)
    add_to(place + LEDGER_USED, -removed)
    add_to(place + LEDGER_FILLED, -emptied)
    add_to(base + HANDLES, -removed)
    if load_64(place + LEDGER_USED) == 0:
        _discard_table(base, place)
    return removed | (unknown << 32)


@inner
def _discard_table(base: int, place: int) -> None:
    discard(base, load_64(place + LEDGER_TABLE))
    store_64(place + LEDGER_TABLE, 0)
    store_64(place + LEDGER_FILLED, 0)


@inner
def clear_ledger(base: int, ledger: int) -> int:
    """Forget all blocks of a ledger and give back its table; returns how many hashes it had."""
    place = ledger_at(base, ledger)
    table = load_64(place + LEDGER_TABLE)
    entries = entries_of(base, table)
    word, bit = member_at(base, ledger), member_bit(base, ledger)
    drop_shares(base, ledger)
    for at in range(size_of(table)):
        if load_64(entries + at * ENTRY) in (0, GONE):
            continue
        value = load_64(entries + at * ENTRY + 8)
        node = climb(base, node_in(value), depth_in(value))
        place_of = node_at(base, node)
        if load_32(place_of + ROOT) != 0 and load_64(place_of + word) & bit != 0:
            _release_run(base, node, 0, load_32(place_of + LENGTH), word, bit)
        dereference(base, node_in(value), 1)
    removed = load_64(place + LEDGER_USED)
    store_64(place + LEDGER_USED, 0)
    _discard_table(base, place)
    add_to(base + HANDLES, -removed)
    return removed
