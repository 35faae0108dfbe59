"""What one rank has, as its events told it, so that it can be told again to someone who joins late.

A view in an index knows places; this knows announcements: by which events each block that is still there came. Told again in
their order they lead to the same view, with the same names, copies, tiers, cache groups, waiting blocks and holes. For holes a
removed block is kept as long as blocks behind it are there: it is told too, and then removed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from radix.changes import Applied, Batch, Cleared, Event, GroupKind, Removed, Stored, Tier, as_tokens

_NONE = (0,) * len(Tier)
_ONE = tuple(tuple(int(tier is at) for at in Tier) for tier in Tier)
_GROUP_SHIFT = 64
_HASH_MASK = (1 << _GROUP_SHIFT) - 1
_NO_TOKENS = as_tokens([])


class _Block:
    """One block. run, at: the store that brought its tokens and its place there; run None: known by name only.

    copies: per tier. with_tokens: bits of the tiers that brought tokens too. children: blocks here that name it as parent.
    late: it waits for a parent that was here and is removed.
    again: it came back without a place, and blocks behind it have theirs from when it was there before.
    """

    __slots__ = ("again", "at", "children", "copies", "late", "run", "with_tokens")

    def __init__(self, run: Stored | None, at: int, children: int) -> None:
        self.run = run
        self.at = at
        self.copies: tuple[int, ...] = _NONE
        self.late = False
        self.again = False
        self.children = children
        self.with_tokens = 0


class Kept(NamedTuple):
    """One block as it was when a snapshot was taken. key: hash and group in one."""

    key: int
    run: Stored | None
    at: int
    copies: tuple[int, ...]
    with_tokens: int
    late: bool
    again: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """All of a view at one moment; `told` makes events of it, elsewhere and later."""

    blocks: tuple[Kept, ...]
    groups: tuple[tuple[int, GroupKind, int], ...]  # (group, kind, window tokens), as they were first heard of


class Held:
    """The announcements behind one rank's view."""

    def __init__(self, *, counting: bool = True) -> None:
        """counting: copies of a block are announced one by one (vLLM); False where a store is repeated freely (SGLang)."""
        self.counting = counting
        self._blocks: dict[int, _Block] = {}  # by key, parents before their children
        self._expected: dict[int, int] = {}  # key of a parent that is not here -> blocks that name it
        self._groups: dict[int, tuple[GroupKind, int]] = {}
        self._block_tokens = 0

    def __len__(self) -> int:
        """Blocks, with those kept for the sake of others."""
        return len(self._blocks)

    @property
    def block_tokens(self) -> int:
        """Tokens per block, as the largest store said; 0 before the first."""
        return self._block_tokens

    def apply(self, batch: Batch) -> Applied:
        """Take in one batch; orphans are not counted here."""
        applied = Applied(skipped=batch.skipped)
        for event in batch.events:
            match event:
                case Stored():
                    self._store(event, applied)
                case Removed():
                    self._remove(event, applied)
                case Cleared():
                    applied.removed += self.clear()
        return applied

    def clear(self) -> int:
        """Forget everything; returns the number of blocks forgotten."""
        count = len(self._blocks)
        self._blocks = {}
        self._expected = {}
        self._groups = {}
        self._block_tokens = 0
        return count

    def inventory(self) -> Inventory:
        """What there is now; about 0.3 us a block."""
        collecting = gc.isenabled()
        gc.disable()  # so many new objects at once would have it look through all the old ones, for three times the time
        try:
            blocks = tuple(
                [Kept(key, it.run, it.at, it.copies, it.with_tokens, it.late, it.again) for key, it in self._blocks.items()]
            )
        finally:
            if collecting:
                gc.enable()
        return Inventory(blocks, tuple([(group, kind, window) for group, (kind, window) in self._groups.items()]))

    def _store(self, event: Stored, applied: Applied) -> None:
        if event.group not in self._groups or event.kind is not GroupKind.UNSTATED:
            self._groups[event.group] = (event.kind, event.window_tokens)
        if len(set(event.hashes)) != len(event.hashes) or event.parent in event.hashes:
            applied.skipped += 1
            return
        size = event.block_tokens
        whole = len(event.tokens) // size if size > 0 else 0
        if whole > len(event.hashes):
            whole = 0  # masked blocks: hashes and tokens do not line up
        if whole:
            self._block_tokens = max(self._block_tokens, size)
        for at in range(len(event.hashes)):
            self._add(event, at, at < whole, applied)

    def _add(self, event: Stored, at: int, has_tokens: bool, applied: Applied) -> None:
        key = _key(event.group, event.hashes[at])
        block = self._blocks.get(key)
        if block is not None and block.run is None and has_tokens:
            del self._blocks[key]  # told again it belongs behind its parent
            block.run, block.at = event, at
            block.late = self._adopt(key, block)
            self._blocks[key] = block
        elif block is None:
            block = _Block(event if has_tokens else None, at, self._expected.pop(key, 0))
            block.late = self._adopt(key, block)
            self._blocks[key] = block
        elif block.copies is _NONE or (has_tokens and block.again and not block.with_tokens):
            block.again = block.late = not has_tokens or self._waits(key, block)
        if has_tokens:
            block.with_tokens |= 1 << event.tier
        applied.stored += not block.copies[event.tier]
        if block.copies is _NONE:
            block.copies = _ONE[event.tier]
        elif self.counting or not block.copies[event.tier]:
            block.copies = _changed(block.copies, event.tier, 1)

    def _adopt(self, key: int, block: _Block) -> bool:
        """Tell the parent; True when this block has to wait for it."""
        parent = _parent_key(key, block)
        if parent is None:
            return False
        above = self._blocks.get(parent)
        if above is None:
            self._expected[parent] = self._expected.get(parent, 0) + 1
            return False
        above.children += 1
        return self._waits(key, block)

    def _waits(self, key: int, block: _Block) -> bool:
        """Whether the parent is here only for the sake of others, or waits itself."""
        parent = _parent_key(key, block)
        above = self._blocks.get(parent) if parent is not None else None
        return above is not None and (above.copies is _NONE or above.late)

    def _remove(self, event: Removed, applied: Applied) -> None:
        for block_hash in event.hashes:
            key = _key(event.group, block_hash)
            block = self._blocks.get(key)
            if block is None or not block.copies[event.tier]:
                applied.unknown += 1
                continue
            block.copies = _changed(block.copies, event.tier, -1)
            if not block.copies[event.tier]:
                applied.removed += 1
                block.with_tokens &= ~(1 << event.tier)
            if block.copies is _NONE:
                if not block.children:
                    self._forget(key, block)
                elif not self._placed(key, block):  # it leaves no hole: those behind it go on waiting
                    self._expected[key] = block.children
                    self._forget(key, block)

    def _placed(self, key: int, block: _Block) -> bool:
        """Whether everything before it was there when it came, or came later."""
        at: _Block | None = block
        while at is not None and not at.late:
            parent = _parent_key(key, at)
            if parent is None:
                return True
            key, at = parent, self._blocks.get(parent)
        return False

    def _forget(self, key: int, block: _Block) -> None:
        """Take a block out, and whatever was kept only for its sake."""
        while True:
            del self._blocks[key]
            parent = _parent_key(key, block)
            if parent is None:
                return
            above = self._blocks.get(parent)
            if above is None:
                left = self._expected.pop(parent) - 1
                if left:
                    self._expected[parent] = left
                return
            above.children -= 1
            if above.children or above.copies is not _NONE:
                return
            key, block = parent, above


