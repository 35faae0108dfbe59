"""Payloads of engine events, applied straight to the compiled tree; what is not understood comes back to be applied otherwise.

For a holder with one plain cache group (no sparse groups, nothing that waits or is loose, every block of one size). Its events
are applied as `radix.writer` would; `Feed` is what must be known of it. A call costs some microseconds beside the events, so
everything that has arrived for a holder goes into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np

from radix.core import feed as desk
from radix.core.compiled import CompiledTree

_GUARD = bytes(desk.GUARD)
_ONE_EVENT = b"\x92\xc0\x91"  # [nil, [
_ARRAY = b"\xdd"  # with four bytes of length
_INPUTS, _COUNTS = Struct("=10q"), Struct("=5q")  # several times faster than a slice of words
_PAYLOAD, _EVENT, _OFFSET, _END = desk.PAYLOAD >> 3, desk.EVENT >> 3, desk.OFFSET >> 3, desk.END >> 3
_EVENTS_AT, _EVENTS_COUNT = desk.EVENTS_AT >> 3, desk.EVENTS_COUNT >> 3
_ENDS, _BATCHES, _LOG = desk.ENDS >> 3, desk.BATCHES >> 3, desk.LOG >> 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What the events of one holder may be applied to.

    ledgers: by tier; -1 where nothing was stored yet, so that the first store comes back. root: of prompts without adapter, salt
    and media, for its group and block size; 0 for none. full: the group said that it is full attention. other_roots: what follows
    a known parent may be stored under any root of this block size; only where no block depends on tokens behind it.
    """

    ledgers: tuple[int, int, int, int]
    root: int
    block_tokens: int
    group: int = 0
    full: bool = False
    other_roots: bool = True


class Store(NamedTuple):
    """One store that was applied: `blocks` blocks behind `before` others below a root."""

    root: int
    before: int
    blocks: int


class Taken(NamedTuple):
    """What one `go` did, in blocks (events, skipped: in events).

    batches: (timestamp in s, rank) of each payload that was read to its end. stores: where a log was asked for.
    waiting: a payload with what comes next and must be applied in another way; when it cannot be decoded, what is known of the
    holder may be wrong. None when all is done. to_the_end: it is all that is left of its payload, not one event.
    """

    events: int
    stored: int
    removed: int
    unknown: int
    skipped: int
    batches: list[tuple[float, int | None]]
    stores: list[Store]
    waiting: bytes | None
    to_the_end: bool


class Ingest:
    """Applies payloads to one tree, those of one holder at a time; for the tree's writing thread."""

    def __init__(self, tree: CompiledTree) -> None:
        self.tree = tree
        words = np.zeros(desk.DESK_BYTES >> 3, np.int64)
        self.at = int(words.ctypes.data)
        self.bytes = words.data.cast("B")
        self.words = self.bytes.cast("q")
        self.seconds = self.bytes.cast("d")

    def start(self, payloads: Sequence[bytes]) -> Run:
        """Payloads of one holder, in order. A run that was started before must not go on."""
        return Run(self, payloads)


class Run:
    """Some payloads on their way into the tree."""

    __slots__ = ("_count", "_ingest", "_joined", "_loaded", "_payloads", "_words")

    def __init__(self, ingest: Ingest, payloads: Sequence[bytes]) -> None:
        self._ingest = ingest
        self._words = ingest.words
        self._payloads = payloads
        self._loaded = 0  # payloads that were given to the scanner, those at hand too
        self._load()

    def go(self, feed: Feed, *, log: bool = False) -> Taken:
        """Apply what comes next as far as it is understood. feed: as things are now. log: tell each store."""
        words, tree, at, view = self._words, self._ingest.tree, self._ingest.at, self._ingest.bytes
        tree.check(feed.ledgers, feed.root)
        limit = desk.MAX_STORES if log else -1
        plain = (feed.root, feed.block_tokens, feed.group, feed.full, feed.other_roots, limit)
        _INPUTS.pack_into(view, 0, *feed.ledgers, *plain)
        _COUNTS.pack_into(view, desk.COUNTERS, 0, 0, 0, 0, 0)
        batches: list[tuple[float, int | None]] = []
        stores: list[Store] = []
        waiting: bytes | None = None
        how = desk.DONE
        while True:
            first = words[_PAYLOAD]
            how = tree.ingest(at, self._joined, self._count)
            self._read_batches(first, batches)
            if log:
                self._read_stores(stores)
            if how in (desk.SLOW_EVENT, desk.SLOW_REST):
                waiting = self._step_over(how)
                break
            if how == desk.DONE:
                if self._loaded == len(self._payloads):
                    break
                self._load()
        events, stored, removed, unknown, skipped = _COUNTS.unpack_from(view, desk.COUNTERS)
        return Taken(events, stored, removed, unknown, skipped, batches, stores, waiting, how == desk.SLOW_REST)

    def rest(self) -> list[bytes]:
        """Payloads with all that comes next, behind what waits; the run is over."""
        words = self._words
        payload, left = words[_PAYLOAD], []
        if words[_EVENT]:
            left.append(self._from(words[_EVENT], words[_OFFSET]))
            payload += 1
        left += self._payloads[self._loaded - self._count + payload :]
        self._loaded = len(self._payloads)
        self._load()
        return left

    def _load(self) -> None:
        """Give the scanner the next payloads."""
        words = self._words
        chosen = self._payloads[self._loaded : self._loaded + desk.MAX_PAYLOADS]
        self._count = len(chosen)
        self._loaded += len(chosen)
        self._joined = b"".join((*chosen, _GUARD))
        end = 0
        for place, payload in enumerate(chosen, _ENDS):
            end += len(payload)
            words[place] = end
        words[_PAYLOAD] = words[_EVENT] = 0

    def _step_over(self, how: int) -> bytes:
        """The payload for what waits; the scanner goes on behind it."""
        words = self._words
        event, offset = words[_EVENT], words[_OFFSET]
        if how == desk.SLOW_EVENT:
            words[_EVENT], words[_OFFSET] = event + 1, words[_END]
            return _ONE_EVENT + self._joined[offset : words[_END]]
        waiting = self._from(event, offset)
        words[_PAYLOAD] += 1
        words[_EVENT] = 0
        return waiting

    def _from(self, event: int, offset: int) -> bytes:
        """The payload at hand without its first events; as it is where its frame was not understood."""
        words = self._words
        payload, events_at = words[_PAYLOAD], words[_EVENTS_AT]
        start = words[_ENDS + payload - 1] if payload else 0
        end = words[_ENDS + payload]
        if events_at < 0:
            return self._joined[start:end]
        left = words[_EVENTS_COUNT] - event
        return b"".join((self._joined[start:events_at], _ARRAY, left.to_bytes(4, "big"), self._joined[offset:end]))

    def _read_batches(self, first: int, batches: list[tuple[float, int | None]]) -> None:
        words, seconds = self._words, self._ingest.seconds
        for row in range(_BATCHES + 2 * first, _BATCHES + 2 * words[_PAYLOAD], 2):
            rank = words[row + 1]
            batches.append((seconds[row], None if rank == desk.NO_RANK else rank))

    def _read_stores(self, stores: list[Store]) -> None:
        logged = self._words[desk.LOGGED >> 3]
        rows = self._words[_LOG : _LOG + 3 * logged].tolist()
        stores += [Store(*rows[at : at + 3]) for at in range(0, 3 * logged, 3)]
