"""One supervised task per rank that keeps its view in step with its engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import zmq.asyncio

from events.apply import Applier, Counts, View
from events.attempts import Attempts
from events.session import Session
from events.times import StreamTimes
from events.types import Freshness

log = logging.getLogger(__name__)


class EventStream:
    """Keeps the view of one holder in step with the events of its engine, from `start` to `stop`.

    endpoint, replay: of the holder's own rank (`endpoints.rank_endpoint`); replay None where the engine has no such socket.
    on_change: called with the holder whenever its freshness changed. clock: unix seconds. context: shared by the
    streams of a process (one I/O thread for all), made and ended here when None.
    """

    def __init__(
        self,
        index: View,
        holder: int,
        endpoint: str,
        replay: str | None = None,
        *,
        topic: str = "",
        on_change: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.time,
        times: StreamTimes | None = None,
        context: zmq.asyncio.Context | None = None,
    ) -> None:
        self.holder = holder
        self._times = times or StreamTimes()
        self._applier = Applier(index, holder, grace_s=self._times.silence_grace_s, clock=clock, on_change=on_change)
        self._session = Session(self._applier, endpoint, replay, topic, self._times)
        self._shared = context
        self._context: zmq.asyncio.Context | None = None
        self._attempts = Attempts(
            self._run,
            self._crashed,
            f"events {holder}",
            backoff_s=self._times.backoff_s,
            max_backoff_s=self._times.max_backoff_s,
        )
        self._silent_warned_at = -1e9

    @property
    def freshness(self) -> Freshness:
        """How far the view can be believed now."""
        return self._applier.freshness

    @property
    def connected(self) -> bool:
        """The socket has its engine; False also while a crashed task waits to be started again."""
        return self._session.connected

    @property
    def counts(self) -> Counts:
        """What happened so far; plain numbers that only grow, except the lag."""
        return self._applier.counts

    def start(self) -> None:
        """Begin, on the running event loop."""
        if self._context is None:
            self._context = self._shared or zmq.asyncio.Context()
        self._attempts.start()

    async def stop(self) -> None:
        """End the task and close its sockets; the view stays as it is."""
        await self._attempts.stop()
        if self._context is not None and self._context is not self._shared:
            self._context.destroy(linger=0)
        self._context = None

    def suspect(self) -> None:
        """The engine died, as its health says: drop the view now, and build it anew from whoever answers there next."""
        log.warning("event view dropped replica=%s rank=%d why=%s", self._applier.replica, self._applier.rank, "engine died")
        self._session.forget()
        self._attempts.anew()

    def note_answered(self, new_tokens: int) -> None:
        """A request ended here that computed `new_tokens` of its prompt: if that fills a block, events are owed (FC-05)."""
        if self._applier.answered(new_tokens) and time.monotonic() - self._silent_warned_at >= self._times.warn_every_s:
            self._silent_warned_at = time.monotonic()
            log.warning(
                "events missing replica=%s rank=%d grace_s=%g",
                self._applier.replica,
                self._applier.rank,
                self._times.silence_grace_s,
            )

    async def _run(self) -> None:
        assert self._context is not None
        await self._session.run(self._context)

    def _crashed(self, wait_s: float) -> None:
        self.counts.crashes += 1
        log.exception("event task crashed replica=%s rank=%d again_in_s=%.1f", self._applier.replica, self._applier.rank, wait_s)
        if not self._applier.cold:
            self._applier.set(Freshness.GAP)
