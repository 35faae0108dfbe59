"""The public face of the index: holders, batches in, matches out.

One thread uses it (the event loop). What engines announced lives in a token `tree` (`plain` objects, or `flat` memory worked by
compiled code) under per-holder names; blocks that cannot be placed yet wait in `orphans`, those without tokens are `loose`; what
our own choices will cause lives in `guess`. Of models with several cache groups a hit counts as far as all of them can serve it
(`groups`). The model belongs to the holder and not to the root, so a view that filled up before the replica told its model stays
valid when it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NewType

import numpy as np

from radix.changes import Applied, Batch, Cleared, Event, Heard, Removed, Stored, Tier
from radix.dump import HeldBlock, digest_of, held_blocks
from radix.errors import RadixError
from radix.guess import Guess, Guesses
from radix.holder import Holder
from radix.lookup import Lookup
from radix.match import TIERS, Int32Array, Match
from radix.moving import move
from radix.namespace import Namespace
from radix.plain import PlainTree
from radix.presence import Presence
from radix.tree import AnyTree, Members, Root, width_of
from radix.writer import Writer

if TYPE_CHECKING:
    from radix.budget import Budget
    from radix.flat import FlatTree
    from radix.payloads import Decode, Payloads

GuessId = NewType("GuessId", int)


@dataclass(frozen=True, slots=True)
class IndexStats:
    """How large the index is.

    blocks: held blocks with a place, once per holder, tier and group. bytes: in use; an estimate while the plain tree serves.
    evicted: hashes given up for the byte budget, in all.
    """

    holders: int
    nodes: int
    blocks: int
    guesses: int
    orphans: int
    bytes: int
    loose: int = 0
    budget_bytes: int = 0
    evicted: int = 0


class Index:
    """Which holder has which token prefixes on which tier. Not for use from several threads."""

    def __init__(self, *, orphan_limit: int = 8192, budget_bytes: int = 1 << 30) -> None:
        """orphan_limit: waiting blocks per holder. budget_bytes: for blocks of all holders, kept by the compiled tree."""
        self._budget_bytes = budget_bytes
        self._budget: Budget | None = None
        self._orphan_limit = orphan_limit
        self._trees: list[AnyTree] = [PlainTree()]  # the last one takes new holders
        self._payloads: Payloads | None = None  # of the last tree, where it takes bytes
        self._guesses = Guesses()
        self._holders: list[Holder | None] = []  # by number
        self._numbers: dict[tuple[str, int], int] = {}
        self._presence = Presence()
        self._lookup = Lookup(self._trees, self._presence)
        self._writer = Writer(confirm=self._confirm, regroup=self._lookup.forget)

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
        self._holders[number] = Holder(
            number,
            replica,
            rank,
            self._trees[-1],
            self._presence,
            counting=counting,
            orphan_limit=self._orphan_limit,
            model=model,
        )
        self._numbers[replica, rank] = number
        self._lookup.forget()
        return number

    def work_on(self, tree: FlatTree) -> None:
        """Let new holders lie in compiled memory from now on; `move` takes the others there."""
        from radix.budget import Budget
        from radix.payloads import Payloads  # both bring Numba, which a plain index goes without

        self._budget = Budget(tree, self._budget_bytes)
        self._trees.append(tree)
        self._payloads = Payloads(tree, apply=self._apply, stored=self._confirm)
        self._lookup.forget()

    def move(self) -> bool:
        """Take one holder's view to the newest tree; False when all are there, and the old tree is gone."""
        behind = next((holder for holder in self._holders if holder is not None and holder.tree is not self._trees[-1]), None)
        if behind is None:
            del self._trees[:-1]
        else:
            move(behind, self._trees[-1])
            if self._budget is not None:
                self._budget.keep(self.holders())
        self._lookup.forget()
        return behind is not None

    def owner(self, holder: int) -> tuple[str, int]:
        """The (replica, rank) behind a number; raises RadixError when it is not in use."""
        found = self._of(holder)
        return found.replica, found.rank

    def set_model(self, holder: int, model: str) -> None:
        """Say which model a holder serves; its view stays and is found under the new name."""
        self._of(holder).model = model
        self._lookup.forget()

    def set_counting(self, holder: int, counting: bool) -> None:
        """Say how a holder's engine announces copies (see `holder`); its view starts anew when that changes."""
        owner = self._of(holder)
        if owner.counting != counting:
            self.clear(holder)
            owner.count_copies(counting)

    def block_tokens(self, holder: int) -> int:
        """Tokens per block as its events say; 0 until the first store."""
        return self._of(holder).groups.block_tokens

    def apply(self, holder: int, batch: Batch) -> Applied:
        """Apply the events of one batch in order; says what changed in the view."""
        applied = Applied(skipped=batch.skipped)
        self._apply(self._of(holder), batch.events, applied)
        self._grew(applied.stored)
        return applied

    def apply_payloads(self, holder: int, payloads: Sequence[bytes], decode: Decode, heard: Heard) -> None:
        """Apply what an engine sent, as bytes: the same as `apply` of what `decode` makes of each, and mostly faster.

        decode: called with the place in `payloads` and the payload. heard: empty; says afterwards how many payloads were applied,
        which are the first ones: at least one, and all where that is quick. Raises what `decode` and `apply` raise for the one
        behind those; then some of its events may have been applied, and the view can no longer be believed.
        """
        owner = self._of(holder)
        if self._payloads is not None and owner.tree is self._trees[-1]:
            self._payloads.take(owner, payloads, decode, heard, tell=self._guesses.any_of(holder))
            self._grew(heard.applied.stored)
        else:
            batch = decode(0, payloads[0])
            heard.add(batch, self.apply(holder, batch))

    def blocks(self, holder: int) -> int:
        """Blocks of a holder with a place, once per tier and group."""
        return sum(len(ledger) for ledgers in self._of(holder).ledgers.values() for ledger in ledgers)

    def trimmed(self, holder: int) -> int:
        """Hashes of a holder that were given up for the byte budget since its view began."""
        return self._of(holder).trimmed

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
        query = _as_query(tokens)
        depth = np.zeros((len(self._holders), TIERS), np.int32)
        guessed = np.zeros(len(self._holders), np.bool_)
        known = self._lookup.match(namespace, query, self.holders(), depth)
        if len(self._guesses):
            self._guesses.credit(namespace, query.tobytes(), self._lookup.block_tokens(self._holders), depth, guessed)
        return Match(depth, guessed, known)

    def clear(self, holder: int) -> int:
        """Forget what a holder has, its waiting blocks and its guesses; returns the number of blocks forgotten."""
        owner = self._of(holder)
        self._guesses.forget(holder)
        ledgers = owner.clear()
        self._lookup.cleared(holder)
        if self._payloads is not None:
            self._payloads.forget(holder)
        return sum(ledger.clear() for ledger in ledgers)

    def drop(self, holder: int) -> None:
        """Forget a holder altogether; its number may be given to another one."""
        owner = self._of(holder)
        self.clear(holder)
        self._holders[holder] = None
        del self._numbers[owner.replica, owner.rank]
        self._lookup.forget()

    def holders(self) -> Iterator[Holder]:
        """All there are, by number."""
        return filter(None, self._holders)

    def dump(self, holder: int) -> Iterator[HeldBlock]:
        """Every block a holder has, in no particular order."""
        return held_blocks(self._of(holder))

    def digest(self, holder: int) -> bytes:
        """16 bytes that are equal for equal views, however they came about."""
        return digest_of(self._of(holder))

    def trim(self) -> None:
        """Give memory that is free inside back to the system; for now and then, since pages have to be found anew when used."""
        if self._budget is not None:
            self._budget.trim()

    def stats(self) -> IndexStats:
        """Sizes now; costs O(holders)."""
        holders = [holder for holder in self._holders if holder is not None]
        blocks = sum(self.blocks(holder.number) for holder in holders)
        orphans = sum(len(holder.orphans) for holder in holders)
        loose = sum(len(holder.loose) for holder in holders)
        trees = [tree.sizes() for tree in self._trees]
        nodes, size = sum(tree.nodes for tree in trees), sum(tree.bytes for tree in trees)
        size += orphans * 500 + loose * 300
        evicted = self._budget.evicted if self._budget is not None else 0
        return IndexStats(len(holders), nodes, blocks, len(self._guesses), orphans, size, loose, self._budget_bytes, evicted)

    def _of(self, holder: int) -> Holder:
        found = self._holders[holder] if 0 <= holder < len(self._holders) else None
        if found is None:
            raise RadixError(f"holder {holder} is not in use")
        return found

    def _grew(self, blocks: int) -> None:
        if self._budget is not None and self._budget.grew(blocks):
            self._budget.keep(filter(None, self._holders))

    def _apply(self, owner: Holder, batch: Sequence[Event], applied: Applied) -> None:
        if self._payloads is not None:
            self._payloads.forget(owner.number)
        for key, events in groupby(batch, _removal_key):
            if key is None:
                for event in events:
                    self._apply_one(owner, event, applied)
            else:  # engines evict block by block; neighbours leave the tree together
                hashes = [block_hash for event in events if isinstance(event, Removed) for block_hash in event.hashes]
                self._writer.remove(owner, Tier(key[0]), key[1], hashes, applied)

    def _apply_one(self, owner: Holder, event: Event, applied: Applied) -> None:
        match event:
            case Stored():
                self._writer.store(owner, event, applied)
            case Removed():
                self._writer.remove(owner, event.tier, event.group, event.hashes, applied)
            case Cleared():
                applied.removed += self.clear(owner.number)

    def _confirm(self, owner: Holder, root: Root, before: int, count: int) -> None:
        """End the guesses whose last full block has just been stored, so that a later removal is believed at once."""
        start = len(root.key_in_namespace.prefix) // width_of(root) + before
        for guess in self._guesses.of(owner.number):
            blocks = guess.tokens // root.block_tokens
            if not start < blocks <= start + count or guess.namespace.model != owner.model:
                continue
            if guess.namespace.without_model() == root.namespace and self._holds(owner, root, guess) >= blocks:
                self._guesses.withdraw(guess.number)

    def _holds(self, owner: Holder, root: Root, guess: Guess) -> int:
        """Blocks of a guessed prompt that are on any tier of the holder."""
        reached = np.zeros((owner.number + 1, TIERS), np.int32)
        owner.tree.depths(root, np.frombuffer(guess.prompt(), np.int32), Members((owner.number,)), reached)
        return int(reached[owner.number, -1]) // root.block_tokens


def _removal_key(event: Event) -> tuple[int, int] | None:
    return (int(event.tier), event.group) if isinstance(event, Removed) else None


def _as_query(tokens: Int32Array) -> Int32Array:
    return np.ascontiguousarray(tokens, np.int32)
