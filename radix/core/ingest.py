"""Payloads of engine events, applied to the tree without an object per event, token or hash. For the one writer.

A call goes through its payloads until it meets an event that is not its work, and says where; the caller has that one applied
in the slow way and calls again. What is applied is what `radix.writer` would do to a holder that has one plain group, and no
block that waits or is loose.

Invariants
- An event is applied whole or not at all; a removal only waits in PENDING, which is taken out before anything else is done.
- Nothing is known of a payload's end while its events are applied. Where the rest turns out to be broken the caller gets it to
  decode, which fails, and a caller drops what it knows of a holder whose payload cannot be decoded.
"""

from __future__ import annotations

from radix.core.arena import add_to
from radix.core.atomics import copy, fill_zero, load_8, load_32, load_64, mul_high, shift_right, store_64, swap_bytes
from radix.core.feed import (
    BATCHES,
    BLOCKS,
    DONE,
    END,
    ENDS,
    EVENT,
    EVENTS_AT,
    EVENTS_COUNT,
    EVENTS_DONE,
    GRAIN,
    HASHES,
    IDS,
    KIND,
    LEDGERS_OF_TIER,
    LIMIT,
    LOG,
    LOG_FULL,
    LOGGED,
    MAX_BLOCKS,
    MAX_PAYLOAD_BYTES,
    NAMES,
    NAMESPACED,
    NO_RANK,
    OFFSET,
    OTHER_ROOTS,
    PARENT,
    PARENTED,
    PAYLOAD,
    PENDING,
    PENDING_TIER,
    PLAIN_ROOT,
    REMOVED,
    SIZE,
    SKIPPED,
    SLOW_EVENT,
    SLOW_REST,
    STACK,
    STORED,
    TIER,
    TOKENS,
    UNKNOWN,
)
from radix.core.handles import depth_in, find_handle, handle_key, node_in
from radix.core.jit import inner
from radix.core.layout import ROOT
from radix.core.msgpack import array_head, skip, whole, whole_end
from radix.core.nodes import climb, grain_of, node_at
from radix.core.removing import remove_blocks
from radix.core.scan import REMOVAL, STORE, scan_event
from radix.core.storing import store_below
from radix.match import TIERS

_FEW = 8  # hashes that are compared one with one
_FLOAT_64 = 0xCB
_NOT_FINITE = 0x7FF
_REFUSED = -1


@inner
def ingest(base: int, desk: int, buffer: int, payloads: int) -> int:
    """Go on from where the desk says; how it ended."""
    store_64(desk + LOGGED, 0)
    store_64(desk + PENDING, 0)
    how = DONE
    while how == DONE and load_64(desk + PAYLOAD) < payloads:
        payload = load_64(desk + PAYLOAD)
        start = load_64(desk + ENDS + payload * 8 - 8) if payload > 0 else 0
        how = _payload(base, desk, buffer, buffer + start, buffer + load_64(desk + ENDS + payload * 8))
        if how == DONE:
            store_64(desk + PAYLOAD, payload + 1)
            store_64(desk + EVENT, 0)
    _take_out(base, desk)
    return how


@inner
def _payload(base: int, desk: int, buffer: int, start: int, end: int) -> int:
    """One payload, from where it was left."""
    at = _frame(desk, buffer, start, end)
    if at < 0:
        store_64(desk + OFFSET, start - buffer)
        store_64(desk + EVENTS_AT, _REFUSED)
        return SLOW_REST
    event, count = load_64(desk + EVENT), load_64(desk + EVENTS_COUNT)
    if event > 0:
        at = buffer + load_64(desk + OFFSET)
    how = DONE
    while event < count:
        behind = _event(base, desk, at, end)
        if behind < 0:
            how = -behind
            break
        at = behind
        event += 1
        add_to(desk + EVENTS_DONE, 1)
    store_64(desk + EVENT, event)
    store_64(desk + OFFSET, at - buffer)
    if how == DONE:
        return DONE if _finish(desk, start, at, end) else SLOW_REST
    if how == SLOW_EVENT:
        behind = skip(at, end, desk + STACK)
        if behind < 0:
            return SLOW_REST
        store_64(desk + END, behind - buffer)
    return how


@inner
def _frame(desk: int, buffer: int, start: int, end: int) -> int:
    """Read [timestamp, events, ...] up to the first event; its address, or -1."""
    head = array_head(start)
    at = start + (head & 15)
    if head < 2 << 4 or end - start > MAX_PAYLOAD_BYTES or at >= end or load_8(at) != _FLOAT_64:
        return -1
    events = at + 9
    head = array_head(events)
    at = events + (head & 15)
    if events >= end or head < 0 or shift_right(head, 4) > end - at:
        return -1
    store_64(desk + EVENTS_AT, events - buffer)
    store_64(desk + EVENTS_COUNT, shift_right(head, 4))
    return at


@inner
def _finish(desk: int, start: int, at: int, end: int) -> bool:
    """Read what follows the events, and note when and by whom they were sent; False when it is not understood."""
    head = array_head(start)
    seconds = swap_bytes(load_64(start + (head & 15) + 1))
    row = desk + BATCHES + load_64(desk + PAYLOAD) * 16
    rank = NO_RANK
    for place in range(2, shift_right(head, 4)):
        if at >= end:
            return False
        behind = whole_end(at)
        if place == 2 and behind >= 0:
            rank = whole(at)
            if load_8(at) == 0xCF and rank < 0:
                return False
        at = behind if behind >= 0 else skip(at, end, desk + STACK)
        if at < 0:
            return False
    store_64(row, seconds if shift_right(seconds, 52) & _NOT_FINITE != _NOT_FINITE else 0)
    store_64(row + 8, rank)
    return at == end


