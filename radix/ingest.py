"""Payloads of engine events, applied straight to the compiled tree; what it does not understand is given back to be applied otherwise.

For a holder with one plain cache group (no sparse groups, nothing that waits or is loose, every block of one size). Its events
are applied as `radix.writer` would: see `Feed` for what must be known of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from radix.core import feed as desk
from radix.core.compiled import CompiledTree

_GUARD = bytes(desk.GUARD)
_ONE_EVENT = b"\x92\xc0\x91"  # [nil, [
_ARRAY = b"\xdd"  # with four bytes of length
_COUNTS = slice(desk.COUNTERS >> 3, (desk.COUNTERS >> 3) + 5)
_ENDS, _BATCHES, _LOG = desk.ENDS >> 3, desk.BATCHES >> 3, desk.LOG >> 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What the events of one holder may be applied to.

    ledgers: by tier; -1 where nothing was stored yet, so that the first store comes back. root: of prompts without adapter, salt
    and media, for its group and block size. full: the group said that it is full attention. other_roots: what follows a known
    parent may be stored under any root of this block size; only where no block depends on tokens behind it.
    """

    ledgers: tuple[int, int, int, int]
    root: int
    block_tokens: int
    group: int = 0
    full: bool = False
    other_roots: bool = True

    def words(self, stores: int) -> list[int]:
        """As the scanner reads it."""
        return [*self.ledgers, self.root, self.block_tokens, self.group, int(self.full), int(self.other_roots), stores]


@dataclass(frozen=True, slots=True)
class Store:
    """One store that was applied: `blocks` blocks behind `before` others below a root."""

    root: int
    before: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What one `go` did, in blocks (events, skipped: in events).

    batches: (timestamp in s, rank) of each payload that was read to its end. stores: where `log` was asked for.
    waiting: a payload with what comes next and must be applied in another way; when it cannot be decoded, what is known of the
    holder may be wrong. None when all is done.
    """

    events: int
    stored: int
    removed: int
    unknown: int
    skipped: int
    batches: list[tuple[float, int | None]]
    stores: list[Store]
    waiting: bytes | None


class Ingest:
    """Applies payloads to one tree, those of one holder at a time; for the tree's writing thread."""

    def __init__(self, tree: CompiledTree) -> None:
        self._tree = tree
        self._words = np.zeros(desk.DESK_BYTES >> 3, np.int64)
        self._at = int(self._words.ctypes.data)

    def start(self, payloads: Sequence[bytes]) -> Run:
        """Payloads of one holder, in order. A run that was started before must not go on."""
        return Run(self._tree, self._words, self._at, payloads)


class Run:
    """Some payloads on their way into the tree."""

    def __init__(self, tree: CompiledTree, words: npt.NDArray[np.int64], at: int, payloads: Sequence[bytes]) -> None:
        self._tree = tree
        self._words = words
        self._at = at
        self._payloads = payloads
        self._loaded = 0  # payloads that were given to the scanner, those at hand too
        self._load()

    def go(self, feed: Feed, *, log: bool = False) -> Taken:
        """Apply what comes next as far as it is understood. feed: as things are now. log: tell each store."""
        self._tree.check(feed.ledgers, feed.root)
        self._words[: desk.PAYLOAD >> 3] = feed.words(desk.MAX_STORES if log else -1)
        counts = np.zeros(5, np.int64)
        batches: list[tuple[float, int | None]] = []
        stores: list[Store] = []
        while True:
            first = self._word(desk.PAYLOAD)
            how = self._tree.ingest(self._at, self._joined, self._count)
            counts += self._words[_COUNTS]
            batches += self._batches(first, self._word(desk.PAYLOAD))
            stores += self._stores()
            if how in (desk.SLOW_EVENT, desk.SLOW_REST):
                waiting = self._step_over(how)
                break
            if how == desk.DONE and not self._load():
                waiting = None
                break
        events, stored, removed, unknown, skipped = counts.tolist()
        return Taken(events, stored, removed, unknown, skipped, batches, stores, waiting)

    def rest(self) -> list[bytes]:
        """Payloads with all that comes next, behind what waits; the run is over."""
        payload, event = self._word(desk.PAYLOAD), self._word(desk.EVENT)
        left = []
        if event:
            left.append(self._from(event, self._word(desk.OFFSET)))
            payload += 1
        left += self._payloads[self._loaded - self._count + payload :]
        self._words[desk.PAYLOAD >> 3], self._words[desk.EVENT >> 3] = self._count, 0
        self._loaded = len(self._payloads)
        return left

    def _load(self) -> bool:
        """Give the scanner the next payloads; False when there are none."""
        chosen = self._payloads[self._loaded : self._loaded + desk.MAX_PAYLOADS]
        self._count = len(chosen)
        self._loaded += len(chosen)
        self._joined = b"".join((*chosen, _GUARD))
        self._words[_ENDS : _ENDS + len(chosen)] = list(accumulate(map(len, chosen)))
        self._words[desk.PAYLOAD >> 3], self._words[desk.EVENT >> 3] = 0, 0
        return bool(chosen)

    def _step_over(self, how: int) -> bytes:
        """The payload for what waits; the scanner goes on behind it."""
        event, offset = self._word(desk.EVENT), self._word(desk.OFFSET)
        if how == desk.SLOW_EVENT:
            end = self._word(desk.END)
            self._words[desk.EVENT >> 3], self._words[desk.OFFSET >> 3] = event + 1, end
            return _ONE_EVENT + self._joined[offset:end]
        waiting = self._from(event, offset)
        self._words[desk.PAYLOAD >> 3] += 1
        self._words[desk.EVENT >> 3] = 0
        return waiting

    def _from(self, event: int, offset: int) -> bytes:
        """The payload at hand without its first events; as it is where its frame was not understood."""
        payload, events_at = self._word(desk.PAYLOAD), self._word(desk.EVENTS_AT)
        start = int(self._words[_ENDS + payload - 1]) if payload else 0
        end = int(self._words[_ENDS + payload])
        if events_at < 0:
            return self._joined[start:end]
        left = self._word(desk.EVENTS_COUNT) - event
        return b"".join((self._joined[start:events_at], _ARRAY, left.to_bytes(4, "big"), self._joined[offset:end]))

    def _word(self, field: int) -> int:
        return int(self._words[field >> 3])

    def _batches(self, first: int, last: int) -> list[tuple[float, int | None]]:
        rows = self._words[_BATCHES + 2 * first : _BATCHES + 2 * last]
        seconds, ranks = rows[::2].view(np.float64).tolist(), rows[1::2].tolist()
        return [(at, None if rank == desk.NO_RANK else rank) for at, rank in zip(seconds, ranks, strict=True)]

    def _stores(self) -> list[Store]:
        logged = self._word(desk.LOGGED)
        rows = self._words[_LOG : _LOG + 3 * logged].tolist()
        return [Store(*rows[at : at + 3]) for at in range(0, 3 * logged, 3)]
