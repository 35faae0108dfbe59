"""Views fed from an event queue that is asked over HTTP: one task per replica, and what it hears goes to a stream per rank.

An answer empties the queue, so it comes once or never. The numbers of the events show what is missing: where they jump, the ring
ran over, an answer got lost, or somebody else reads the same queue; where they begin anew, a new process answers. Either way what
was known cannot be proven any more and is cleared.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Raw

from events.apply import Applier, Counts, View
from events.attempts import Attempts
from events.decode.polled import Part, PolledReader, split
from events.errors import DecodeError, LostAnswer, PollError
from events.http_queue import EventQueue
from events.types import Freshness

log = logging.getLogger(__name__)

_AT_ONCE = 16  # events
_SLICE_S = 0.002  # the loop also serves requests; give it back after this long


@dataclass(frozen=True, slots=True, kw_only=True)
class PollTimes:
    """How often a queue is asked, and how long what cannot be confirmed is believed."""

    busy_s: float = 0.01  # between an answer with events and the next question
    idle_s: float = 0.2  # the same at most, while there are none and no request ended
    failing_s: float = 0.5  # after a failure, doubled each time
    max_failing_s: float = 5.0
    doubt_s: float = 10.0  # from a question without an answer to the next event that proves nothing was lost
    silence_grace_s: float = 60.0
    backoff_s: float = 0.5  # after a crash, doubled each time
    max_backoff_s: float = 30.0
    warn_every_s: float = 30.0


class PollSource:
    """Asks one replica's queue while a stream of it is started. block_tokens: 0 where they are not known.

    on_change: called with a holder whenever its freshness changed. clock: unix seconds.
    """

    def __init__(
        self,
        index: View,
        queue: EventQueue,
        *,
        block_tokens: int = 0,
        on_change: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.time,
        times: PollTimes | None = None,
    ) -> None:
        self.connected = False  # the last question was answered
        self.times = times or PollTimes()
        self._index = index
        self._queue = queue
        self._reader = PolledReader(block_tokens)
        self._block_tokens = block_tokens  # as given, later as told
        self._on_change = on_change
        self._clock = clock
        self._streams: dict[int, PolledStream] = {}  # by rank
        self._wake = asyncio.Event()
        self._warned_at: dict[str, float] = {}
        self._attempts = Attempts(
            self._run, self._crashed, f"poll {queue.url}", backoff_s=self.times.backoff_s, max_backoff_s=self.times.max_backoff_s
        )

    def stream(self, rank: int, holder: int) -> PolledStream:
        """The stream of one rank, which feeds `holder` once it is started."""
        applier = Applier(self._index, holder, grace_s=self.times.silence_grace_s, clock=self._clock, on_change=self._on_change)
        return PolledStream(self, applier, rank, holder)

    def join(self, stream: PolledStream) -> None:
        """Give a stream what comes from now on, and ask while there is one."""
        self._reader.forget(stream.rank)
        self._streams[stream.rank] = stream
        self._attempts.start()

    async def leave(self, stream: PolledStream) -> None:
        """Give it nothing more; the last one to leave ends the asking."""
        if self._streams.get(stream.rank) is stream:
            del self._streams[stream.rank]
        if not self._streams:
            await self._attempts.stop()
            self.connected = False

    def hurry(self) -> None:
        """There may be something to hear: ask soon."""
        self._wake.set()

    def anew(self) -> None:
        """Another process may answer now: give up the open question, and ask at once."""
        self._attempts.anew()

    def may_warn(self, kind: str) -> bool:
        """Whether a warning of this kind is due; one that is counts as given."""
        now = time.monotonic()
        if now - self._warned_at.get(kind, -1e9) < self.times.warn_every_s:
            return False
        self._warned_at[kind] = now
        return True

    async def _run(self) -> None:
        times = self.times
        pause_s = failing_s = 0.0
        try:
            while True:
                self._wake.clear()
                try:
                    count = await self._turn()
                except PollError as error:
                    self._failed(error)
                    failing_s = min(2 * failing_s or times.failing_s, times.max_failing_s)
                    await self._rest(times.failing_s, failing_s)
                else:
                    failing_s = 0.0
                    pause_s = times.busy_s if count else min(2 * pause_s or times.busy_s, times.idle_s)
                    await self._rest(times.busy_s, pause_s)
        finally:  # whatever was being answered is lost, and so may be more
            self.connected = False
            for stream in self._streams.values():
                stream.doubt()

    async def _rest(self, least_s: float, most_s: float) -> None:
        """Many pollers that began together shall not stay together."""
        await asyncio.sleep(least_s * random.uniform(0.75, 1.25))
        with suppress(TimeoutError):
            async with asyncio.timeout((most_s - least_s) * random.uniform(0.75, 1.25)):
                await self._wake.wait()

    async def _turn(self) -> int:
        """Ask once; returns the number of events. Raises PollError."""
        try:
            events = split(await self._queue.take())
        except (LostAnswer, DecodeError) as error:
            self.connected = True
            for stream in self._streams.values():
                stream.lost(error)
            return 0
        self.connected = True
        await self._absorb(events)
        for stream in self._streams.values():
            stream.answered()
        return len(events)

    async def _absorb(self, events: Sequence[Raw]) -> None:
        slice_end = time.monotonic() + _SLICE_S
        for start in range(0, len(events), _AT_ONCE):
            for part in self._reader.parts(events[start : start + _AT_ONCE]):
                self._mind_size()
                stream = self._streams.get(part.rank)
                if stream is not None:
                    stream.take(part)
                elif self.may_warn("rank"):
                    log.warning("events of an unknown rank url=%s rank=%d", self._queue.url, part.rank)
            if time.monotonic() > slice_end:
                await asyncio.sleep(0)
                slice_end = time.monotonic() + _SLICE_S

    def _mind_size(self) -> None:
        told, given = self._reader.block_tokens, self._block_tokens
        if told != given:
            self._block_tokens = told
            if given and self.may_warn("size"):
                log.warning("block size differs url=%s block_tokens=%d told=%d", self._queue.url, given, told)

    def _failed(self, error: PollError) -> None:
        self.connected = False
        if self.may_warn("failed"):
            log.warning("event queue not read error=%s", error)
        for stream in self._streams.values():
            stream.doubt()
            stream.confirm()

    def _crashed(self, wait_s: float) -> None:
        log.exception("event task crashed url=%s again_in_s=%.1f", self._queue.url, wait_s)
        for stream in self._streams.values():
            stream.counts.crashes += 1


class PolledStream:
    """Keeps the view of one holder in step with the events of its rank, from `start` to `stop`; made by `PollSource.stream`."""

    def __init__(self, source: PollSource, applier: Applier, rank: int, holder: int) -> None:
        self.holder = holder
        self.rank = rank
        self._source = source
        self._applier = applier
        self._whole = False  # the view lacks nothing
        self._doubted_at: float | None = None  # monotonic; from then on something may have been lost

    @property
    def freshness(self) -> Freshness:
        """How far the view can be believed now."""
        return self._applier.freshness

    @property
    def connected(self) -> bool:
        """The last question was answered."""
        return self._source.connected

    @property
    def counts(self) -> Counts:
        """What happened so far; plain numbers that only grow."""
        return self._applier.counts

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._source.join(self)

    async def stop(self) -> None:
        """Hear nothing more; the view stays as it is."""
        await self._source.leave(self)

    def suspect(self) -> None:
        """The engine died, as its health says: drop the view now, and build it anew from whoever answers there next."""
        self._warn("event view dropped replica=%s rank=%d why=%s", "engine died")
        self._void(Freshness.COLD)
        self._source.anew()

    def note_answered(self, new_tokens: int) -> None:
        """A request ended here that computed `new_tokens` of its prompt: if that fills a block, events are owed (FC-05)."""
        self._source.hurry()
        if self._applier.answered(new_tokens) and self._source.may_warn(f"silent {self.rank}"):
            self._warn("events missing replica=%s rank=%d grace_s=%g", self._source.times.silence_grace_s)

    def take(self, part: Part) -> None:
        """Change the view by what events say of this rank."""
        counts = self.counts
        counts.bytes += part.size
        counts.gaps += part.gaps
        counts.restarts += part.restarts
        if part.gaps and self._source.may_warn(f"gap {self.rank}"):
            self._warn("event gap replica=%s rank=%d since=%s: the queue ran over, or is read by another", part.since)
        if part.restarts:
            self._warn("engine restarted replica=%s rank=%d since=%s", part.since)
        try:
            self._applier.take(part.message.batch())
        except Exception as error:  # a bug of ours in one batch must not stop the others (FC-04)
            counts.apply_errors += 1
            self._give_up(f"events up to {part.message.seq} lost: {error!r}")
            return
        if part.since is not None:
            self._whole = part.since == 0  # from the first event of a process on, nothing is missing
        self._doubted_at = None
        self._applier.set(Freshness.LIVE if self._whole else Freshness.PARTIAL)

    def answered(self) -> None:
        """An answer came, whether or not it had something for this rank."""
        if self._applier.cold:
            self._applier.set(Freshness.PARTIAL)
        self.confirm()

    def doubt(self) -> None:
        """Something may have been lost; the number of the next event will tell."""
        if self._doubted_at is None and not self._applier.cold:
            self._doubted_at = time.monotonic()
            self._applier.set(Freshness.GAP)

    def confirm(self) -> None:
        """Drop what was in doubt for too long."""
        if self._doubted_at is not None and time.monotonic() >= self._doubted_at + self._source.times.doubt_s:
            self._warn("event view dropped replica=%s rank=%d why=%s", "nothing came that proves it")
            self._void(Freshness.PARTIAL if self.connected else Freshness.COLD)

    def lost(self, error: Exception) -> None:
        """An answer was lost, with whatever it said."""
        self.counts.decode_errors += 1
        self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        if self._source.may_warn(f"lost {self.rank}"):
            self._warn("event view dropped replica=%s rank=%d why=%s", why)
        self._void(Freshness.PARTIAL)

    def _void(self, freshness: Freshness) -> None:
        self._applier.clear()
        self._whole = False
        self._doubted_at = None
        self._applier.set(freshness)

    def _warn(self, message: str, *values: object) -> None:
        log.warning(message, self._applier.replica, self._applier.rank, *values)
