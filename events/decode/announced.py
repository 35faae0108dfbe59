"""What a message says, in the engine's own cut: one entry per event, before it becomes changes of the index.

The index wants runs of blocks that have one namespace and tokens it can compare with a prompt; `changes_of` makes them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from reprlib import repr as shown

import numpy as np

from events.decode.fields import Malformed
from events.decode.namespaces import Namespaces
from radix.changes import Batch, Cleared, Event, GroupKind, NamespaceHint, Removed, Stored, Tier
from radix.match import Int32Array

_INT32 = 2**31


@dataclass(frozen=True, slots=True)
class Announced:
    """One store as it was announced.

    tokens: the items of the event's list: ids, or pairs, or strings. keys: its fields that separate namespaces, by wire name.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: list[object]
    block_tokens: int
    tier: Tier
    group: int = 0
    kind: GroupKind = GroupKind.UNSTATED
    window_tokens: int = 0
    keys: Mapping[str, object] = field(default_factory=dict)

    @property
    def ids(self) -> list[int] | None:
        """The token ids; None where the engine sent pairs or strings."""
        ids = [token for token in self.tokens if isinstance(token, int)]
        return ids if len(ids) == len(self.tokens) else None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. rank, seq, ts, skipped: as `Batch` has them."""

    rank: int | None
    seq: int
    ts: float
    events: tuple[Announced | Removed | Cleared, ...]
    skipped: int = 0

    def batch(self) -> Batch:
        """As changes of the index; a store that contradicts itself is skipped and counted."""
        events: list[Event] = []
        skipped = self.skipped
        for event in self.events:
            if not isinstance(event, Announced):
                events.append(event)
                continue
            try:
                events.extend(changes_of(event))
            except Malformed:
                skipped += 1
        return Batch(self.rank, self.seq, self.ts, tuple(events), skipped)


@dataclass(frozen=True, slots=True)
class _Line:
    """Tokens as the index compares them. ids: `lead` tokens, then those of the blocks. opaque: blocks no prompt can have."""

    ids: Int32Array
    lead: int = 0
    opaque: frozenset[int] = frozenset()


def changes_of(store: Announced) -> Iterator[Stored]:
    """One `Stored` per stretch of blocks with one namespace; raises Malformed."""
    line = _line_of(store)
    size, count, ids, lead = store.block_tokens, len(store.hashes), line.ids, line.lead
    namespaces = Namespaces(store.keys, starts_prompt=store.parent is None)
    runs = namespaces.runs(count, line.opaque)
    if len(runs) == 1 or size <= 0 or (len(ids) - lead) // size > count:  # the last: masked blocks, nothing lines up
        yield _stored(store, store.hashes, store.parent, ids[lead:], ids[:lead], runs[0][1])
        return
    ends = [start for start, _ in runs[1:]] + [count]
    for (start, hint), end in zip(runs, ends, strict=True):
        parent = store.hashes[start - 1] if start else store.parent
        first = start * size
        tokens = ids[lead + first : lead + end * size]
        yield _stored(store, store.hashes[start:end], parent, tokens, ids[first : first + lead], hint)


def _stored(
    store: Announced, hashes: tuple[int, ...], parent: int | None, tokens: Int32Array, lead: Int32Array, hint: NamespaceHint
) -> Stored:
    before = tuple(lead.tolist())
    return Stored(
        hashes, parent, tokens, store.block_tokens, hint, store.tier, store.group, store.kind, store.window_tokens, before
    )


def _line_of(store: Announced) -> _Line:
    lookahead = store.keys.get("lookahead_token_ids")
    try:
        ids = np.frombuffer(array("i", store.tokens), np.int32)  # type: ignore[type-var]
    except (TypeError, OverflowError):
        return _line_of_pairs(store.tokens) if isinstance(store.tokens[0], list) else _line_with_opaque(store)
    return _line_with_lookahead(store, ids, lookahead) if isinstance(lookahead, list) and lookahead else _Line(ids)


def _line_of_pairs(pairs: list[object]) -> _Line:
    """Pages of token pairs (EAGLE): N pairs cover N + 1 tokens, and a page depends on the token behind it."""
    ids: list[int] = []
    for pair in pairs:
        match pair:
            case [int(first), int(second)] if not ids or ids[-1] == first:
                ids += [second] if ids else [first, second]
            case _:
                raise Malformed(f"token pair {shown(pair)}")
    try:
        return _Line(np.frombuffer(array("i", ids), np.int32), lead=1)
    except OverflowError as error:
        raise Malformed(f"token pairs: {error}") from None


def _line_with_opaque(store: Announced) -> _Line:
    """Strings (digests of images) and ids beyond 32 bits: kept apart from everything a prompt can say, but still chained."""
    ids = array("i")
    opaque: set[int] = set()
    for place, token in enumerate(store.tokens):
        if isinstance(token, int) and -_INT32 <= token < _INT32:
            ids.append(token)
            continue
        if not isinstance(token, int | str):
            raise Malformed(f"token {shown(token)}")
        digest = blake2b(str(token).encode("utf-8", "surrogatepass"), digest_size=4).digest()
        ids.append(int.from_bytes(digest, "little", signed=True))
        opaque.add(place // max(store.block_tokens, 1))
    return _Line(np.frombuffer(ids, np.int32), opaque=frozenset(opaque))


def _line_with_lookahead(store: Announced, ids: Int32Array, lookahead: list[object]) -> _Line:
    """Blocks whose hash also covers the tokens behind them; those with fewer than the first has cannot be placed."""
    first = lookahead[0]
    lead = len(first) if isinstance(first, list) else 0
    size = store.block_tokens
    if not lead or size <= 0 or len(ids) != len(store.hashes) * size or len(lookahead) != len(store.hashes):
        return _Line(ids)
    whole = next((i for i, tail in enumerate(lookahead) if not isinstance(tail, list) or len(tail) != lead), len(lookahead))
    tail = lookahead[whole - 1]
    assert isinstance(tail, list)
    try:
        return _Line(np.frombuffer(array("i", [*ids[: whole * size].tolist(), *tail]), np.int32), lead)
    except (TypeError, OverflowError) as error:
        raise Malformed(f"lookahead {shown(tail)}: {error}") from None
