"""Matching a prompt: one walk that yields who drops out at which depth. For any number of readers beside the one writer.

A row is (depth in blocks, member words of those whose run ends there), from short to long; the last row has those who go
furthest. Each reader brings its own scratch memory (see `layout`), so readers share nothing and need no allocation.

Invariants
- Nothing here writes outside the scratch but a clock, and that only after an answer stood the check.
- A row loses at least one member, so a scratch with room for a row more than there are member bits never overflows, torn or not.
- What was read counts only when the sequence number stands where it stood; after bounded tries the answer is GAVE_UP.
"""

from __future__ import annotations

from radix.core.atomics import divide, load_32, load_64, store_32, store_64, trailing_zeros
from radix.core.children import find_child
from radix.core.clocks import touch
from radix.core.jit import inner
from radix.core.layout import (
    GAVE_UP,
    LENGTH,
    MEMBERS,
    NODE_MASK,
    NODE_REGION,
    NODES,
    ODD_TRIES,
    OFFSET,
    SCRATCH_LOAD,
    SCRATCH_NODE,
    SCRATCH_STAMPS,
    SCRATCH_WANTED,
    SCRATCH_WIDTH,
    SCRATCH_WORDS,
    STRIDE,
    TIERS_USED,
    WALK_TRIES,
    WIDENED,
    WORDS,
)
from radix.core.nodes import common, tokens_at
from radix.core.sequence import begin_read, unchanged
from radix.match import TIERS


@inner
def rows_at(scratch: int) -> int:
    """Address of a scratch's first row."""
    return scratch + 8 * (SCRATCH_WANTED + 3 * load_64(scratch + 8 * SCRATCH_WIDTH))


@inner
def _survivors(at: int, alive: int, holding: int, words: int, tiers: int) -> int:
    """Write those of `alive` that hold the node on their tier or a faster one; 0 none, 1 some, 2 all."""
    some, lost = 0, 0
    for word in range(words):
        held = 0
        for tier in range(tiers):
            step = (tier * words + word) * 8
            held |= load_64(at + MEMBERS + step)
            before = load_64(alive + step)
            after = before & held
            store_64(holding + step, after)
            some |= after
            lost |= before ^ after
    if some == 0:
        return 0
    return 1 if lost != 0 else 2


@inner
def _write_row(row: int, depth: int, alive: int, holding: int, width: int) -> None:
    """Write who drops out, and let the others be those alive."""
    store_64(row, depth)
    for word in range(width):
        after = load_64(holding + word * 8)
        store_64(row + 8 + word * 8, load_64(alive + word * 8) ^ after)
        store_64(alive + word * 8, after)


@inner
def walk(base: int, scratch: int, root: int, grain: int, tokens: int, count: int) -> int:
    """Follow a prompt of `count` tokens from a root; rows << 32 | depth of the last one, in blocks."""
    words, tiers, stride = load_64(base + WORDS), load_64(base + TIERS_USED), load_64(base + STRIDE)
    width = words * tiers
    if width != load_64(scratch + 8 * SCRATCH_WIDTH):
        return WIDENED
    wanted = scratch + 8 * SCRATCH_WANTED
    alive, holding = wanted + 8 * width, wanted + 16 * width
    for word in range(width):
        store_64(alive + word * 8, load_64(wanted + word * 8))
    rows, row = 0, rows_at(scratch)
    node, done = root, 0
    while done + grain <= count:
        child = find_child(base, node, tokens + done * 4, grain)
        if child == 0:
            break
        at = base + NODES + ((child & NODE_MASK) * stride & (NODE_REGION - 1))
        left = _survivors(at, alive, holding, words, tiers)
        if left == 0:
            break
        if left == 1:
            if done > 0:
                _write_row(row, divide(done, grain), alive, holding, width)
                rows, row = rows + 1, row + 8 + 8 * width
            else:
                for word in range(width):
                    store_64(alive + word * 8, load_64(holding + word * 8))
        length = load_32(at + LENGTH) * grain
        limit = min(length, count - done)
        same = grain  # the first block has been compared
        if limit > grain:
            here = tokens_at(base, load_32(at + OFFSET))
            same += common(here + grain * 4, tokens + (done + grain) * 4, limit - grain)
        done += same
        node = child
        if same < length:
            break
    store_64(scratch + 8 * SCRATCH_NODE, node)
    depth = divide(done, grain)
    if depth == 0:
        return 0
    for word in range(width):
        store_64(holding + word * 8, 0)
    _write_row(row, depth, alive, holding, width)
    return ((rows + 1) << 32) | depth


