"""The public face of the index: holders, batches in, matches out.

One thread uses it (the event loop). What engines announced lives in a token tree (`plain`) under per-holder names (`ledger`);
blocks that cannot be placed yet wait in `orphans`; what our own choices will cause lives in `guess`. The model belongs to the
holder and not to the root, so a view that filled up before the replica told its model stays valid when it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NewType

import numpy as np
import numpy.typing as npt

from radix.changes import Applied, Batch, Cleared, Event, NamespaceHint, Removed, Stored, Tier
from radix.dump import HeldBlock, digest_of, held_blocks
from radix.errors import RadixError
from radix.guess import Guesses
from radix.ledger import Ledger
from radix.match import TIERS, Int32Array, Match
from radix.namespace import Namespace
from radix.orphans import Orphans
from radix.plain import TOKEN_BYTES, Block, PlainTree, Root, Spread

GuessId = NewType("GuessId", int)
MAIN_GROUP = 0


@dataclass(frozen=True, slots=True)
class IndexStats:
    """How large the index is. blocks: held blocks, once per holder, tier and group. bytes: an estimate."""

    holders: int
    nodes: int
    blocks: int
    guesses: int
    orphans: int
    bytes: int


class _Holder:
    """One (replica, rank) and what it has."""

    __slots__ = ("block_tokens", "counting", "ledgers", "model", "number", "orphans", "rank", "replica")

    def __init__(self, number: int, replica: str, rank: int, model: str, *, counting: bool, orphan_limit: int) -> None:
        self.number = number
        self.replica = replica
        self.rank = rank
        self.model = model
        self.counting = counting
        self.block_tokens = 0  # of the main group, learned from its stores (FC-17); 0 until the first
        self.ledgers: dict[int, list[Ledger]] = {}  # by group, then by tier
        self.orphans = Orphans(orphan_limit, counting=counting)

    def ledger(self, group: int, tier: Tier) -> Ledger:
        ledgers = self.ledgers.get(group)
        if ledgers is None:
            base = self.number * TIERS
            ledgers = [Ledger(1 << base + place, counting=self.counting) for place in range(TIERS)]
            self.ledgers[group] = ledgers
        return ledgers[tier]

    def find(self, group: int, block_hash: int) -> Block | None:
        """Where a block lies, whichever tier has it."""
        for ledger in self.ledgers.get(group, ()):
            block = ledger.blocks.get(block_hash)
            if block is not None:
                return block
        return None


class Index:
    """Which holder has which token prefixes on which tier. Not for use from several threads."""

    def __init__(self, *, orphan_limit: int = 8192) -> None:
        """orphan_limit: waiting blocks per holder."""
        self._orphan_limit = orphan_limit
        self._tree = PlainTree()
        self._guesses = Guesses()
        self._holders: list[_Holder | None] = []  # by number
        self._numbers: dict[tuple[str, int], int] = {}
        self._model_bits: dict[str, int] = {}  # model -> members that serve it
        self._spread = Spread(0)

    def holder(self, replica: str, rank: int, *, model: str = "", counting: bool = True) -> int:
        """The number of a (replica, rank): the one it has, else the lowest free one.

        counting: copies of a block are announced one by one (vLLM); False where a store is repeated freely (SGLang).
        """
        found = self._numbers.get((replica, rank))
        if found is not None:
            return found
        number = next((i for i, holder in enumerate(self._holders) if holder is None), len(self._holders))
        if number == len(self._holders):
            self._holders.append(None)
            self._spread = Spread(len(self._holders))
        self._holders[number] = _Holder(number, replica, rank, "", counting=counting, orphan_limit=self._orphan_limit)
        self._numbers[replica, rank] = number
        self._serve(number, model)
        return number

    def owner(self, holder: int) -> tuple[str, int]:
        """The (replica, rank) behind a number; raises RadixError when it is not in use."""
        found = self._of(holder)
        return found.replica, found.rank

    def set_model(self, holder: int, model: str) -> None:
        """Say which model a holder serves; its view stays and is found under the new name."""
        found = self._of(holder)
        self._model_bits[found.model] &= ~(15 << holder * TIERS)
        if not self._model_bits[found.model]:
            del self._model_bits[found.model]
        self._serve(holder, model)

    def block_tokens(self, holder: int) -> int:
        """Tokens per block as its events say; 0 until the first store."""
        return self._of(holder).block_tokens

    def apply(self, holder: int, batch: Batch) -> Applied:
        """Apply the events of one batch in order; says what changed in the view."""
        owner = self._of(holder)
        applied = Applied(skipped=batch.skipped)
        for key, events in groupby(batch.events, _removal_key):
            if key is None:
                for event in events:
                    self._apply_one(owner, event, applied)
            else:  # engines evict block by block; neighbours leave the tree together
                hashes = [block_hash for event in events if isinstance(event, Removed) for block_hash in event.hashes]
                self._remove(owner, Tier(key[0]), key[1], hashes, applied)
        return applied

    def guess(self, holder: int, namespace: Namespace, tokens: Int32Array, expires_at: float) -> GuessId:
        """Credit a holder with a prompt it was just given, until its events say so, `withdraw`, or `expires_at`."""
        self._of(holder)
        return GuessId(self._guesses.add(holder, namespace, _as_query(tokens), expires_at))

    def withdraw(self, guess: GuessId) -> None:
        """Take a guess back, e.g. because the request failed; nothing happens when it has ended already."""
        self._guesses.withdraw(guess)

    def expire(self, now: float) -> int:
        """End the guesses whose time is over; returns their number."""
        return self._guesses.expire(now)

    def match(self, namespace: Namespace, tokens: Int32Array, *, now: float | None = None) -> Match:
        """How many leading tokens of a prompt each holder has; guesses that end at or before `now` do not count."""
        if now is not None:
            self._guesses.expire(now)
        query = _as_query(tokens).tobytes()
        depth = np.zeros((len(self._holders), TIERS), np.int32)
        guessed = np.zeros(len(self._holders), np.bool_)
        self._match_known(namespace, query, depth)
        if len(self._guesses):
            self._match_guesses(namespace, query, depth, guessed)
        return Match(depth, guessed)

    def clear(self, holder: int) -> int:
        """Forget what a holder has, its waiting blocks and its guesses; returns the number of blocks forgotten."""
        owner = self._of(holder)
        owner.orphans.clear()
        self._guesses.forget(holder)
        ledgers = [ledger for group in owner.ledgers.values() for ledger in group]
        owner.ledgers = {}
        return sum(ledger.clear(self._tree) for ledger in ledgers)

    def drop(self, holder: int) -> None:
        """Forget a holder altogether; its number may be given to another one."""
        owner = self._of(holder)
        self.clear(holder)
        self._holders[holder] = None
        del self._numbers[owner.replica, owner.rank]
        self._model_bits[owner.model] &= ~(15 << holder * TIERS)
        if not self._model_bits[owner.model]:
            del self._model_bits[owner.model]

    def dump(self, holder: int) -> Iterator[HeldBlock]:
        """Every block a holder has, in no particular order."""
        return held_blocks(self._of(holder).ledgers)

    def digest(self, holder: int) -> bytes:
        """16 bytes that are equal for equal views, however they came about."""
        return digest_of(self._of(holder).ledgers)

    def stats(self) -> IndexStats:
        """Sizes now; costs O(holders)."""
        holders = [holder for holder in self._holders if holder is not None]
        blocks = sum(len(ledger.blocks) for holder in holders for group in holder.ledgers.values() for ledger in group)
        orphans = sum(len(holder.orphans) for holder in holders)
        # Measured with tracemalloc on CPython 3.11: a node with its containers, a place, a dictionary entry with its hash.
        size = self._tree.nodes * 375 + self._tree.blocks * 56 + self._tree.token_bytes + blocks * 80 + orphans * 500
        return IndexStats(len(holders), self._tree.nodes, blocks, len(self._guesses), orphans, size)

    def _of(self, holder: int) -> _Holder:
        found = self._holders[holder] if 0 <= holder < len(self._holders) else None
        if found is None:
            raise RadixError(f"holder {holder} is not in use")
        return found

    def _serve(self, holder: int, model: str) -> None:
        self._of(holder).model = model
        self._model_bits[model] = self._model_bits.get(model, 0) | 15 << holder * TIERS

    def _apply_one(self, owner: _Holder, event: Event, applied: Applied) -> None:
        match event:
            case Stored():
                self._store(owner, event, applied)
            case Removed():
                self._remove(owner, event.tier, event.group, event.hashes, applied)
            case Cleared():
                applied.removed += self.clear(owner.number)

    def _store(self, owner: _Holder, event: Stored, applied: Applied) -> None:
        if not event.hashes:
            return  # every block of the run is masked: legal, and nothing to place
        fitting = _complete_blocks(event)
        if not fitting or _contradicts_itself(event):
            applied.skipped += 1
            return
        if fitting < len(event.hashes):
            applied.skipped += 1  # past its last full block (FC-17)
        data = event.tokens[: fitting * event.block_tokens].tobytes()
        if event.parent is None:
            root = self._tree.root(_without_model(event.namespace_hint), event.block_tokens, event.group)
            self._place(owner, event, root, None, event.hashes[:fitting], data, applied)
            return
        parent = owner.find(event.group, event.parent)
        if parent is None:
            applied.orphans += owner.orphans.add(event, event.parent, data)
        elif not _can_follow(parent.node.root, event.block_tokens, event.namespace_hint):
            applied.skipped += 1
        else:
            self._place(owner, event, parent.node.root, parent, event.hashes[:fitting], data, applied)

    def _place(
        self,
        owner: _Holder,
        event: Stored,
        root: Root,
        parent: Block | None,
        hashes: tuple[int, ...],
        data: bytes,
        applied: Applied,
    ) -> None:
        ledger = owner.ledger(event.group, event.tier)
        placed = ledger.store(self._tree, root, parent, hashes, data)
        applied.stored += placed.new
        applied.skipped += placed.rejected > 0
        if event.group == MAIN_GROUP:
            owner.block_tokens = event.block_tokens
            self._confirm(owner, root, parent.depth + 1 if parent is not None else 0, len(hashes))
        if len(owner.orphans):
            self._adopt(owner, event.group, hashes, applied)

    def _adopt(self, owner: _Holder, group: int, hashes: tuple[int, ...], applied: Applied) -> None:
        """Place the blocks that waited for these, then those that waited for them."""
        arrived = list(hashes)
        while arrived:
            parent_hash = arrived.pop()
            parent = owner.find(group, parent_hash) if owner.orphans.awaits(group, parent_hash) else None
            if parent is None:
                continue
            for orphan in owner.orphans.claim(group, parent_hash):
                if not _can_follow(parent.node.root, orphan.block_tokens, orphan.hint):
                    applied.skipped += 1
                    continue
                ledger = owner.ledger(group, orphan.tier)
                for _ in range(orphan.copies):
                    placed = ledger.store(self._tree, parent.node.root, parent, (orphan.hash,), orphan.data)
                    applied.stored += placed.new
                    applied.skipped += placed.rejected > 0
                arrived.append(orphan.hash)

    def _confirm(self, owner: _Holder, root: Root, start: int, count: int) -> None:
        """End the guesses whose last full block has just been stored, so that a later removal is believed at once."""
        for guess in self._guesses.of(owner.number):
            blocks = guess.tokens // root.block_tokens
            if not start < blocks <= start + count or guess.namespace.model != owner.model:
                continue
            if _without_model(guess.namespace) != root.namespace:
                continue
            rows = self._tree.walk(root, guess.prompt(), 15 << owner.number * TIERS, self._spread)
            if rows and rows[-1][1] >= blocks * root.width:
                self._guesses.withdraw(guess.number)

    def _remove(self, owner: _Holder, tier: Tier, group: int, hashes: list[int] | tuple[int, ...], applied: Applied) -> None:
        removed, unknown = owner.ledger(group, tier).remove(self._tree, hashes)
        applied.removed += removed
        for block_hash in unknown:
            if not owner.orphans.remove(tier, group, block_hash):
                applied.unknown += 1

    def _match_known(self, namespace: Namespace, query: bytes, depth: Int32Array) -> None:
        alive = self._model_bits.get(namespace.model, 0)
        flat = depth.reshape(-1)
        size = -(-len(flat) // 8)
        for root in self._tree.roots(_without_model(namespace)):
            if root.group != MAIN_GROUP:
                continue  # sparse groups alone make no credit
            for bits, matched in self._tree.walk(root, query, alive, self._spread):
                ended = np.unpackbits(np.frombuffer(bits.to_bytes(size, "little"), np.uint8), bitorder="little", count=len(flat))
                np.maximum(flat, ended * np.int32(matched // TOKEN_BYTES), out=flat)

    def _match_guesses(self, namespace: Namespace, query: bytes, depth: Int32Array, guessed: npt.NDArray[np.bool_]) -> None:
        for number, tokens in self._guesses.match(namespace, query).items():
            whole = self._of(number).block_tokens
            credit = tokens - tokens % whole if whole else tokens
            if credit > depth[number, 0]:
                guessed[number] = True
                np.maximum(depth[number], credit, out=depth[number])


def _removal_key(event: Event) -> tuple[int, int] | None:
    return (int(event.tier), event.group) if isinstance(event, Removed) else None


def _as_query(tokens: Int32Array) -> Int32Array:
    return np.ascontiguousarray(tokens, np.int32)


def _without_model(source: Namespace | NamespaceHint) -> Namespace:
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


def _can_follow(root: Root, block_tokens: int, hint: NamespaceHint) -> bool:
    """Whether blocks below a known parent belong to its root.

    An image that starts behind the first block would need a root of its own; equal placeholder tokens of two images must not
    look alike, so matching stops before it.
    """
    return block_tokens == root.block_tokens and set(hint.media) <= set(root.namespace.media)
