"""One rank's stream from subscription to a view that can be believed: live batches, gaps, restarts, reconnects.

The order that loses nothing: subscribe first, then ask for the past, then drop what came twice. Whatever cannot be proven whole
is cleared and marked PARTIAL: a block we do not know of costs a recomputation, one that is gone costs a wrong choice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

import zmq.asyncio

from events.apply import Applier
from events.cursor import Cursor, Duplicate, Gap, Memory, Next, Restart
from events.errors import DecodeError, ReplayError
from events.intake import Intake
from events.replay import Answer, Frames, read_replay
from events.times import StreamTimes
from events.types import Freshness
from events.zmq_source import Arrival, Broken, Link, Source, ZmqSource

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 600.0


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
        self._confirm_due: float | None = None  # monotonic; nothing has come since the connection did
        self._link_lost_at: float | None = None  # monotonic
        self._replay_wait_s = times.retry_replay_s
        self._retried_seq = -1  # the batch whose failure we answered by asking for everything again
        self._intake = Intake(applier, self._failed)  # of batches that were judged to come next
        self._doubted: int | None = None  # the past began with this number: something before it may have been lost on the way
        self._warned_at: dict[str, float] = {}

    async def run(self, context: zmq.asyncio.Context) -> None:
        """Follow the stream until cancelled."""
        source = ZmqSource(context, self._endpoint, self._topic)
        self._context = context
        try:
            while True:
                await self.handle(source, await source.arrivals(self._wait_s()))
                self._drop_what_nobody_confirms()
                if self.connected:
                    await self._ask_what_is_due()
        finally:
            self.connected = False
            source.close()
            self._intake.finish()  # the cursor has passed it

    def _wait_s(self) -> float | None:
        """Seconds until something is due; None when nothing is."""
        drop_due = None if self._link_lost_at is None else self._link_lost_at + self._times.link_down_s
        due = [at for at in (self._replay_due, self._confirm_due, drop_due) if at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    async def _ask_what_is_due(self) -> None:
        now = time.monotonic()
        if self._replay_due is not None and now >= self._replay_due:
            await self._bootstrap()
        if self._confirm_due is not None and now >= self._confirm_due:
            await self._confirm()

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
        elif arrivals:
            self._confirm_due = None
        for arrival in () if unusable else arrivals:
            if isinstance(arrival, Frames):
                if arrival.seq == self._cursor.expected:  # as nearly always
                    self._cursor.step(arrival.seq)
                    if self._add(arrival):
                        await self._intake.flush()
                else:
                    await self._live(arrival)
            elif isinstance(arrival, Broken):
                self._counts.broken_messages += 1
                self._warn_rarely("event message broken replica=%s rank=%d frame_bytes=%s", arrival.sizes)
        await self._intake.flush()

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
            self._confirm_due = time.monotonic() + self._times.confirm_s
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
                await self._intake.flush()
                await self._heal(gap)
                await self._resume(frames)

    def _adopted(self, seq: int) -> None:
        before, self._last_before_blink = self._last_before_blink, None
        if before is not None and seq <= before:
            self._counts.restarts += 1
        self._whole = seq == 0  # from the first batch of a process on, nothing is missing
        self._settled()

    async def _restarted(self, frames: Frames) -> None:
        await self._intake.flush()
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
        doubted = self._doubted
        kept = False  # what we have reaches further back than what the engine has

        def join(first: Frames) -> bool:
            nonlocal kept
            kept = self._since is not None and first.seq >= self._since
            if not kept:
                self._void()
            self._replay_due = None
            return True

        answer = await self._ask(0, join, lambda: None if kept else self._void())
        if answer.ended and answer.first is None:
            self._void()
            self._cursor.reset(0)
            self._whole = True
            self._replay_due = None
        elif answer.ended and not (kept and answer.torn):
            self._whole = self._since == 0
        if answer.ended and not answer.torn:
            self._judge_beginning(answer.first or 0, doubted)
        self._settled()

    def _judge_beginning(self, first: int, doubted: int | None) -> None:
        """A replay of everything began at `first`: the engine forgot what was before, or that was lost on the way.

        So it is asked for once more, and again as long as that brings earlier batches.
        """
        if not first or (doubted is not None and first >= doubted):
            self._doubted = None
            self._replay_wait_s = self._times.retry_replay_s
        else:
            self._doubted = first
            if self._replay_due is None:
                self._owe_replay()

    async def _heal(self, gap: Gap) -> None:
        """Fetch what is missing, or give up the view."""
        self._counts.gaps += 1
        self._applier.set(Freshness.GAP)
        self._warn("event gap replica=%s rank=%d want=%d got=%d", gap.first, gap.last + 1)
        if self._replay is None:
            self._lose("gap")
            return

        def join(first: Frames) -> bool:
            if first.seq != gap.first:
                self._lose_beginning("gap")
            return True

        answer = await self._ask(gap.first, join, self._void)
        if answer.ended and answer.first is not None:
            self._settled()
        else:
            self._lose_beginning("gap")

    async def _reconcile(self) -> None:
        """After a reconnect: the newest batch we applied is still the engine's, or this is another process."""
        last = self._cursor.last
        assert last is not None
        changed = False

        def join(first: Frames) -> bool:
            nonlocal changed
            if first.seq > last:
                self._lose_beginning("replay too short")
            else:
                changed = first.seq != last or first.payload != self._applier.last_payload
            return not changed

        answer = await self._ask(last, join, self._void)
        if changed or (answer.ended and answer.first is None):
            self._counts.restarts += 1
            self._warn("engine restarted replica=%s rank=%d last=%d", last)
            self._void()
            await self._bootstrap()
        elif answer.ended:
            self._settled()
        else:
            self._lose("no replay")

    async def _confirm(self) -> None:
        """A batch that was published before the subscription was in force, and after the replay, shows with the next one only.

        So an engine that is quiet is asked for it, once.
        """
        self._confirm_due = None
        expected = self._cursor.expected
        if expected is not None:
            await self._ask(expected, lambda _: True, lambda: None, in_doubt=False)

    async def _ask(
        self, start: int, join: Callable[[Frames], bool], torn: Callable[[], None], *, in_doubt: bool = True
    ) -> Answer:
        """Apply a replay while it comes in; one that is not answered to its end, or torn, is asked for again after a while.

        join: looks at the first batch before it is applied; False when no more is wanted. torn: called where batches are missing
        in the middle: only what is behind the last such place counts. in_doubt: the view is, until there is an answer.
        """
        assert self._replay is not None
        if in_doubt and not self._applier.cold:
            self._applier.set(Freshness.GAP)
        self._counts.replays += 1
        answer, last = Answer(), -1
        try:
            async with aclosing(read_replay(self._context, self._replay, start, timeout_s=self._times.replay_timeout_s)) as parts:
                async for part in parts:
                    for frames in part:
                        if answer.first is None:
                            answer.first = frames.seq
                            if not join(frames):
                                return answer
                        elif frames.seq != last + 1:
                            answer.torn = True
                            torn()
                        last = frames.seq
                        if isinstance(self._cursor.replayed(frames.seq), Next):
                            self._add(frames)
                    await self._intake.flush()
                    await self._intake.breathe()
        except ReplayError as error:
            if in_doubt:
                self._ask_later(error)
            return answer
        answer.ended = True
        if answer.torn:
            self._ask_later("batches were lost on the way")
        return answer

    def _ask_later(self, why: object) -> None:
        self._owe_replay()
        self._warn_rarely("event replay failed replica=%s rank=%d error=%s", why)

    def _owe_replay(self) -> None:
        """Asking holds up the live batches, so a socket that does not answer well is asked ever less often."""
        self._replay_due = time.monotonic() + self._replay_wait_s
        self._replay_wait_s = min(self._replay_wait_s * 2, _LONGEST_WAIT_S)

    def _add(self, frames: Frames) -> bool:
        """A batch comes next; True when the intake should be flushed."""
        self._memory.add(frames.seq, frames.payload)
        if self._since is None:
            self._since = frames.seq
        return self._intake.add(frames)

    def _failed(self, seq: int, error: Exception) -> None:
        """A batch that cannot be applied counts as lost (FC-04, FC-07)."""
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
        self._warn_rarely("event batch lost replica=%s rank=%d seq=%d error=%r", seq, error)
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

    def _lose_beginning(self, why: str) -> None:
        """A replay begins too late: the engine forgot what was before, or that was lost on the way."""
        self._lose(why)
        if self._replay_due is None:
            self._owe_replay()

    def _void(self) -> None:
        self._intake.drop()
        self._applier.clear()
        self._cursor.reset(None)
        self._since = None
        self._whole = False
        self._doubted = None

    def _settled(self) -> None:
        self._applier.set(Freshness.LIVE if self._whole else Freshness.PARTIAL)

    def _warn_rarely(self, message: str, *values: object) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(message, -1e9) >= self._times.warn_every_s:
            self._warned_at[message] = now
            self._warn(message, *values)

    def _warn(self, message: str, *values: object) -> None:
        log.warning(message, self._applier.replica, self._applier.rank, *values)
