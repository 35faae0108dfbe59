"""The end of one rank's stream: bytes into the index, freshness out, everything counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from events.decode import decode
from events.freshness import Trust
from events.replay import Frames
from events.types import Batch, Freshness
from radix.changes import Applied, Heard

_USUAL_BLOCK_TOKENS = 16  # until the engine's own size is known


@dataclass(slots=True)
class Counts:
    """What happened on one stream since it began. apply_lag_s: from the engine's clock to applied, of the newest batch."""

    batches: int = 0
    events: int = 0
    bytes: int = 0
    stored: int = 0  # blocks
    removed: int = 0  # blocks
    skipped: int = 0  # events
    orphans: int = 0  # blocks
    unknown_removes: int = 0  # blocks
    gaps: int = 0
    replays: int = 0
    restarts: int = 0  # of the engine
    duplicates: int = 0  # batches
    decode_errors: int = 0
    apply_errors: int = 0
    broken_messages: int = 0
    rank_mismatches: int = 0
    crashes: int = 0  # of the task
    apply_lag_s: float = 0.0
    newest: int = -1  # number of the newest batch in the view; -1 while none is


class View(Protocol):
    """Where changes go: the index of a gateway, or what a relay keeps to tell it to others."""

    def owner(self, holder: int) -> tuple[str, int]:
        """The (replica, rank) behind a number."""
        ...

    def apply(self, holder: int, batch: Batch) -> Applied:
        """Change the view by one batch."""
        ...

    def apply_payloads(self, holder: int, payloads: Sequence[bytes], decode: Callable[[int, bytes], Batch], heard: Heard) -> None:
        """The same of batches as the engine sent them, of at least the first; `heard` tells how many.

        decode: of the payload at a place; what it raises for the next one is passed on.
        """
        ...

    def clear(self, holder: int) -> int:
        """Forget the view; returns the number of blocks forgotten."""
        ...

    def trimmed(self, holder: int) -> int:
        """Blocks of the view that were given up for want of memory."""
        ...

    def block_tokens(self, holder: int) -> int:
        """Tokens per block; 0 while they are not known."""
        ...


class Applier:
    """One holder of the index, and how far its view can be believed."""

    def __init__(
        self,
        index: View,
        holder: int,
        *,
        grace_s: float,
        clock: Callable[[], float],
        on_change: Callable[[int], None] | None = None,
    ) -> None:
        self.replica, self.rank = index.owner(holder)
        self.counts = Counts()
        self.last_payload: bytes | None = None  # of the newest batch applied: tells one engine process from the next
        self._index = index
        self._holder = holder
        self._clock = clock
        self._on_change = on_change
        self._trust = Trust(grace_s)

    @property
    def freshness(self) -> Freshness:
        """What the chooser should think of the view; one that was trimmed is not whole."""
        state = self._trust.state
        return Freshness.PARTIAL if state is Freshness.LIVE and self._index.trimmed(self._holder) else state

    @property
    def cold(self) -> bool:
        """Nothing has been heard yet."""
        return self._trust.base is Freshness.COLD

    def apply(self, batches: Sequence[Frames]) -> tuple[int, Exception | None]:
        """Decode batches and change the view by them, at least by the first.

        Returns how many were applied, and what went wrong with the next one: DecodeError, or whatever else.
        """
        heard, error = Heard(), None
        payloads = [frames.payload for frames in batches]
        try:
            self._index.apply_payloads(self._holder, payloads, partial(_decode_at, batches), heard)
        except Exception as raised:  # a bug of ours in one batch must not stop the stream (FC-04)
            error = raised
        done = len(heard.batches)
        tried = done + (error is not None)
        self.counts.bytes += sum(map(len, payloads[:tried]))
        self.last_payload = payloads[tried - 1]
        if done:
            self.counts.newest = batches[done - 1].seq
        self._note(heard)
        return done, error

    def take(self, batch: Batch) -> None:
        """Change the view by one batch; raises whatever goes wrong."""
        heard = Heard()
        heard.add(batch, self._index.apply(self._holder, batch))
        self._note(heard)

    def _note(self, heard: Heard) -> None:
        counts, applied = self.counts, heard.applied
        # The socket decides whose batch it is: engines behind an external balancer number their ranks by other rules (FC-21).
        counts.rank_mismatches += sum([rank is not None and rank != self.rank for _, rank in heard.batches])
        counts.batches += len(heard.batches)
        counts.events += heard.events
        counts.stored += applied.stored
        counts.removed += applied.removed
        counts.skipped += applied.skipped
        counts.orphans += applied.orphans
        counts.unknown_removes += applied.unknown
        if heard.batches and (ts := heard.batches[-1][0]):
            counts.apply_lag_s = self._clock() - ts
        if heard.batches and self._trust.heard():
            self._tell()

    def clear(self) -> None:
        """Forget the view."""
        self.last_payload = None
        self.counts.newest = -1
        self._index.clear(self._holder)

    def set(self, freshness: Freshness) -> None:
        """Say how far the view can be believed."""
        if self._trust.set(freshness):
            self._tell()

    def answered(self, new_tokens: int) -> bool:
        """A request ended that computed `new_tokens` of its prompt; True while the holder counts as silent."""
        owed = new_tokens >= (self._index.block_tokens(self._holder) or _USUAL_BLOCK_TOKENS)
        if owed and self._trust.answered(self._clock()):
            self._tell()
        return self._trust.silent

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change(self._holder)


def _decode_at(batches: Sequence[Frames], place: int, payload: bytes) -> Batch:
    return decode(payload, batches[place].seq)