def told(inventory: Inventory) -> Iterator[Event]:
    """Events that lead an empty view to where it was."""
    for group, kind, window in inventory.groups:
        if kind is not GroupKind.UNSTATED:
            yield Stored((), None, _NO_TOKENS, 0, group=group, kind=kind, window_tokens=window)
    first = [
        block._replace(copies=_NONE) if block.again else block for block in inventory.blocks if block.again or not block.late
    ]
    yield from _stores(first)
    yield from _removals(first)
    # What waits for a parent that was removed comes after the removal, so that it waits again.
    late = [
        block._replace(run=None) if block.again and not block.with_tokens else block for block in inventory.blocks if block.late
    ]
    yield from _stores(late)
    yield from _removals(late)


def _stores(blocks: Iterable[Kept]) -> Iterator[Event]:
    first: Kept | None = None
    count = 0
    for block in blocks:
        if first is not None and _continues(block, first, count):
            count += 1
            continue
        if first is not None:
            yield from _copies(first, count)
        first, count = block, 1
    if first is not None:
        yield from _copies(first, count)


def _continues(block: Kept, first: Kept, count: int) -> bool:
    """Whether a block is the next one of the same store, with as many copies."""
    return (
        first.run is not None
        and block.run is first.run
        and block.at == first.at + count
        and block.copies == first.copies
        and block.with_tokens == first.with_tokens
    )


