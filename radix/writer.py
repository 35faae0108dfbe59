"""What a store or a removal does to a holder: places its blocks in the tree, lets them wait, or keeps their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from radix.changes import Applied, NamespaceHint, Stored, Tier
from radix.holder import Holder
from radix.namespace import Namespace
from radix.orphans import Orphan
from radix.tree import TOKEN_BYTES, Place, Root, RootKey, tokens_of

_MOST_BLOCK_TOKENS = 65_535  # what a tree has room for; engines use up to a few thousand


class Writer:
    """Applies events to holders.

    confirm: called with the holder, the root, the number of blocks before and of those stored, for each run that makes credit.
    regroup: called when the parts of a holder's cache groups changed.
    """

    def __init__(self, *, confirm: Callable[[Holder, Root, int, int], None], regroup: Callable[[], None]) -> None:
        self._confirm = confirm
        self._regroup = regroup

    def store(self, owner: Holder, event: Stored, applied: Applied) -> None:
        """A run of blocks was stored."""
        if owner.groups.learn(event):
            self._regroup()
        if contradicts_itself(event):
            applied.skipped += 1
            return
        if not len(event.tokens):
            for block_hash in event.hashes:
                self._hold(owner, event.tier, event.group, block_hash, applied)
            return
        sparse = owner.groups.sparse(event.group)
        fitting = 0 if sparse and owner.groups.has_full else complete_blocks(event)
        if sparse:
            self._resize(owner, event.group, event.tier, event.block_tokens)
        placed = self._settle(owner, event, fitting, applied) if fitting else 0
        if placed < len(event.hashes):
            applied.skipped += not sparse
            for block_hash in event.hashes[placed:]:
                owner.loose.add(event.tier, event.group, block_hash)

    def _settle(self, owner: Holder, event: Stored, fitting: int, applied: Applied) -> int:
        """Place the leading blocks of a store, or let them wait for their parent; returns how many that were."""
        if event.block_tokens < owner.groups.known[event.group].sizes.get(event.tier, 0):
            return 0  # the short tail of a prompt, or part of a block: an engine gives back whole blocks only
        data = event.tokens[: fitting * event.block_tokens].tobytes()
        parent: Place | None = None
        root: Root
        if event.parent is None:
            lead = np.array(event.lead, np.int32).tobytes()
            root = owner.tree.root(_namespace_of(event.namespace_hint), RootKey(event.block_tokens, event.group, lead))
        else:
            parent = owner.find(event.group, event.parent)
            if parent is None:
                if owner.groups.sparse(event.group):
                    return 0
                return self._wait(owner, event, event.parent, fitting, applied)
            if not _can_follow(parent.root, event.block_tokens, len(event.lead)):
                return 0
            root, parent = _below(owner, parent, event.namespace_hint)
        self._place(owner, event.tier, root, parent, event.hashes[:fitting], data, applied)
        return fitting

    def _wait(self, owner: Holder, event: Stored, parent: int, fitting: int, applied: Applied) -> int:
        """Keep the leading blocks of a store for later, up to the first that has a place: what lies behind that need not wait."""
        width = event.block_tokens
        found = (at for at in range(fitting) if owner.find(event.group, event.hashes[at]) is not None)
        waiting = next(found, fitting - 1) + 1
        applied.orphans += owner.orphans.add(event, parent, event.tokens[: waiting * width].tobytes())
        if waiting == fitting:
            return fitting
        rest = replace(
            event, hashes=event.hashes[waiting:], parent=event.hashes[waiting - 1], tokens=event.tokens[waiting * width :]
        )
        return waiting + self._settle(owner, rest, fitting - waiting, applied)

    def _place(
        self,
        owner: Holder,
        tier: Tier,
        root: Root,
        parent: Place | None,
        hashes: tuple[int, ...],
        data: bytes,
        applied: Applied,
    ) -> None:
        self._resize(owner, root.group, tier, root.block_tokens)
        before = 0 if parent is None else parent.depth + 1
        placed = owner.ledger(root.group, tier).store(root, parent, hashes, data)
        applied.stored += placed.new
        applied.skipped += placed.rejected > 0
        if root.group in owner.groups.credit:
            self._confirm(owner, root, before, len(hashes))
        if len(owner.loose):
            for block_hash in hashes:
                self._take_in(owner, root.group, block_hash, applied)
        if len(owner.orphans):
            self._adopt(owner, root.group, hashes, applied)

    def _resize(self, owner: Holder, group: int, tier: Tier, block_tokens: int) -> None:
        if owner.groups.known[group].resize(tier, block_tokens):
            self._regroup()

    def _hold(self, owner: Holder, tier: Tier, group: int, block_hash: int, applied: Applied) -> None:
        """A block without tokens: it lies where another tier has it, or is loose."""
        place = owner.find(group, block_hash)
        if place is None:
            owner.loose.add(tier, group, block_hash)
            return
        tree, ledger = owner.tree, owner.ledger(group, tier)
        applied.stored += ledger.store(place.root, tree.above(place), (block_hash,), tokens_of(tree, place)).new

    def _take_in(self, owner: Holder, group: int, block_hash: int, applied: Applied) -> None:
        """Give loose blocks of this name the place it has now."""
        if not owner.loose.awaits(group, block_hash):
            return
        for tier, copies in owner.loose.claim(group, block_hash):
            for _ in range(copies):
                self._hold(owner, tier, group, block_hash, applied)

    def _adopt(self, owner: Holder, group: int, hashes: tuple[int, ...], applied: Applied) -> None:
        """Place the blocks that waited for these, then those that waited for them."""
        arrived = list(hashes)
        while arrived:
            parent_hash = arrived.pop()
            if not owner.orphans.awaits(group, parent_hash) or owner.find(group, parent_hash) is None:
                continue
            for orphan in owner.orphans.claim(group, parent_hash):
                self._adopt_one(owner, orphan, applied)
                arrived.append(orphan.hash)

    def _adopt_one(self, owner: Holder, orphan: Orphan, applied: Applied) -> None:
        parent = owner.find(orphan.group, orphan.parent)
        assert parent is not None
        if not _can_follow(parent.root, orphan.block_tokens, orphan.lead):
            applied.skipped += 1
            for _ in range(orphan.copies):
                owner.loose.add(orphan.tier, orphan.group, orphan.hash)
            return
        for _ in range(orphan.copies):
            parent = owner.find(orphan.group, orphan.parent)  # a place is good until the next change
            assert parent is not None
            root, behind = _below(owner, parent, orphan.hint)
            placed = owner.ledger(orphan.group, orphan.tier).store(root, behind, (orphan.hash,), orphan.data)
            applied.stored += placed.new
            applied.skipped += placed.rejected > 0
        if len(owner.loose):
            self._take_in(owner, orphan.group, orphan.hash, applied)

    def remove(self, owner: Holder, tier: Tier, group: int, hashes: Sequence[int], applied: Applied) -> None:
        """Blocks left a tier, once for each time they are named."""
        unknown = hashes
        if group in owner.ledgers:
            removed, unknown = owner.ledger(group, tier).remove(hashes)
            applied.removed += removed
        for block_hash in unknown:
            if not owner.orphans.remove(tier, group, block_hash) and not owner.loose.remove(tier, group, block_hash):
                applied.unknown += 1


def _namespace_of(hint: NamespaceHint) -> Namespace:
    return Namespace("", hint.adapter or None, hint.salt or None, hint.media)


def _below(owner: Holder, parent: Place, hint: NamespaceHint) -> tuple[Root, Place | None]:
    """Where the blocks behind a known parent belong: with it, unless they are the first to touch another image."""
    namespace = parent.root.namespace
    new = tuple([image for image in hint.media if image not in namespace.media])
    if not new:
        return parent.root, parent
    return owner.tree.branch(parent, replace(namespace, media=namespace.media + new)), None


def complete_blocks(event: Stored) -> int:
    """How many leading blocks can be placed; 0 for placeholders, and where masked blocks make hashes and tokens disagree."""
    if not 0 < event.block_tokens <= _MOST_BLOCK_TOKENS:
        return 0
    whole = len(event.tokens) // event.block_tokens
    return whole if whole <= len(event.hashes) else 0


def contradicts_itself(event: Stored) -> bool:
    """Whether a store names a block twice, or as its own parent."""
    return len(set(event.hashes)) != len(event.hashes) or event.parent in event.hashes


def _can_follow(root: Root, block_tokens: int, lead: int) -> bool:
    """Whether blocks of this size, with so many tokens before each run, can lie below a root."""
    return block_tokens == root.block_tokens and lead * TOKEN_BYTES == len(root.key_in_namespace.lead)
