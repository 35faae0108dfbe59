"""What a store or a removal does to a holder: places its blocks in the tree, lets them wait, or keeps their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from radix.changes import Applied, NamespaceHint, Stored, Tier
from radix.holder import Holder
from radix.namespace import Namespace
from radix.nodes import TOKEN_BYTES, Block, Root, RootKey, above, tokens_of
from radix.orphans import Orphan
from radix.plain import PlainTree


class Writer:
    """Applies events to holders.

    confirm: called with the holder, the root, the block before (None at the root) and the number of blocks, for each run that
    makes credit. regroup: called when the parts of a holder's cache groups changed.
    """

    def __init__(
        self,
        tree: PlainTree,
        *,
        confirm: Callable[[Holder, Root, Block | None, int], None],
        regroup: Callable[[Holder], None],
    ) -> None:
        self._tree = tree
        self._confirm = confirm
        self._regroup = regroup

    def store(self, owner: Holder, event: Stored, applied: Applied) -> None:
        """A run of blocks was stored."""
        if owner.groups.learn(event):
            self._regroup(owner)
        if _contradicts_itself(event):
            applied.skipped += 1
            return
        if not len(event.tokens):
            for block_hash in event.hashes:
                self._hold(owner, event.tier, event.group, block_hash, applied)
            return
        sparse = owner.groups.sparse(event.group)
        fitting = 0 if sparse and owner.groups.has_full else _complete_blocks(event)
        if sparse:
            owner.groups.known[event.group].resize(event.tier, event.block_tokens)
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
        parent: Block | None = None
        if event.parent is None:
            lead = np.array(event.lead, np.int32).tobytes()
            root = self._tree.root(without_model(event.namespace_hint), RootKey(event.block_tokens, event.group, lead))
        else:
            parent = owner.find(event.group, event.parent)
            if parent is None:
                if owner.groups.sparse(event.group):
                    return 0
                applied.orphans += owner.orphans.add(event, event.parent, data)
                return fitting
            if not _can_follow(parent.node.root, event.block_tokens, len(event.lead)):
                return 0
            root, parent = self._below(parent, event.namespace_hint)
        self._place(owner, event.tier, root, parent, event.hashes[:fitting], data, applied)
        return fitting

    def _below(self, parent: Block, hint: NamespaceHint) -> tuple[Root, Block | None]:
        """Where the blocks behind a known parent belong: with it, unless they are the first to touch another image."""
        namespace = parent.node.root.namespace
        new = tuple([image for image in hint.media if image not in namespace.media])
        if not new:
            return parent.node.root, parent
        return self._tree.branch(parent, replace(namespace, media=namespace.media + new)), None

    def _place(
        self,
        owner: Holder,
        tier: Tier,
        root: Root,
        parent: Block | None,
        hashes: tuple[int, ...],
        data: bytes,
        applied: Applied,
    ) -> None:
        owner.groups.known[root.group].resize(tier, root.block_tokens)
        placed = owner.ledger(root.group, tier).store(self._tree, root, parent, hashes, data)
        applied.stored += placed.new
        applied.skipped += placed.rejected > 0
        if root.group in owner.groups.credit:
            self._confirm(owner, root, parent, len(hashes))
        if len(owner.loose):
            for block_hash in hashes:
                self._take_in(owner, root.group, block_hash, applied)
        if len(owner.orphans):
            self._adopt(owner, root.group, hashes, applied)

    def _hold(self, owner: Holder, tier: Tier, group: int, block_hash: int, applied: Applied) -> None:
        """A block without tokens: it lies where another tier has it, or is loose."""
        block = owner.find(group, block_hash)
        if block is None:
            owner.loose.add(tier, group, block_hash)
            return
        ledger = owner.ledger(group, tier)
        applied.stored += ledger.store(self._tree, block.node.root, above(block), (block_hash,), tokens_of(block)).new

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
            parent = owner.find(group, parent_hash) if owner.orphans.awaits(group, parent_hash) else None
            if parent is None:
                continue
            for orphan in owner.orphans.claim(group, parent_hash):
                self._adopt_one(owner, parent, orphan, applied)
                arrived.append(orphan.hash)

    def _adopt_one(self, owner: Holder, parent: Block, orphan: Orphan, applied: Applied) -> None:
        if not _can_follow(parent.node.root, orphan.block_tokens, orphan.lead):
            applied.skipped += 1
            for _ in range(orphan.copies):
                owner.loose.add(orphan.tier, orphan.group, orphan.hash)
            return
        for _ in range(orphan.copies):
            root, behind = self._below(parent, orphan.hint)
            placed = owner.ledger(orphan.group, orphan.tier).store(self._tree, root, behind, (orphan.hash,), orphan.data)
            applied.stored += placed.new
            applied.skipped += placed.rejected > 0
        if len(owner.loose):
            self._take_in(owner, orphan.group, orphan.hash, applied)

    def remove(self, owner: Holder, tier: Tier, group: int, hashes: Sequence[int], applied: Applied) -> None:
        """Blocks left a tier, once for each time they are named."""
        unknown = hashes
        if group in owner.ledgers:
            removed, unknown = owner.ledger(group, tier).remove(self._tree, hashes)
            applied.removed += removed
        for block_hash in unknown:
            if not owner.orphans.remove(tier, group, block_hash) and not owner.loose.remove(tier, group, block_hash):
                applied.unknown += 1


def without_model(source: Namespace | NamespaceHint) -> Namespace:
    """The root both sides look under: requests come with a namespace, first blocks with a hint (FC-20)."""
    return Namespace("", source.adapter or None, source.salt or None, source.media)


def _complete_blocks(event: Stored) -> int:
    """How many leading blocks can be placed; 0 for placeholders, and where masked blocks make hashes and tokens disagree."""
    if event.block_tokens <= 0:
        return 0
    whole = len(event.tokens) // event.block_tokens
    return whole if whole <= len(event.hashes) else 0


def _contradicts_itself(event: Stored) -> bool:
    return len(set(event.hashes)) != len(event.hashes) or event.parent in event.hashes


def _can_follow(root: Root, block_tokens: int, lead: int) -> bool:
    """Whether blocks of this size, with so many tokens before each run, can lie below a root."""
    return block_tokens == root.block_tokens and lead * TOKEN_BYTES == len(root.key_in_namespace.lead)