@inner
def _event(base: int, desk: int, at: int, end: int) -> int:
    """Apply one event; the address behind it, or how it ended, negative."""
    if at >= end:
        return -SLOW_REST
    pending = load_64(desk + PENDING)
    if pending > MAX_BLOCKS:
        _take_out(base, desk)
        pending = 0
    hashes = desk + HASHES + pending * 8
    behind = scan_event(desk, hashes, at, end)
    if behind < 0:
        return -SLOW_EVENT
    ledger = load_64(desk + LEDGERS_OF_TIER + load_64(desk + TIER) * 8)
    kind = load_64(desk + KIND)
    if ledger < 0:
        return -SLOW_EVENT
    if kind == REMOVAL:
        _put_aside(base, desk, hashes)
        return behind
    if kind != STORE:
        return -SLOW_EVENT
    if load_64(desk + LOGGED) == load_64(desk + LIMIT):
        return -LOG_FULL
    _take_out(base, desk)
    return behind if _store(base, desk, ledger, hashes) else -SLOW_EVENT


@inner
def _put_aside(base: int, desk: int, hashes: int) -> None:
    """Let the hashes of a removal wait for those of the next ones: engines evict block by block, neighbours leave together."""
    tier, blocks = load_64(desk + TIER), load_64(desk + BLOCKS)
    if load_64(desk + PENDING) > 0 and load_64(desk + PENDING_TIER) != tier:
        _take_out(base, desk)
        copy(desk + HASHES, hashes, blocks * 8)
    store_64(desk + PENDING_TIER, tier)
    add_to(desk + PENDING, blocks)


@inner
def _take_out(base: int, desk: int) -> None:
    """Remove what waits."""
    pending = load_64(desk + PENDING)
    if pending == 0:
        return
    ledger = load_64(desk + LEDGERS_OF_TIER + load_64(desk + PENDING_TIER) * 8)
    done = remove_blocks(base, ledger, desk + HASHES, pending)
    add_to(desk + REMOVED, done & 0xFFFFFFFF)
    add_to(desk + UNKNOWN, shift_right(done, 32))
    store_64(desk + PENDING, 0)


@inner
def _store(base: int, desk: int, ledger: int, hashes: int) -> bool:
    """Apply the store on the desk; False, and nothing is changed, when it is another one's work."""
    blocks, grain = load_64(desk + BLOCKS), load_64(desk + GRAIN)
    root = load_64(desk + PLAIN_ROOT)
    if blocks == 0 or load_64(desk + SIZE) != grain or load_64(desk + TOKENS) != blocks * grain:
        return False
    node, depth = root, 0
    if load_64(desk + PARENTED) != 0:
        slot = _find_parent(base, desk)
        if slot == 0:
            return False
        depth = depth_in(load_64(slot + 8))
        node = climb(base, node_in(load_64(slot + 8)), depth)
        root = load_32(node_at(base, node) + ROOT)
        if root != load_64(desk + PLAIN_ROOT) and (load_64(desk + OTHER_ROOTS) == 0 or grain_of(base, node) != grain):
            return False
    elif root == 0 or load_64(desk + NAMESPACED) != 0:
        return False
    if not _distinct(base, desk, hashes, blocks):
        return False
    done = store_below(base, ledger, node, depth, grain, hashes, desk + IDS, blocks)
    if done < 0:
        return False
    add_to(desk + STORED, done & 0xFFFFFFFF)
    add_to(desk + SKIPPED, 1 if shift_right(done, 32) != 0 else 0)
    if load_64(desk + LIMIT) >= 0:
        _note(desk, root, depth, blocks)
    return True


@inner
def _find_parent(base: int, desk: int) -> int:
    """The entry of the parent's hash on the fastest tier that has it; 0 when none has."""
    parent = load_64(desk + PARENT)
    for tier in range(TIERS):
        ledger = load_64(desk + LEDGERS_OF_TIER + tier * 8)
        slot = find_handle(base, ledger, parent) if ledger >= 0 else 0
        if slot != 0:
            return slot
    return 0


@inner
def _distinct(base: int, desk: int, hashes: int, blocks: int) -> bool:
    """Whether no hash comes twice and none is the parent's: such a store is skipped as a whole."""
    if load_64(desk + PARENTED) != 0:
        parent, same = load_64(desk + PARENT), 0
        for at in range(blocks):
            same |= 1 if load_64(hashes + at * 8) == parent else 0
        if same != 0:
            return False
    if blocks > _FEW:
        return _distinct_many(base, desk + NAMES, hashes, blocks)
    for at in range(1, blocks):
        for other in range(at):
            if load_64(hashes + at * 8) == load_64(hashes + other * 8):
                return False
    return True


@inner
def _distinct_many(base: int, names: int, hashes: int, blocks: int) -> bool:
    size = blocks * 2
    fill_zero(names, size * 8)
    for at in range(blocks):
        key = handle_key(base, load_64(hashes + at * 8))  # nobody outside can make them collide
        place = mul_high(key, size)
        while True:
            found = load_64(names + place * 8)
            if found == 0:
                break
            if found == key:
                return False
            place += 1
            if place == size:
                place = 0
        store_64(names + place * 8, key)
    return True


@inner
def _note(desk: int, root: int, depth: int, blocks: int) -> None:
    logged = load_64(desk + LOGGED)
    row = desk + LOG + logged * 24
    store_64(row, root)
    store_64(row + 8, depth)
    store_64(row + 16, blocks)
    store_64(desk + LOGGED, logged + 1)
