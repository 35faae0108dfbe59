"""The public face of the index: holders, batches in, matches out.

One thread uses it (the event loop). What engines announced lives in a token tree (`plain`) under per-holder names (`ledger`);
blocks that cannot be placed yet wait in `orphans`, those without tokens are `loose`; what our own choices will cause lives in
`guess`. Of models with several cache groups a hit counts as far as all of them can serve it (`groups`). The model belongs to
the holder and not to the root, so a view that filled up before the replica told its model stays valid when it does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NewType

import numpy as np
import numpy.typing as npt

from radix.changes import Applied, Batch, Cleared, Event, Removed, Stored, Tier
from radix.dump import HeldBlock, digest_of, held_blocks
from radix.errors import RadixError
from radix.groups import Names, servable
from radix.guess import Guesses
from radix.holder import Holder
from radix.match import TIERS, Int32Array, Match
from radix.namespace import Namespace
from radix.nodes import TOKEN_BYTES, Block, Root
from radix.plain import PlainTree, Spread
from radix.writer import Writer, without_model

GuessId = NewType("GuessId", int)


@dataclass(frozen=True, slots=True)
class IndexStats:
    """How large the index is. blocks: held blocks with a place, once per holder, tier and group. bytes: an estimate."""

    holders: int
    nodes: int
    blocks: int
    guesses: int
    orphans: int
    bytes: int
    loose: int = 0


class Index:
    """Which holder has which token prefixes on which tier. Not for use from several threads."""

    def __init__(self, *, orphan_limit: int = 8192) -> None:
        """orphan_limit: waiting blocks per holder."""
        self._orphan_limit = orphan_limit
        self._tree = PlainTree()
        self._guesses = Guesses()
        self._holders: list[Holder | None] = []  # by number
        self._numbers: dict[tuple[str, int], int] = {}
        self._model_bits: dict[str, int] = {}  # model -> members that serve it
        self._plain_bits: dict[int, int] = {}  # cache group -> members whose longest match in it is their credit
        self._hybrids: set[int] = set()  # holders whose groups have to agree
        self._spread = Spread(0)
        self._writer = Writer(self._tree, confirm=self._confirm, regroup=self._sort)

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
        self._holders[number] = Holder(number, replica, rank, "", counting=counting, orphan_limit=self._orphan_limit)
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
        owner = self._of(holder)
        applied = Applied(skipped=batch.skipped)
        for key, events in groupby(batch.events, _removal_key):
            if key is None:
                for event in events:
                    self._apply_one(owner, event, applied)
            else:  # engines evict block by block; neighbours leave the tree together
                hashes = [block_hash for event in events if isinstance(event, Removed) for block_hash in event.hashes]
                self._writer.remove(owner, Tier(key[0]), key[1], hashes, applied)
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
        self._guesses.forget(holder)
        ledgers = owner.clear()
        self._sort(owner)
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
        owner = self._of(holder)
        return held_blocks(owner.ledgers, owner.loose)

    def digest(self, holder: int) -> bytes:
        """16 bytes that are equal for equal views, however they came about."""
        owner = self._of(holder)
        return digest_of(owner.ledgers, owner.loose)

    def stats(self) -> IndexStats:
        """Sizes now; costs O(holders)."""
        holders = [holder for holder in self._holders if holder is not None]
        blocks = sum(len(ledger.blocks) for holder in holders for group in holder.ledgers.values() for ledger in group)
        orphans = sum(len(holder.orphans) for holder in holders)
        loose = sum(len(holder.loose) for holder in holders)
        # Measured with tracemalloc on CPython 3.11: a node with its containers, a place, a dictionary entry with its hash.
        size = self._tree.nodes * 375 + self._tree.blocks * 56 + self._tree.token_bytes + blocks * 80 + orphans * 500
        return IndexStats(len(holders), self._tree.nodes, blocks, len(self._guesses), orphans, size + loose * 300, loose)

    def _of(self, holder: int) -> Holder:
        found = self._holders[holder] if 0 <= holder < len(self._holders) else None
        if found is None:
            raise RadixError(f"holder {holder} is not in use")
        return found

    def _serve(self, holder: int, model: str) -> None:
        self._of(holder).model = model
        self._model_bits[model] = self._model_bits.get(model, 0) | 15 << holder * TIERS

    def _apply_one(self, owner: Holder, event: Event, applied: Applied) -> None:
        match event:
            case Stored():
                self._writer.store(owner, event, applied)
            case Removed():
                self._writer.remove(owner, event.tier, event.group, event.hashes, applied)
            case Cleared():
                applied.removed += self.clear(owner.number)

    def _confirm(self, owner: Holder, root: Root, parent: Block | None, count: int) -> None:
        """End the guesses whose last full block has just been stored, so that a later removal is believed at once."""
        start = len(root.key_in_namespace.prefix) // root.width + (parent.depth + 1 if parent is not None else 0)
        for guess in self._guesses.of(owner.number):
            blocks = guess.tokens // root.block_tokens
            if not start < blocks <= start + count or guess.namespace.model != owner.model:
                continue
            if without_model(guess.namespace) != root.namespace:
                continue
            rows = self._tree.match(root, guess.prompt(), 15 << owner.number * TIERS, self._spread)
            if rows and rows[-1][1] >= blocks * root.width:
                self._guesses.withdraw(guess.number)

    def _match_known(self, namespace: Namespace, query: bytes, depth: Int32Array) -> None:
        alive = self._model_bits.get(namespace.model, 0)
        flat = depth.reshape(-1)
        size = -(-len(flat) // 8)
        roots = self._tree.roots(without_model(namespace))
        for root in roots:
            bits_of_group = alive & self._plain_bits.get(root.group, 0)
            for bits, matched in self._tree.match(root, query, bits_of_group, self._spread) if bits_of_group else ():
                ended = np.unpackbits(np.frombuffer(bits.to_bytes(size, "little"), np.uint8), bitorder="little", count=len(flat))
                np.maximum(flat, ended * np.int32(matched // TOKEN_BYTES), out=flat)
        for number in self._hybrids if roots else ():
            owner = self._of(number)
            if owner.model == namespace.model:
                depth[number] = self._hybrid_depth(owner, roots, query)

    def _hybrid_depth(self, owner: Holder, roots: Collection[Root], query: bytes) -> list[int]:
        """Per tier, how far all cache groups of a holder can serve a prompt."""
        groups = owner.groups
        walked = [(root, self._tiers_of(owner, root, query)) for root in roots if root.group in groups.credit]
        names = {root: _names_along(owner, self._tree.blocks_along(root, query)) for root, _ in walked}
        depths: list[int] = []
        for tier in Tier:
            if depths and not owner.uses(tier):
                depths.append(depths[-1])
                continue
            depth = dict.fromkeys(groups.credit, 0)
            for root, tiers in walked:
                depth[root.group] = max(depth[root.group], tiers[tier])
            has = partial(owner.has, tier=tier)
            points = [
                servable(groups, names[root], tiers[tier] // root.block_tokens, root.block_tokens, depth, has)
                for root, tiers in walked
            ]
            depths.append(max(points, default=0))
        return depths

    def _tiers_of(self, owner: Holder, root: Root, query: bytes) -> list[int]:
        """Matched tokens per tier of one holder below one root."""
        shift = owner.number * TIERS
        depths = [0] * TIERS
        for bits, matched in self._tree.match(root, query, 15 << shift, self._spread):
            for tier in Tier:
                if bits >> shift + tier & 1:
                    depths[tier] = matched // TOKEN_BYTES
        return depths

    def _sort(self, owner: Holder) -> None:
        """Remember how the credit of a holder is found, after its groups changed."""
        bits = 15 << owner.number * TIERS
        self._plain_bits = {group: left for group, members in self._plain_bits.items() if (left := members & ~bits)}
        self._hybrids.discard(owner.number)
        if not owner.groups.plain:
            self._hybrids.add(owner.number)
            return
        for group in owner.groups.credit:
            self._plain_bits[group] = self._plain_bits.get(group, 0) | bits

    def _match_guesses(self, namespace: Namespace, query: bytes, depth: Int32Array, guessed: npt.NDArray[np.bool_]) -> None:
        for number, tokens in self._guesses.match(namespace, query).items():
            whole = self._of(number).groups.block_tokens
            credit = tokens - tokens % whole if whole else tokens
            if credit > depth[number, 0]:
                guessed[number] = True
                np.maximum(depth[number], credit, out=depth[number])


def _names_along(owner: Holder, blocks: list[Block]) -> Names:
    """Looks up the hashes of single blocks; few are asked for, and those for every tier."""
    known: dict[int, tuple[int, ...]] = {}

    def names(at: int) -> tuple[int, ...]:
        if at not in known:
            known[at] = owner.names(blocks[at])
        return known[at]

    return names


def _removal_key(event: Event) -> tuple[int, int] | None:
    return (int(event.tier), event.group) if isinstance(event, Removed) else None


def _as_query(tokens: Int32Array) -> Int32Array:
    return np.ascontiguousarray(tokens, np.int32)