@inner
def walk_unchecked(base: int, scratch: int, root: int, grain: int, tokens: int, count: int) -> int:
    """A walk that believes whatever it sees; only there to prove that the check is needed."""
    return walk(base, scratch, root, grain, tokens, count)


@inner
def match_rows(base: int, scratch: int, root: int, grain: int, tokens: int, count: int) -> int:
    """The rows of one state of the tree, or a negative code."""
    walks = 0
    for _ in range(ODD_TRIES):
        sequence = begin_read(base)
        if sequence & 1 != 0:
            continue
        answer = walk(base, scratch, root, grain, tokens, count)
        if unchanged(base, sequence):
            if answer > 0 and load_64(scratch + 8 * SCRATCH_STAMPS) != 0:
                touch(base, load_64(scratch + 8 * SCRATCH_NODE))
            return answer
        walks += 1
        if walks == WALK_TRIES:
            break
    return GAVE_UP


@inner
def _least_of_64(load: int) -> int:
    """The least load of 64 holders; made for vector code."""
    least = load_64(load)
    for holder in range(1, 64):
        least = min(least, load_64(load + holder * 8))
    return least


@inner
def best_holder(base: int, scratch: int, root: int, grain: int, tokens: int, count: int) -> int:
    """depth << 32 | holder of the deepest run, the smallest load on a tie and then the lowest number; 0 when nobody has any."""
    answer = match_rows(base, scratch, root, grain, tokens, count)
    if answer <= 0:
        return answer
    width = load_64(scratch + 8 * SCRATCH_WIDTH)
    words = load_64(scratch + 8 * SCRATCH_WORDS)
    row = rows_at(scratch) + ((answer >> 32) - 1) * (8 + 8 * width)
    load = load_64(scratch + 8 * SCRATCH_LOAD)
    best, least = -1, 0
    for word in range(width):
        bits = load_64(row + 8 + word * 8)
        first = (word % words) * 64
        if load == 0 and bits != 0:
            bits &= -bits  # the lowest number is all that counts
        elif bits == -1 and best >= 0 and first > best and _least_of_64(load + first * 8) >= least:
            continue
        while bits != 0:
            holder = first + trailing_zeros(bits)
            bits &= bits - 1
            mine = load_64(load + holder * 8) if load != 0 else 0
            if best < 0 or mine < least or (mine == least and holder < best):
                best, least = holder, mine
    return (load_64(row) << 32) | best


@inner
def fill_depths(scratch: int, rows: int, grain: int, depths: int, holders: int, tiers: int) -> None:
    """Write tokens per (holder, tier) into an int32 matrix, keeping what is deeper; tiers not in use get the same."""
    width, words = load_64(scratch + 8 * SCRATCH_WIDTH), load_64(scratch + 8 * SCRATCH_WORDS)
    row = rows_at(scratch)
    for _ in range(rows):
        matched = load_64(row) * grain
        for word in range(width):
            bits = load_64(row + 8 + word * 8)
            tier = word // words
            while bits != 0:
                holder = (word - tier * words) * 64 + trailing_zeros(bits)
                bits &= bits - 1
                if holder < holders:
                    last = tiers if (tier + 1) * words == width else tier + 1
                    _raise_to(depths + holder * tiers * 4, tier, last, matched)
        row += 8 + 8 * width


@inner
def _raise_to(at: int, first: int, last: int, matched: int) -> None:
    """Raise some columns of one holder's row."""
    if first == 0 and last == TIERS and load_64(at) == 0 and load_64(at + 8) == 0:  # the usual one, and much cheaper
        store_64(at, matched << 32 | matched)
        store_64(at + 8, matched << 32 | matched)
        return
    for column in range(first, last):
        if load_32(at + column * 4) < matched:
            store_32(at + column * 4, matched)


@inner
def fill_pairs(scratch: int, rows: int, holders: int, depths: int) -> int:
    """Write (holder, depth in blocks) on the fastest tier as two int64 arrays; returns how many."""
    width, words = load_64(scratch + 8 * SCRATCH_WIDTH), load_64(scratch + 8 * SCRATCH_WORDS)
    row = rows_at(scratch)
    count = 0
    for _ in range(rows):
        depth = load_64(row)
        for word in range(words):
            bits = load_64(row + 8 + word * 8)
            while bits != 0:
                store_64(holders + count * 8, word * 64 + trailing_zeros(bits))
                store_64(depths + count * 8, depth)
                count += 1
                bits &= bits - 1
        row += 8 + 8 * width
    return count
