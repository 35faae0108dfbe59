"""Blocks are stored: placed in the tree, then named in the ledger. For the one writer.

Invariants
- One change of the sequence lock covers the placing of a whole store.
- A store checks first that there is room for the worst it may need, so nothing fails half way.
- `store_blocks` answers new | rejected << 32, or a negative code of `layout`; rejected are those behind a hash of another place.
"""

from __future__ import annotations

from radix.core.arena import add_to, fits_below
from radix.core.atomics import divide, load_32, load_64, mul_high, shift_right, store_64
from radix.core.children import find_child, make_room_for_children
from radix.core.clocks import tick, touch
from radix.core.edges import extend_leaf, join, new_leaf, split
from radix.core.handles import (
    AHEAD,
    add_share,
    ask_ahead,
    copies_in,
    depth_in,
    find_handle,
    handle,
    key_ahead,
    ledger_at,
    node_in,
    reference,
    reserve_handles,
)
from radix.core.jit import inner
from radix.core.layout import (
    ARENA_ROOM,
    CHILDREN,
    CHILDREN_TABLE,
    COPIES_MASK,
    FOREIGN_PARENT,
    FULL,
    HANDLES,
    LEDGER_COUNTING,
    LEDGER_FILLED,
    LEDGER_TABLE,
    LEDGER_USED,
    LENGTH,
    MAX_DEPTH,
    NODE_LIMIT,
    NODES_LIVE,
    OFFSET,
    ONLY,
    PLACED,
    ROOT,
    ROOT_GRAIN,
    SEGMENTS,
    STUBS,
    TOO_DEEP,
    UNKNOWN_PARENT,
)
from radix.core.nodes import climb, common, dereference, node_at, start_of, tokens_at, units_for
from radix.core.removing import is_alone, member_at, member_bit, release
from radix.core.sequence import begin_change, end_change
from radix.core.tables import entries_of, probe, size_of

SEGMENT = 24  # bytes


@inner
def has_room(base: int, blocks: int, grain: int) -> bool:
    """Whether a store of this many blocks cannot run out of units or nodes."""
    tokens = units_for(blocks * grain)
    tables = shift_right(size_of(load_64(base + CHILDREN_TABLE)), 1) + blocks * 2
    units = tokens * 2 + tables * 2
    enough = fits_below(base, units, load_64(base + ARENA_ROOM))
    return enough and load_64(base + NODES_LIVE) + load_64(base + STUBS) + blocks * 2 + 8 < load_64(base + NODE_LIMIT)


@inner
def store_blocks(
    base: int, ledger: int, parent_ledger: int, root: int, grain: int, parent_hash: int, hashes: int, tokens: int, blocks: int
) -> int:
    """Hold `blocks` blocks below a parent, one hash each; see the module for the answer.

    parent_ledger: where `parent_hash` is looked up; -1: at the root; PLACED: behind block number `parent_hash` (from 1), recorded
    in node `root`.
    """
    node, depth = root, 0
    if parent_ledger == PLACED:
        depth = parent_hash
        node = climb(base, root, depth)
    elif parent_ledger >= 0:
        slot = find_handle(base, parent_ledger, parent_hash)
        if slot == 0:
            return UNKNOWN_PARENT
        depth = depth_in(load_64(slot + 8))
        node = climb(base, node_in(load_64(slot + 8)), depth)
    if load_32(node_at(base, node) + ROOT) == 0:
        return UNKNOWN_PARENT  # it was evicted
    if load_64(node_at(base, load_32(node_at(base, node) + ROOT)) + ROOT_GRAIN) != grain:
        return FOREIGN_PARENT
    return store_below(base, ledger, node, depth, grain, hashes, tokens, blocks)


@inner
def store_below(base: int, ledger: int, node: int, depth: int, grain: int, hashes: int, tokens: int, blocks: int) -> int:
    """`store_blocks` behind block `depth` of the tree, which lies in `node`."""
    if depth + blocks > MAX_DEPTH:
        return TOO_DEEP
    tick(base)
    # The tables first: they may take what the tokens would need.
    if not (reserve_handles(base, ledger, blocks) and make_room_for_children(base, 4) and has_room(base, blocks, grain)):
        touch(base, node)  # should the caller evict now, then not this
        return FULL
    segments = base + SEGMENTS
    begin_change(base)
    count = place(base, ledger, node, depth - start_of(node_at(base, node)), tokens, blocks, grain, segments)
    end_change(base)
    done = _record(base, ledger, depth, hashes, count, segments)
    begin_change(base)
    if shift_right(done, 32) != 0:
        _take_back(base, ledger, depth, blocks - shift_right(done, 32), count, grain, segments)
    else:
        rejoin(base, count, grain, segments)
    end_change(base)
    return done


