"""The view of one holder fed from a relay's stream in Redis, and straight from its engine while no relay writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import fields

from events.apply import Applier, Counts
from events.attempts import Attempts
from events.relay.follow import Follower, FollowTimes
from events.relay.store import Place
from events.stream import Stream
from events.types import Freshness
from radix.index import Index

log = logging.getLogger(__name__)


class RedisStream:
    """Keeps the view of one holder in step with what its relay writes, from `start` to `stop`.

    direct: makes a stream of the engine's own events for the time without a relay; None, or its answer is, where there is no such
    way.
    on_change: called with the holder whenever the freshness changed. clock: unix seconds.
    """

    def __init__(
        self,
        index: Index,
        holder: int,
        place: Place,
        *,
        direct: Callable[[], Stream | None] | None = None,
        on_change: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.time,
        times: FollowTimes | None = None,
    ) -> None:
        self.holder = holder
        self._times = times or FollowTimes()
        self._applier = Applier(index, holder, grace_s=self._times.silence_grace_s, clock=clock, on_change=on_change)
        self._follower = Follower(self._applier, place, self._times, lambda counting: index.set_counting(holder, counting))
        self._make_direct = direct
        self._direct: Stream | None = None
        self._attempts = Attempts(
            self._run,
            self._crashed,
            f"relayed {holder}",
            backoff_s=self._times.backoff_s,
            max_backoff_s=self._times.max_backoff_s,
        )
        self._silent_warned_at = -1e9

    @property
    def freshness(self) -> Freshness:
        """How far the view can be believed now."""
        return self._applier.freshness if self._direct is None else self._direct.freshness

    @property
    def connected(self) -> bool:
        """A relay writes and we have all of it, or the engine itself is listened to."""
        return self._follower.in_step if self._direct is None else self._direct.connected

    @property
    def relayed(self) -> bool:
        """The events come by the relay, or would; False while the engine is listened to."""
        return self._direct is None

    @property
    def counts(self) -> Counts:
        """What happened so far, by either way; plain numbers that only grow, except the lag."""
        return self._applier.counts if self._direct is None else _sum(self._applier.counts, self._direct.counts)

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._attempts.start()

    async def stop(self) -> None:
        """End the task and close its connections; the view stays as it is."""
        await self._attempts.stop()

    def suspect(self) -> None:
        """The engine died, as its health says: drop the view now, and build it anew when its relay hears one again."""
        if self._direct is not None:
            self._direct.suspect()
            return
        log.warning("event view dropped replica=%s rank=%d why=%s", *self._owner(), "engine died")
        self._follower.suspect()
        self._attempts.anew()

    def note_answered(self, new_tokens: int) -> None:
        """A request ended here that computed `new_tokens` of its prompt: if that fills a block, events are owed (FC-05)."""
        if self._direct is not None:
            self._direct.note_answered(new_tokens)
        elif self._applier.answered(new_tokens) and time.monotonic() - self._silent_warned_at >= self._times.warn_every_s:
            self._silent_warned_at = time.monotonic()
            log.warning("events missing replica=%s rank=%d grace_s=%g", *self._owner(), self._times.silence_grace_s)

    async def _run(self) -> None:
        if self._make_direct is None:
            await self._follower.run()
            return
        while True:
            await self._follower.run(until_astray_s=self._times.doubt_s)
            direct = self._make_direct()
            if direct is None:
                await self._follower.run(until_astray_s=self._follower.astray_s + self._times.doubt_s)
            else:
                await self._listen(direct)

    async def _listen(self, direct: Stream) -> None:
        """To the engine, until a relay writes again."""
        log.warning("no relay replica=%s rank=%d: listening to the engine", *self._owner())
        self._follower.forget()
        self._direct = direct
        direct.start()
        try:
            await self._follower.alive()
        finally:
            await direct.stop()
            self._direct = None
            _add(self._applier.counts, direct.counts)
        log.info("relay is back replica=%s rank=%d", *self._owner())
        self._follower.begin()

    def _crashed(self, wait_s: float) -> None:
        self._applier.counts.crashes += 1
        log.exception("relayed task crashed replica=%s rank=%d again_in_s=%.1f", *self._owner(), wait_s)

    def _owner(self) -> tuple[str, int]:
        return self._applier.replica, self._applier.rank


def _add(to: Counts, more: Counts) -> None:
    for field in fields(Counts):
        if field.name not in ("apply_lag_s", "newest"):
            setattr(to, field.name, getattr(to, field.name) + getattr(more, field.name))
    to.apply_lag_s, to.newest = more.apply_lag_s, more.newest


def _sum(one: Counts, other: Counts) -> Counts:
    both = Counts()
    _add(both, one)
    _add(both, other)
    return both
