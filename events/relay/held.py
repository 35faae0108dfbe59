"""What one rank has, as its events told it, so that it can be told again to someone who joins late.

A view in an index knows places; this knows announcements: by which store each block that has a place came. It decides as
`radix.writer` does what gets a place, what waits for a parent (per tier: a copy may wait while others have their place) and what
is known by name only. A removed block keeps its place as long as blocks behind it have theirs: a hole, told and then removed.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

from events.relay.inventory import Inventory, Kept, KeptGroup, key_of, parent_key, store_of
from radix.changes import Applied, Batch, Cleared, Removed, Stored, Tier
from radix.groups import Groups
from radix.holder import LOOSE_PER_ORPHAN
from radix.loose import Loose
from radix.orphans import Orphan, Orphans
from radix.presence import Bits
from radix.writer import complete_blocks, contradicts_itself

_NONE = (0,) * len(Tier)
_ONE = tuple(tuple(int(tier is at) for at in Tier) for tier in Tier)


class _Block:
    """One block with a place. run, at: the store that brought its tokens and its place there.

    copies: per tier; none in a hole. children: blocks with a place that name it as parent.
    """

    __slots__ = ("at", "children", "copies", "run")

    def __init__(self, run: Stored, at: int) -> None:
        self.run = run
        self.at = at
        self.copies: tuple[int, ...] = _NONE
        self.children = 0


class Held:
    """The announcements behind one rank's view."""

    def __init__(self, *, counting: bool = True, orphan_limit: int = 8192) -> None:
        """counting: copies of a block are announced one by one (vLLM); False where a store is repeated freely (SGLang).

        orphan_limit: of waiting blocks, as that of an `Index`.
        """
        self.counting = counting
        self._blocks: dict[int, _Block] = {}  # by key, parents before their children
        # Nobody asks who of several has a block here.
        self._orphans = Orphans(orphan_limit, counting=counting, holder=0, bits=Bits())
        self._loose = Loose(orphan_limit * LOOSE_PER_ORPHAN, counting=counting, holder=0, bits=Bits())
        self._groups = Groups()

    def __len__(self) -> int:
        """Blocks, with those kept for the sake of others."""
        return len(self._blocks) + len(self._orphans) + len(self._loose)

    @property
    def block_tokens(self) -> int:
        """Tokens per block; 0 before the first store."""
        return self._groups.block_tokens

    def apply(self, batch: Batch) -> Applied:
        """Take in one batch."""
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
        count = len(self)
        self._blocks = {}
        self._orphans.clear()
        self._loose.clear()
        self._groups = Groups()
        return count

    def inventory(self) -> Inventory:
        """What there is now; about 0.3 us a block."""
        collecting = gc.isenabled()
        gc.disable()  # so many new objects at once would have it look through all the old ones, for three times the time
        try:
            blocks = tuple([Kept(key, it.run, it.at, it.copies) for key, it in self._blocks.items()])
            waiting = tuple([(orphan, orphan.copies) for orphan in self._orphans])
            loose = tuple(self._loose)
        finally:
            if collecting:
                gc.enable()
        groups = [KeptGroup(number, it.kind, it.window_tokens, dict(it.sizes)) for number, it in self._groups.known.items()]
        return Inventory(blocks, tuple(groups), waiting, loose)

    def _store(self, event: Stored, applied: Applied) -> None:
        groups = self._groups
        groups.learn(event)
        if contradicts_itself(event):
            applied.skipped += 1
            return
        if not len(event.tokens):
            for block_hash in event.hashes:
                self._hold(event.tier, event.group, block_hash, applied)
            return
        sparse = groups.sparse(event.group)
        fitting = 0 if sparse and groups.has_full else complete_blocks(event)
        if sparse:
            groups.known[event.group].resize(event.tier, event.block_tokens)
        placed = self._settle(event, fitting, applied) if fitting else 0
        if placed < len(event.hashes):
            applied.skipped += not sparse
            for block_hash in event.hashes[placed:]:
                self._loose.add(event.tier, event.group, block_hash)

    def _settle(self, event: Stored, fitting: int, applied: Applied) -> int:
        """Place the leading blocks of a store, or let them wait for their parent; returns how many that were."""
        size, group = event.block_tokens, self._groups.known[event.group]
        if size < group.sizes.get(event.tier, 0):
            return 0  # the short tail of a prompt
        if event.parent is not None:
            parent = self._find(event.group, event.parent)
            if parent is None:
                if self._groups.sparse(event.group):
                    return 0
                return self._wait(event, event.parent, fitting, applied)
            if not _can_follow(parent, size, len(event.lead)):
                return 0
        group.resize(event.tier, size)
        for at in range(fitting):
            self._place(event, at, event.tier, applied)
        hashes = event.hashes[:fitting]
        if len(self._loose):
            for block_hash in hashes:
                self._take_in(event.group, block_hash, applied)
        if len(self._orphans):
            self._adopt(event.group, hashes, applied)
        return fitting

    def _wait(self, event: Stored, parent: int, fitting: int, applied: Applied) -> int:
        """Keep the leading blocks of a store for later, up to the first that has a place: what lies behind that need not wait."""
        width = event.block_tokens
        found = (at for at in range(fitting) if self._find(event.group, event.hashes[at]) is not None)
        waiting = next(found, fitting - 1) + 1
        applied.orphans += self._orphans.add(event, parent, event.tokens[: waiting * width].tobytes())
        if waiting == fitting:
            return fitting
        rest = replace(
            event, hashes=event.hashes[waiting:], parent=event.hashes[waiting - 1], tokens=event.tokens[waiting * width :]
        )
        return waiting + self._settle(rest, fitting - waiting, applied)

    def _place(self, run: Stored, at: int, tier: Tier, applied: Applied) -> None:
        """One block of a store; its parent is here."""
        key = key_of(run.group, run.hashes[at])
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(run, at)
            parent = parent_key(key, run, at)
            if parent is not None:
                self._blocks[parent].children += 1
        self._copy(block, tier, applied)

    def _copy(self, block: _Block, tier: Tier, applied: Applied) -> None:
        applied.stored += not block.copies[tier]
        if block.copies is _NONE:
            block.copies = _ONE[tier]
        elif self.counting or not block.copies[tier]:
            block.copies = _changed(block.copies, tier, 1)

    def _find(self, group: int, block_hash: int) -> _Block | None:
        """A block with a place that is on any tier."""
        block = self._blocks.get(key_of(group, block_hash))
        return None if block is None or block.copies is _NONE else block

    def _hold(self, tier: Tier, group: int, block_hash: int, applied: Applied) -> None:
        """A block without tokens: it lies where another tier has it, or is loose."""
        block = self._find(group, block_hash)
        if block is None:
            self._loose.add(tier, group, block_hash)
        else:
            self._copy(block, tier, applied)

    def _take_in(self, group: int, block_hash: int, applied: Applied) -> None:
        """Give loose blocks of this name the place it has now."""
        if self._loose.awaits(group, block_hash):
            for tier, copies in self._loose.claim(group, block_hash):
                for _ in range(copies):
                    self._hold(tier, group, block_hash, applied)

    def _adopt(self, group: int, hashes: Sequence[int], applied: Applied) -> None:
        """Place the blocks that waited for these, then those that waited for them."""
        arrived = list(hashes)
        while arrived:
            parent = arrived.pop()
            above = self._find(group, parent) if self._orphans.awaits(group, parent) else None
            if above is None:
                continue
            for orphan in self._orphans.claim(group, parent):
                self._adopt_one(orphan, above, applied)
                arrived.append(orphan.hash)

    def _adopt_one(self, orphan: Orphan, parent: _Block, applied: Applied) -> None:
        if not _can_follow(parent, orphan.block_tokens, orphan.lead):
            applied.skipped += 1
            for _ in range(orphan.copies):
                self._loose.add(orphan.tier, orphan.group, orphan.hash)
            return
        run = store_of((orphan,))
        for _ in range(orphan.copies):
            self._place(run, 0, orphan.tier, applied)
        if len(self._loose):
            self._take_in(orphan.group, orphan.hash, applied)

    def _remove(self, event: Removed, applied: Applied) -> None:
        tier, group = event.tier, event.group
        for block_hash in event.hashes:
            key = key_of(group, block_hash)
            block = self._blocks.get(key)
            if block is None or not block.copies[tier]:
                if not self._orphans.remove(tier, group, block_hash) and not self._loose.remove(tier, group, block_hash):
                    applied.unknown += 1
                continue
            block.copies = _changed(block.copies, tier, -1)
            applied.removed += not block.copies[tier]
            if block.copies is _NONE and not block.children:
                self._forget(key, block)

    def _forget(self, key: int, block: _Block) -> None:
        """Take a block out, and whatever was kept only for its sake."""
        while True:
            del self._blocks[key]
            parent = parent_key(key, block.run, block.at)
            if parent is None:
                return
            above = self._blocks[parent]
            above.children -= 1
            if above.children or above.copies is not _NONE:
                return
            key, block = parent, above


def _can_follow(parent: _Block, block_tokens: int, lead: int) -> bool:
    """Whether blocks of this size, with so many tokens before each run, can lie behind a block."""
    return block_tokens == parent.run.block_tokens and lead == len(parent.run.lead)


def _changed(copies: tuple[int, ...], tier: Tier, by: int) -> tuple[int, ...]:
    """With one copy more or less on a tier; the usual results are shared objects."""
    left = copies[tier] + by
    if by < 0 and copies is _ONE[tier]:
        return _NONE
    changed = (*copies[:tier], left, *copies[tier + 1 :])
    return _NONE if changed == _NONE else _ONE[tier] if changed == _ONE[tier] else changed
