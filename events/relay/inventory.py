"""All of one rank's view at one moment, and the events that tell it to someone who joins late.

First the blocks that have a place, parents before their children, with those that are gone and only keep a place for others;
then the removal of these; then what waits for a parent, which waits again; then the blocks known by name only. What the cache
groups are comes last: a block of a window gets no place any more once it is known that another group keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from radix.changes import Event, GroupKind, Removed, Stored, Tier, as_tokens
from radix.orphans import Orphan

_GROUP_SHIFT = 64
_HASH_MASK = (1 << _GROUP_SHIFT) - 1
_NO_TOKENS = as_tokens([])
_NO_BLOCK = as_tokens([0])
_SPARSE = (GroupKind.WINDOW, GroupKind.CHUNK, GroupKind.STATE, GroupKind.NOTHING)


class Kept(NamedTuple):
    """One block with a place. key: hash and group in one. run, at: the store that told its tokens. copies: per tier."""

    key: int
    run: Stored
    at: int
    copies: tuple[int, ...]


class KeptGroup(NamedTuple):
    """What was heard of one cache group. sizes: tokens of the largest block on each tier that told any."""

    number: int
    kind: GroupKind
    window_tokens: int
    sizes: Mapping[Tier, int]


@dataclass(frozen=True, slots=True)
class Inventory:
    """All of a view. waiting: with copies, oldest first. loose: (group, tier, hash, copies), oldest first."""

    blocks: tuple[Kept, ...] = ()
    groups: tuple[KeptGroup, ...] = ()  # as they were first heard of
    waiting: tuple[tuple[Orphan, int], ...] = ()
    loose: tuple[tuple[int, Tier, int, int], ...] = ()


def key_of(group: int, block_hash: int) -> int:
    """Hash and group in one number."""
    return group << _GROUP_SHIFT | block_hash


def parent_key(key: int, run: Stored, at: int) -> int | None:
    """The key of the block it lies behind; None at a prompt's start."""
    parent = run.hashes[at - 1] if at else run.parent
    return None if parent is None else key >> _GROUP_SHIFT << _GROUP_SHIFT | parent


def store_of(orphans: Sequence[Orphan]) -> Stored:
    """The store that lets these blocks wait, each behind the one before it.

    Of tokens that lead a run only their number is known; no more is asked for behind a parent.
    """
    first = orphans[0]
    return Stored(
        tuple([orphan.hash for orphan in orphans]),
        first.parent,
        np.frombuffer(b"".join([orphan.data for orphan in orphans]), np.int32),
        first.block_tokens,
        first.hint,
        first.tier,
        first.group,
        lead=(0,) * first.lead,
    )


def told(inventory: Inventory) -> Iterator[Event]:
    """Events that lead an empty view to where it was."""
    yield from _stores(inventory.blocks, {group.number: group.sizes for group in inventory.groups})
    yield from _removals(inventory.blocks)
    yield from _waiting(inventory.waiting)
    yield from _loose(inventory)
    for group in inventory.groups:
        yield Stored((), None, _NO_TOKENS, 0, group=group.number, kind=group.kind, window_tokens=group.window_tokens)
    for group in inventory.groups:
        if group.kind in _SPARSE:  # of blocks without a place nothing else tells their size
            for tier, size in group.sizes.items():
                yield Stored((), None, _NO_BLOCK, size, tier=tier, group=group.number)


def _stores(blocks: Iterable[Kept], sizes: Mapping[int, Mapping[Tier, int]]) -> Iterator[Event]:
    first: Kept | None = None
    count = 0
    for block in blocks:
        if first is not None and _continues(block, first, count):
            count += 1
            continue
        if first is not None:
            yield from _copies(first, count, sizes)
        first, count = block, 1
    if first is not None:
        yield from _copies(first, count, sizes)


def _continues(block: Kept, first: Kept, count: int) -> bool:
    """Whether a block is the next one of the same store, with as many copies."""
    return block.run is first.run and block.at == first.at + count and block.copies == first.copies


def _copies(first: Kept, count: int, sizes: Mapping[int, Mapping[Tier, int]]) -> Iterator[Event]:
    """Stores of `count` blocks of one run that have as many copies each; one at least, for their place."""
    store = _part(first.run, first.at, count)
    for _ in range(max(first.copies[store.tier], 1)):
        yield store
    named = Stored(store.hashes, None, _NO_TOKENS, 0, group=store.group)
    for tier in Tier:
        if tier is not store.tier and first.copies[tier]:
            other = replace(store if tier in sizes[store.group] else named, tier=tier)
            for _ in range(first.copies[tier]):
                yield other


def _removals(blocks: Iterable[Kept]) -> Iterator[Event]:
    """Take back what `_copies` had to store for the sake of a place."""
    gone: dict[tuple[Tier, int], list[int]] = {}
    for block in blocks:
        if not block.copies[block.run.tier]:
            gone.setdefault((block.run.tier, block.run.group), []).append(block.key & _HASH_MASK)
    for (tier, group), hashes in gone.items():
        yield Removed(tuple(hashes), tier, group)


def _waiting(waiting: Iterable[tuple[Orphan, int]]) -> Iterator[Event]:
    run: list[Orphan] = []
    run_copies = 0
    for orphan, copies in waiting:
        # One that waits for itself in the end is two stores, since one store would contradict itself.
        if run and not (copies == run_copies and _waits_behind(orphan, run[-1]) and orphan.hash != run[0].parent):
            yield from [store_of(run)] * run_copies
            run = []
        run.append(orphan)
        run_copies = copies
    if run:
        yield from [store_of(run)] * run_copies


def _loose(inventory: Inventory) -> Iterator[Event]:
    """By name; where a block of this name has a place, with tokens that are no whole block, so that it does not get it too."""
    placed = {block.key for block in inventory.blocks if any(block.copies)} if inventory.loose else set()
    same = groupby(inventory.loose, lambda it: (it[0], it[1], it[3], key_of(it[0], it[2]) in placed))
    for (group, tier, copies, has_place), blocks in same:
        tokens = _NO_BLOCK if has_place else _NO_TOKENS
        store = Stored(tuple([block_hash for _, _, block_hash, _ in blocks]), None, tokens, 0, tier=tier, group=group)
        yield from [store] * copies


def _waits_behind(orphan: Orphan, last: Orphan) -> bool:
    """Whether two waiting blocks can be told in one store."""
    same = (orphan.tier, orphan.group, orphan.block_tokens, orphan.lead) == (last.tier, last.group, last.block_tokens, last.lead)
    return same and orphan.parent == last.hash and orphan.hint == last.hint


def _part(run: Stored, at: int, count: int) -> Stored:
    """Blocks at..at+count of a store, as a store of their own that says nothing of its group."""
    size, lead = run.block_tokens, len(run.lead)
    if at == 0 and count == len(run.hashes) and run.kind is GroupKind.UNSTATED:
        return run
    before = run.lead
    if at and lead:
        line = [*run.lead, *run.tokens[: at * size].tolist()]
        before = tuple(line[at * size : at * size + lead])
    return replace(
        run,
        kind=GroupKind.UNSTATED,
        window_tokens=0,
        hashes=run.hashes[at : at + count],
        parent=run.hashes[at - 1] if at else run.parent,
        tokens=run.tokens[at * size : (at + count) * size],
        lead=before,
    )