@inner
def place(base: int, ledger: int, node: int, position: int, tokens: int, blocks: int, grain: int, segments: int) -> int:
    """Give the member all blocks from `position` of `node` on; writes what lies where and returns the number of segments."""
    word, bit = member_at(base, ledger), member_bit(base, ledger)
    done = 0
    count = 0
    while done < blocks:
        at = node_at(base, node)
        length = load_32(at + LENGTH)
        before = done
        held = 0
        if position < length:
            limit = min(length - position, blocks - done) * grain
            here = tokens_at(base, load_32(at + OFFSET) + position * grain)
            same = divide(common(here, tokens + done * grain * 4, limit), grain)
            if same == 0:
                node = split(base, node, position, grain)
                continue
            if load_64(at + word) & bit != 0:
                held = 1
            else:
                if position > 0:
                    split(base, node, position, grain)
                    length -= position
                    position = 0
                if same < length:
                    node = split(base, node, same, grain)
                    at = node_at(base, node)
                store_64(at + word, load_64(at + word) | bit)
            done += same
            position += same
        else:
            child = find_child(base, node, tokens + done * grain * 4, grain)
            position = 0
            if child != 0:
                node = child
                continue
            node = _append(base, node, word, bit, tokens + done * grain * 4, blocks - done, grain)
            done = blocks
        store_64(segments + count * SEGMENT, node)
        store_64(segments + count * SEGMENT + 8, done - before)
        store_64(segments + count * SEGMENT + 16, held)
        count += 1
    touch(base, node)
    return count


@inner
def _append(base: int, node: int, word: int, bit: int, tokens: int, blocks: int, grain: int) -> int:
    """New blocks behind a node: in place where it is a leaf of this member alone, else as a child."""
    at = node_at(base, node)
    mine = load_32(at + CHILDREN) == 0 and is_alone(base, at, word, bit) and load_32(at + ROOT) != node
    if mine and extend_leaf(base, node, tokens, blocks, grain):
        return node
    leaf = new_leaf(base, node, tokens, blocks, grain)
    store_64(node_at(base, leaf) + word, bit)
    return leaf


@inner
def _record(base: int, ledger: int, depth: int, hashes: int, count: int, segments: int) -> int:
    """Write the handles of a store, segment by segment; new | rejected << 32."""
    place = ledger_at(base, ledger)
    table = load_64(place + LEDGER_TABLE)
    entries, size = entries_of(base, table), size_of(table)
    counting = load_64(place + LEDGER_COUNTING)
    blocks = 0
    for segment in range(count):
        blocks += load_64(segments + segment * SEGMENT + 8)
    for at in range(min(AHEAD, blocks)):
        ask_ahead(base, entries, size, hashes, at)
    at, new, rejected = 0, 0, 0
    for segment in range(count):
        node = climb(base, load_64(segments + segment * SEGMENT), depth + at + 1)
        store_64(segments + segment * SEGMENT, node)
        end = at + load_64(segments + segment * SEGMENT + 8)
        held = load_64(segments + segment * SEGMENT + 16)
        fresh = 0
        while at < end:
            if at + AHEAD < blocks:
                ask_ahead(base, entries, size, hashes, at + AHEAD)
            key = key_ahead(base, at)
            slot = probe(entries, size, mul_high(key, size), key)
            at += 1
            if load_64(slot) == 0:
                store_64(slot, key)
                store_64(slot + 8, handle(node, depth + at, 1))
                fresh += 1
                if held != 0:
                    add_share(base, ledger, depth + at, node)
                continue
            value = load_64(slot + 8)
            if depth_in(value) != depth + at or climb(base, node_in(value), depth + at) != node:
                at -= 1
                rejected = blocks - at
                break
            if counting != 0 and copies_in(value) != COPIES_MASK:
                store_64(slot + 8, value + 1)
        reference(base, node, fresh)
        new += fresh
        if rejected != 0:
            break
    add_to(place + LEDGER_USED, new)
    add_to(place + LEDGER_FILLED, new)
    add_to(base + HANDLES, new)
    return new | (rejected << 32)


@inner
def rejoin(base: int, count: int, grain: int, segments: int) -> None:
    """Join what the store made alike, from above: a node keeps its number when its parent goes into it."""
    node = 0
    for segment in range(count):
        node = load_64(segments + segment * SEGMENT)
        join(base, node, grain)
    at = node_at(base, node)
    if load_32(at + CHILDREN) == 1:
        join(base, load_32(at + ONLY), grain)


@inner
def _take_back(base: int, ledger: int, depth: int, keep: int, count: int, grain: int, segments: int) -> None:
    """Undo the placing of all blocks from `keep` on which the member did not have before."""
    word, bit = member_at(base, ledger), member_bit(base, ledger)
    for segment in range(count):
        reference(base, load_64(segments + segment * SEGMENT), 1)  # so that its number stays while others go
    end = 0
    for segment in range(count):
        end += load_64(segments + segment * SEGMENT + 8)
    for segment in range(count - 1, -1, -1):
        length = load_64(segments + segment * SEGMENT + 8)
        start = end - length
        if load_64(segments + segment * SEGMENT + 16) == 0 and end > keep:
            first = max(start, keep)
            node = climb(base, load_64(segments + segment * SEGMENT), depth + first + 1)
            low = depth + first - start_of(node_at(base, node))
            release(base, node, low, low + end - first, word, bit, grain)
        end = start
    start = 0
    for segment in range(count):
        if start >= keep:
            break
        node = climb(base, load_64(segments + segment * SEGMENT), depth + start + 1)
        join(base, node, grain)
        only = load_32(node_at(base, node) + ONLY)
        if load_32(node_at(base, node) + CHILDREN) == 1:
            join(base, only, grain)
        start += load_64(segments + segment * SEGMENT + 8)
    for segment in range(count):
        dereference(base, load_64(segments + segment * SEGMENT), 1)
