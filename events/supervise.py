"""One supervised task per rank that keeps its view in step with its engine."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

import zmq.asyncio

from events.apply import Applier, Counts
from events.session import Session, StreamTimes
from events.types import Freshness
from radix.index import Index

log = logging.getLogger(__name__)

_STEADY_S = 60.0  # a task that ran this long starts its back-off anew


class EventStream:
    """Keeps the view of one holder in step with the events of its engine, from `start` to `stop`.

    endpoint, replay: of the holder's own rank (`endpoints.rank_endpoint`); replay None where the engine has no such socket.
    on_change: called with the holder whenever its freshness changed. clock: unix seconds. context: shared by the
    streams of a process (one I/O thread for all), made and ended here when None.
    """

    def __init__(
        self,
        index: Index,
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
        self._task: asyncio.Task[None] | None = None
        self._attempt: asyncio.Task[None] | None = None
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
        if self._task is None:
            self._context = self._shared or zmq.asyncio.Context()
            self._task = asyncio.get_running_loop().create_task(self._supervise(self._context), name=f"events {self.holder}")

    async def stop(self) -> None:
        """End the task and close its sockets; the view stays as it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._context is not None and self._context is not self._shared:
            self._context.destroy(linger=0)
        self._context = None

    def suspect(self) -> None:
        """The engine died, as its health says: drop the view now, and build it anew from whoever answers there next."""
        log.warning("event view dropped replica=%s rank=%d why=%s", self._applier.replica, self._applier.rank, "engine died")
        self._session.forget()
        if self._attempt is not None:
            self._attempt.cancel()

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

    async def _supervise(self, context: zmq.asyncio.Context) -> None:
        backoff_s = self._times.backoff_s
        while True:
            began = time.monotonic()
            self._attempt = asyncio.get_running_loop().create_task(
                self._session.run(context), name=f"events {self.holder} session"
            )
            try:
                await self._attempt
            except asyncio.CancelledError:
                this = asyncio.current_task()
                if this is not None and this.cancelling():
                    raise  # `stop`; otherwise `suspect` ended the attempt, and the next one begins at once
            except Exception:  # whatever it was, the stream has to come back (FC-04)
                self.counts.crashes += 1
                if time.monotonic() - began > _STEADY_S:
                    backoff_s = self._times.backoff_s
                wait_s = backoff_s * random.uniform(0.5, 1.5)
                log.exception(
                    "event task crashed replica=%s rank=%d again_in_s=%.1f", self._applier.replica, self._applier.rank, wait_s
                )
                if not self._applier.cold:
                    self._applier.set(Freshness.GAP)
                await asyncio.sleep(wait_s)
                backoff_s = min(backoff_s * 2, self._times.max_backoff_s)
