"""Paths without names: a member holds a run of tokens from a root on, no hash leads there, and only a sweep takes it away.

For trees of our own history (see `radix.history`), where nothing is ever removed by name. Such members have ledgers without
handles, so all else holds as in `storing`.
"""

from __future__ import annotations

from radix.core.atomics import load_32, load_64, store_64
from radix.core.children import make_room_for_children
from radix.core.clocks import tick
from radix.core.evicting import bytes_used
from radix.core.jit import inner
from radix.core.layout import BUDGET, FULL, LENGTH, MAX_DEPTH, NODE_NEXT, ROOT, SEGMENTS, TOO_DEEP
from radix.core.nodes import climb, grain_of, node_at
from radix.core.removing import member_at, member_bit, release
from radix.core.sequence import begin_change, end_change
from radix.core.storing import SEGMENT, has_room, place, rejoin


@inner
def place_path(base: int, ledger: int, root: int, grain: int, tokens: int, blocks: int) -> int:
    """Hold `blocks` blocks from the root on: 1 when the budget is exceeded now, 0 when not; or a negative code of `layout`."""
    if blocks > MAX_DEPTH:
        return TOO_DEEP
    if not (make_room_for_children(base, 4) and has_room(base, blocks, grain)):
        return FULL
    tick(base)
    segments = base + SEGMENTS
    begin_change(base)
    count = place(base, ledger, root, 0, tokens, blocks, grain, segments)
    done = 0
    for segment in range(count):
        at = segments + segment * SEGMENT
        store_64(at, climb(base, load_64(at), done + 1))
        done += load_64(at + 8)
    rejoin(base, count, grain, segments)
    end_change(base)
    return 1 if bytes_used(base) > load_64(base + BUDGET) else 0


@inner
def forget_member(base: int, ledger: int) -> int:
    """Take the ledger's member away from every node, one change each; returns how many had it."""
    word, bit = member_at(base, ledger), member_bit(base, ledger)
    count = 0
    for node in range(1, load_64(base + NODE_NEXT)):
        at = node_at(base, node)
        if load_32(at + ROOT) not in (0, node) and load_64(at + word) & bit != 0:
            begin_change(base)
            release(base, node, 0, load_32(at + LENGTH), word, bit, grain_of(base, node))
            end_change(base)
            count += 1
    return count