def _copies(first: Kept, count: int) -> Iterator[Event]:
    """Stores of `count` blocks of one run that have as many copies each; one at least where they have tokens."""
    if first.run is None:
        store = Stored((first.key & _HASH_MASK,), None, _NO_TOKENS, 0, group=first.key >> _GROUP_SHIFT)
    else:
        store = _part(first.run, first.at, count)
        for _ in range(max(first.copies[store.tier], 1)):
            yield store
    named = Stored(store.hashes, None, _NO_TOKENS, 0, group=store.group)
    for tier in Tier:
        if first.run is None or tier is not store.tier:
            other = replace(store if first.with_tokens >> tier & 1 else named, tier=tier)
            for _ in range(first.copies[tier]):
                yield other


def _removals(blocks: Iterable[Kept]) -> Iterator[Event]:
    """Take back what `_copies` had to store for the sake of a place."""
    gone: dict[tuple[Tier, int], list[int]] = {}
    for block in blocks:
        if block.run is not None and not block.copies[block.run.tier]:
            gone.setdefault((block.run.tier, block.run.group), []).append(block.key & _HASH_MASK)
    for (tier, group), hashes in gone.items():
        yield Removed(tuple(hashes), tier, group)


def _part(run: Stored, at: int, count: int) -> Stored:
    """Blocks at..at+count of a store, as a store of their own."""
    size, lead = run.block_tokens, len(run.lead)
    if at == 0 and count == len(run.hashes):
        return run
    before = run.lead
    if at and lead:
        line = [*run.lead, *run.tokens[: at * size].tolist()]
        before = tuple(line[at * size : at * size + lead])
    return replace(
        run,
        hashes=run.hashes[at : at + count],
        parent=run.hashes[at - 1] if at else run.parent,
        tokens=run.tokens[at * size : (at + count) * size],
        lead=before,
    )


def _key(group: int, block_hash: int) -> int:
    return group << _GROUP_SHIFT | block_hash


def _parent_key(key: int, block: _Block) -> int | None:
    """The key of the block it lies behind; None at a prompt's start, and for a block known by name only."""
    run = block.run
    if run is None:
        return None
    parent = run.hashes[block.at - 1] if block.at else run.parent
    return None if parent is None else key >> _GROUP_SHIFT << _GROUP_SHIFT | parent


def _changed(copies: tuple[int, ...], tier: Tier, by: int) -> tuple[int, ...]:
    """With one copy more or less on a tier; the usual results are shared objects."""
    left = copies[tier] + by
    if by < 0 and copies is _ONE[tier]:
        return _NONE
    changed = (*copies[:tier], left, *copies[tier + 1 :])
    return _NONE if changed == _NONE else _ONE[tier] if changed == _ONE[tier] else changed
