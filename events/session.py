"""One rank's stream from subscription to a view that can be believed: live batches, gaps, restarts, reconnects.

The order that loses nothing: subscribe first, then ask for the past, then drop what came twice. Whatever cannot be proven whole
is cleared and marked PARTIAL: a block we do not know of costs a recomputation, one that is gone costs a wrong choice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq.asyncio

from events.apply import Applier
from events.cursor import Cursor, Duplicate, Gap, Memory, Next, Restart
from events.errors import DecodeError, ReplayError
from events.replay import Frames, ask_replay, unbroken_tail
from events.types import Freshness
from events.zmq_source import Arrival, Broken, Link, ZmqSource

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 600.0
_SLICE_S = 0.002  # the loop also serves requests; give it back after this long
_TOGETHER, _TOGETHER_BYTES = 64, 128 * 1024  # batches of one call of the index, which has a price of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """How long the parts of a stream may take."""

    settle_s: float = 0.1  # from a connection to its subscription being in force
    replay_timeout_s: float = 5.0  # between two replies
    retry_replay_s: float = 15.0  # after a replay that was not answered
    silence_grace_s: float = 60.0
    link_down_s: float = 10.0  # without a connection; what we believe then may be long gone
    backoff_s: float = 0.5  # after a crash, doubled each time
    max_backoff_s: float = 30.0
    warn_every_s: float = 30.0


class Source(Protocol):
    """Where messages wait."""

    def discard(self) -> None:
        """Throw away what has arrived."""
        ...


class Session:
    """The state of one rank's stream; `run` may be called again after it ended, and goes on where it was."""

    def __init__(self, applier: Applier, endpoint: str, replay: str | None, topic: str, times: StreamTimes) -> None:
        self.connected = False
        self._applier = applier
        self._counts = applier.counts
        self._endpoint = endpoint
        self._replay = replay
        self._topic = topic
        self._times = times
        self._cursor = Cursor()
        self._memory = Memory()
        self._whole = False  # the view lacks nothing
        self._since: int | None = None  # the first batch in the view
        self._last_before_blink: int | None = None  # newest number before a reconnect that could not be checked
        self._replay_due: float | None = None  # monotonic; the past could not be had, ask for it again then
        self._link_lost_at: float | None = None  # monotonic
        self._replay_wait_s = times.retry_replay_s
        self._retried_seq = -1  # the batch whose failure we answered by asking for everything again
        self._slice_end = 0.0
        self._ready: list[Frames] = []  # judged to come next, and not applied yet
        self._ready_bytes = 0
        self._warned_at: dict[str, float] = {}

    async def run(self, context: zmq.asyncio.Context) -> None:
        """Follow the stream until cancelled."""
        source = ZmqSource(context, self._endpoint, self._topic)
        self._context = context
        try:
            while True:
                await self.handle(source, await source.arrivals(self._wait_s()))
                self._drop_what_nobody_confirms()
                if self._replay_due is not None and self.connected and time.monotonic() >= self._replay_due:
                    await self._bootstrap()
        finally:
            self.connected = False
            source.close()
            while self._ready:  # the cursor has passed them
                self._apply_ready()

    def _wait_s(self) -> float | None:
        """Seconds until something is due; None when nothing is."""
        due = [] if self._replay_due is None else [self._replay_due]
        if self._link_lost_at is not None:
            due.append(self._link_lost_at + self._times.link_down_s)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _drop_what_nobody_confirms(self) -> None:
        lost_at = self._link_lost_at
        if lost_at is not None and time.monotonic() >= lost_at + self._times.link_down_s:
            self._link_lost_at = None
            self._warn("events cut off replica=%s rank=%d s=%g: view dropped", self._times.link_down_s)
            self.forget()

    def forget(self) -> None:
        """The engine is gone: so is the view."""
        self._void()
        self._replay_due = None
        self._applier.set(Freshness.COLD)

    async def handle(self, source: Source, arrivals: Sequence[Arrival]) -> None:
        """Take what came at one wake-up; changes of the connection stand before messages."""
        links = [arrival for arrival in arrivals if isinstance(arrival, Link)]
        if links and links[-1] is Link.DOWN:
            self.connected = False
            if not self._applier.cold:
                self._link_lost_at = time.monotonic()
                self._applier.set(Freshness.GAP)
        # Down and up at once: messages from before may belong to either connection.
        unusable = Link.DOWN in links and Link.UP in links
        if unusable:
            source.discard()
        if links and links[-1] is Link.UP:
            self.connected = True
            self._link_lost_at = None
            unusable = await self._linked(source) or unusable
        for arrival in () if unusable else arrivals:
            if isinstance(arrival, Frames):
                if arrival.seq == self._cursor.expected:  # as nearly always
                    self._cursor.step(arrival.seq)
                    if self._add(arrival):
                        await self._flush()
                else:
                    await self._live(arrival)
            elif isinstance(arrival, Broken):
                self._counts.broken_messages += 1
                if self._may_warn("broken"):
                    self._warn("event message broken replica=%s rank=%d frame_bytes=%s", arrival.sizes)
        await self._flush()

    async def _linked(self, source: Source) -> bool:
        """The connection is up; True when the view now covers all messages that came before."""
        if self._replay is not None:
            await asyncio.sleep(self._times.settle_s)
            source.discard()
            if self._applier.last_payload is None:
                self._void()  # that nothing had been published does not hold for whoever answers now
                await self._bootstrap()
            else:
                await self._reconcile()
            return True
        if self._cursor.expected is not None:
            # A blink or a new process: nobody can tell which, so the view goes.
            self._last_before_blink = self._cursor.last
            self._lose("reconnect")
        self._applier.set(Freshness.PARTIAL)
        return False

    async def _live(self, frames: Frames) -> None:
        expected = self._cursor.expected
        known = self._memory.same(frames.seq, frames.payload) if expected is not None and frames.seq < expected else None
        if known:
            self._counts.duplicates += 1
            return
        match self._cursor.step(frames.seq):
            case Next():
                if expected is None:
                    self._adopted(frames.seq)
                self._add(frames)
            case Duplicate():
                if known is None:
                    self._counts.duplicates += 1
                else:
                    await self._restarted(frames)  # the same number with other content
            case Restart():
                await self._restarted(frames)
            case Gap() as gap:
                await self._flush()
                await self._heal(gap)
                await self._resume(frames)

    def _adopted(self, seq: int) -> None:
        before, self._last_before_blink = self._last_before_blink, None
        if before is not None and seq <= before:
            self._counts.restarts += 1
        self._whole = seq == 0  # from the first batch of a process on, nothing is missing
        self._settled()

    async def _restarted(self, frames: Frames) -> None:
        await self._flush()
        self._counts.restarts += 1
        self._warn("engine restarted replica=%s rank=%d seq=%d", frames.seq)
        self._void()
        if self._replay is not None:
            await self._bootstrap()
        await self._resume(frames)

    async def _resume(self, frames: Frames) -> None:
        """Judge a live batch again after the past was asked for, which mostly has it."""
        adopting = self._cursor.expected is None
        judged = self._cursor.step(frames.seq)
        if isinstance(judged, Gap):  # the replay ended before it
            self._lose("short replay")
            adopting, judged = True, self._cursor.step(frames.seq)
        if isinstance(judged, Next):
            if adopting:
                self._adopted(frames.seq)
            self._add(frames)

    async def _bootstrap(self) -> None:
        """Build the view from the first batch the engine still has; what we have stays when it does not answer."""
        batches = await self._ask(0)
        if batches is None:
            self._settled()
            return
        tail = unbroken_tail(batches)
        if self._since is not None and tail and tail[0].seq >= self._since:
            await self._absorb(tail)  # what we have reaches further back than what the engine has
            return
        self._void()
        self._whole = not batches or tail[0].seq == 0
        if not batches:
            self._cursor.reset(0)
        await self._absorb(tail)

    async def _heal(self, gap: Gap) -> None:
        """Fetch what is missing, or give up the view."""
        self._counts.gaps += 1
        self._applier.set(Freshness.GAP)
        self._warn("event gap replica=%s rank=%d want=%d got=%d", gap.first, gap.last + 1)
        batches = await self._ask(gap.first) if self._replay is not None else None
        tail = unbroken_tail(batches) if batches else []
        if not tail or tail[0].seq != gap.first:
            self._lose("gap")
        await self._absorb(tail)

    async def _reconcile(self) -> None:
        """After a reconnect: the newest batch we applied is still the engine's, or this is another process."""
        last = self._cursor.last
        assert last is not None
        batches = await self._ask(last)
        if batches is None:
            self._lose("no replay")
        elif batches and batches[0].seq == last and batches[0].payload == self._applier.last_payload:
            if len(unbroken_tail(batches)) < len(batches):
                self._lose("broken replay")
            await self._absorb(unbroken_tail(batches))
        elif batches and batches[0].seq > last:
            self._lose("replay too short")
            await self._absorb(unbroken_tail(batches))
        else:
            self._counts.restarts += 1
            self._warn("engine restarted replica=%s rank=%d last=%d", last)
            self._void()
            await self._bootstrap()

    async def _ask(self, start: int) -> list[Frames] | None:
        """A replay, or None when it is not answered; then it is asked again after a while."""
        assert self._replay is not None
        if not self._applier.cold:
            self._applier.set(Freshness.GAP)
        self._counts.replays += 1
        try:
            batches = await ask_replay(self._context, self._replay, start, timeout_s=self._times.replay_timeout_s)
        except ReplayError as error:
            self._ask_later(error)
            return None
        if len(unbroken_tail(batches)) < len(batches):
            self._ask_later("batches were lost on the way")
        elif not start:  # the whole past, so nothing is owed any more
            self._replay_due = None
            self._replay_wait_s = self._times.retry_replay_s
        return batches

    def _ask_later(self, why: object) -> None:
        """Asking holds up the live batches, so a socket that does not answer well is asked ever less often."""
        self._replay_due = time.monotonic() + self._replay_wait_s
        self._replay_wait_s = min(self._replay_wait_s * 2, _LONGEST_WAIT_S)
        if self._may_warn("replay"):
            self._warn("event replay failed replica=%s rank=%d error=%s", why)

    async def _absorb(self, batches: Sequence[Frames]) -> None:
        for frames in batches:
            if isinstance(self._cursor.replayed(frames.seq), Next) and self._add(frames):
                await self._flush()
        await self._flush()
        self._settled()

    def _add(self, frames: Frames) -> bool:
        """A batch comes next; it is applied with those that follow it at once. True when that should be now."""
        self._memory.add(frames.seq, frames.payload)
        if self._since is None:
            self._since = frames.seq
        self._ready.append(frames)
        self._ready_bytes += len(frames.payload)
        return len(self._ready) >= _TOGETHER or self._ready_bytes >= _TOGETHER_BYTES

    async def _flush(self) -> None:
        """Apply what is ready, a slice of time at a time."""
        while self._ready:
            self._apply_ready()
            if time.monotonic() > self._slice_end:
                await asyncio.sleep(0)
                self._slice_end = time.monotonic() + _SLICE_S

    def _apply_ready(self) -> None:
        """Change the view by the first batches that are ready; one that cannot be applied counts as lost (FC-04, FC-07)."""
        done, error = self._applier.apply(self._ready)
        if error is None:
            del self._ready[:done]
        else:
            seq = self._ready[done].seq
            del self._ready[: done + 1]
            self._failed(seq, error)
        if not self._ready:
            self._ready_bytes = 0

    def _failed(self, seq: int, error: Exception) -> None:
        if isinstance(error, DecodeError):
            self._counts.decode_errors += 1  # a replay would bring the same bytes
        else:
            self._counts.apply_errors += 1
        self._spoiled(seq, error)
        if not isinstance(error, DecodeError) and self._replay is not None and seq != self._retried_seq:
            self._retried_seq = seq
            self._replay_due = time.monotonic()

    def _spoiled(self, seq: int, error: Exception) -> None:
        """What this batch said is lost, and what we know may contradict it; its bytes still tell processes apart."""
        if self._may_warn("spoiled"):
            self._warn("event batch lost replica=%s rank=%d seq=%d error=%r", seq, error)
        payload = self._applier.last_payload
        self._applier.clear()
        self._applier.last_payload = payload
        self._since = seq + 1
        self._whole = False
        self._settled()

    def _lose(self, why: str) -> None:
        """Give up the view and take whatever comes next."""
        self._warn("event view dropped replica=%s rank=%d why=%s", why)
        self._void()
        self._settled()

    def _void(self) -> None:
        self._ready.clear()
        self._ready_bytes = 0
        self._applier.clear()
        self._cursor.reset(None)
        self._since = None
        self._whole = False

    def _settled(self) -> None:
        self._applier.set(Freshness.LIVE if self._whole else Freshness.PARTIAL)

    def _may_warn(self, kind: str) -> bool:
        now = time.monotonic()
        if now - self._warned_at.get(kind, -1e9) < self._times.warn_every_s:
            return False
        self._warned_at[kind] = now
        return True

    def _warn(self, message: str, *values: object) -> None:
        log.warning(message, self._applier.replica, self._applier.rank, *values)
