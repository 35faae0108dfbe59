"""A worker's line to the index process: takes its shared memory, hears what it tells, and says what streams have to know.

When the index process dies, or says no word for `_SILENT_S`, routing goes on with the last view, marked stale. The view of the
next index process is empty at first; it is taken once it knows every replica that the old one knew. After `_STALE_S` the old view
is dropped, whatever the new one knows: what replicas hold has changed too much.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from events.types import Freshness
from gateway.fleet import Fleet
from gateway.workers.remote_views import RemoteViews
from gateway.workers.wire import TO_WORKER, Loads, Told, WireError, framed, greeting, knock, next_message
from radix.core.memory import Memory
from radix.errors import RadixError
from radix.shared import SharedIndex

if TYPE_CHECKING:
    from radix.core.shared_matcher import SharedMatcher

log = logging.getLogger(__name__)

_SILENT_S = 2.0
_STALE_S = 10.0
_RETRY_S = 0.2
_PULSE_S = 0.1  # what is to be told is told together
_UNREAD_BYTES = 1 << 20

Owner = tuple[str, int]


class SharedKnowledge:
    """What a worker knows: the index process's tree, and the freshness it tells."""

    def __init__(self, door: socket.socket) -> None:
        """door: the workers' side of `wire.new_door`."""
        self.index = SharedIndex()
        self._door = door
        self._link: IndexLink | None = None

    def views(self, fleet: Fleet) -> RemoteViews:
        """The streams as the index process tells of them."""
        views = RemoteViews(fleet)
        self._link = IndexLink(self._door, self.index, views)
        return views

    async def keep(self) -> None:
        """Stay connected."""
        assert self._link is not None, "views first"
        await self._link.run()


class IndexLink:
    """Keeps a `SharedIndex` and the views of a worker in step with whichever index process there is."""

    def __init__(
        self, door: socket.socket, index: SharedIndex, views: RemoteViews, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """door: the workers' side of `wire.new_door`. clock: the monotonic one, in seconds."""
        self._door = door
        self._index = index
        self._views = views
        self._clock = clock
        self._heard_at: float | None = None  # None: never, or what was heard is dropped by now
        self._matcher: SharedMatcher | None = None  # of the index process that is connected
        self._writer: asyncio.StreamWriter | None = None
        self._known: frozenset[Owner] = frozenset()  # whose view was not cold in what is read
        self._adopted = False  # what is read is what is connected
        self._stale = False
        self.connections = 0

    async def run(self) -> None:
        """Connect, again and again; for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pulse(), name="index pulse")
            while True:
                try:
                    await self._follow()
                except (OSError, asyncio.IncompleteReadError, WireError, RadixError) as error:
                    log.warning("index process lost error=%s", str(error) or type(error).__name__)
                self.lost()
                await asyncio.sleep(_RETRY_S)

    @property
    def stale(self) -> bool:
        """Nothing is heard from the index process."""
        return self._stale or self._heard_at is None

    async def _follow(self) -> None:
        """One index process, from the greeting to its end."""
        connection = await knock(self._door)
        try:
            handle = await greeting(connection)
            try:
                self.open(await asyncio.to_thread(_matcher_of, handle))
            finally:
                os.close(handle)
            reader, writer = await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        self._writer = writer
        try:
            while True:
                message = await next_message(reader, TO_WORKER)
                if isinstance(message, Loads):
                    self._views.share(message.elsewhere)
                else:
                    self.hear(message)
        finally:
            writer.close()

    def open(self, matcher: SharedMatcher) -> None:
        """An index process let us in; its view is read once it knows enough."""
        self._matcher, self._adopted = matcher, False
        self.connections += 1

    def lost(self) -> None:
        """The index process ended."""
        self._writer = self._matcher = None
        self._adopted = False
        self._views.nobody_listens()
        self._mark_stale()

    def hear(self, told: Told) -> None:
        """Something was told by the process whose memory was taken last."""
        assert self._matcher is not None
        if self._adopted:
            self._index.learn(told.directory)
        elif not self._index.reads or self._known <= _known_by(told):
            self._index.adopt(self._matcher, told.directory)
            self._adopted = True
        else:
            return
        self._heard_at, self._stale = self._clock(), False
        self._known = _known_by(told)
        self._index.note(told.stats)
        self._views.learn(told.streams)

    def check(self) -> None:
        """Whether the index process still lives, and whether its last view may still be used."""
        if self._heard_at is None:
            return
        now = self._clock()
        if self._adopted and self._matcher is not None:
            written_at = self._matcher.written_at_ns / 1e9
            if now - written_at <= _SILENT_S:
                self._heard_at = max(self._heard_at, written_at)
                if self._stale:
                    self._stale = False
                    self._views.heard()
                return
            self._mark_stale()
        if now - self._heard_at > _STALE_S:
            log.warning("index view dropped s=%g: requests go by load", _STALE_S)
            self._heard_at, self._known, self._adopted = None, frozenset(), False
            self._index.lose()
            self._views.expire(gone=True)

    def _mark_stale(self) -> None:
        if self._heard_at is not None and not self._stale:
            self._stale = True
            self._views.expire(gone=False)

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(_PULSE_S)
            self.check()
            self._tell()

    def _tell(self) -> None:
        writer = self._writer
        if writer is None or writer.is_closing() or writer.transport.get_write_buffer_size() > _UNREAD_BYTES:
            return  # who does not read is told later, together
        if (notes := self._views.notes()) is not None:
            writer.write(framed(notes))


def _matcher_of(handle: int) -> SharedMatcher:
    """Map another process's tree; loads the compiled code, which takes a part of a second, when it is the first."""
    from radix.core.shared_matcher import SharedMatcher

    return SharedMatcher(Memory(handle=handle, huge_pages=False))


def _known_by(told: Told) -> frozenset[Owner]:
    return frozenset((state.replica, state.rank) for state in told.streams if state.freshness != Freshness.COLD.value)
