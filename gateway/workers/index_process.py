"""The index process: follows the event streams once for all workers and keeps the tree that they read.

It is a gateway without a data plane: it checks the replicas itself, follows their events and has a control plane of its own,
where the supervisor asks for what only it knows. Its memory is new in each life, so that no half-made change of an earlier one is
read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from events.redis_source import RedisStream
from events.types import Freshness
from gateway.compiled import keep_trimmed
from gateway.config import Settings
from gateway.fleet import Fleet
from gateway.serve import Gateway, views_of
from gateway.views import Views
from gateway.workers.wire import (
    TO_INDEX,
    Loads,
    Notes,
    RankLoad,
    StreamState,
    Told,
    WireError,
    framed,
    greet,
    next_message,
    next_visitor,
)
from radix.core.compiled import CompiledTree
from radix.core.layout import HEARTBEAT
from radix.directory import Directory, directory_of
from radix.flat import FlatTree
from radix.index import Index

log = logging.getLogger("gateway.workers.index_process")  # it is run as a module

_TICK_S = 0.05
_TELL_S = 1.0  # counters, also when nothing else changed
_UNREAD_BYTES = 16 << 20  # a worker that does not read is let go; it may knock again

_State = tuple[Directory, dict[int, Freshness]]


@dataclass(slots=True)
class Worker:
    """One that is connected. loads: what it gave to replicas. told: what it was told of the others' last."""

    loads: list[RankLoad] = field(default_factory=list)
    told: list[RankLoad] = field(default_factory=list)


class IndexProcess:
    """The writer of the shared tree, and its workers' ear."""

    def __init__(self, settings: Settings, door: socket.socket) -> None:
        """door: the index process's side of `wire.new_door`."""
        self._settings = settings
        self._door = door
        self._tree = FlatTree(CompiledTree(shared=True))
        self._index = Index(budget_bytes=settings.index_mib << 20)
        self._index.work_on(self._tree)
        while self._index.move():
            pass
        self._workers: dict[asyncio.StreamWriter, Worker] = {}
        self._heartbeat = self._tree.compiled.memory.words(HEARTBEAT, 1)
        self.gateway = Gateway(settings, self)

    @property
    def index(self) -> Index:
        """The one that is written here."""
        return self._index

    def views(self, fleet: Fleet) -> Views:
        """The streams that feed it."""
        return views_of(self._settings, fleet, self._index)

    async def keep(self) -> None:
        """Let workers in and tell them what changes; for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick(), name="index tick")
            group.create_task(keep_trimmed(self._index), name="index trim")
            while True:
                try:
                    visitor = await next_visitor(self._door)
                    self._greet(visitor, group)
                except (OSError, WireError) as error:  # it left before it was let in
                    log.info("worker not let in error=%s", error)

    def _greet(self, visitor: socket.socket, group: asyncio.TaskGroup) -> None:
        handle = self._tree.compiled.memory.handle
        assert handle is not None
        try:
            greet(visitor, handle)
        except OSError:
            visitor.close()
            raise
        group.create_task(self._listen(visitor), name="worker")

    async def _listen(self, visitor: socket.socket) -> None:
        """One worker, to its end."""
        reader, writer = await asyncio.open_connection(sock=visitor)
        worker = self._workers[writer] = Worker()
        writer.write(framed(self._told()))
        try:
            while True:
                self._take(worker, await next_message(reader, TO_INDEX))
        except (asyncio.IncompleteReadError, OSError):
            pass  # it ended
        except WireError as error:
            log.warning("worker let go error=%s", error)
        finally:
            del self._workers[writer]
            writer.close()

    def _take(self, worker: Worker, notes: Notes) -> None:
        fleet = self.gateway.fleet
        if notes.loads is not None:
            worker.loads = notes.loads
        for name, rank, tokens in notes.answered:
            replica = fleet.replicas.get(name)
            if replica is not None and rank < len(replica.holders):
                self.gateway.views.answered(replica.holders[rank], tokens)
        for name in notes.faults:
            if name in fleet.replicas:
                self.gateway.fault(fleet.replicas[name])

    async def _tick(self) -> None:
        told: _State | None = None
        told_at = 0.0
        while True:
            self._heartbeat[0] = time.monotonic_ns()
            state = self._state()
            if state != told or time.monotonic() - told_at >= _TELL_S:
                told, told_at = state, time.monotonic()
                message = framed(self._told())
                for writer in list(self._workers):
                    self._tell(writer, message)
            self._share_loads()
            await asyncio.sleep(_TICK_S)

    def _share_loads(self) -> None:
        """Tell each worker what the others have given to replicas, where that changed."""
        for writer, worker in list(self._workers.items()):
            elsewhere = added_up([other.loads for other in self._workers.values() if other is not worker])
            if elsewhere != worker.told:
                worker.told = elsewhere
                self._tell(writer, framed(Loads(elsewhere)))

    def _tell(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        if writer.transport.get_write_buffer_size() > _UNREAD_BYTES:
            log.warning("worker let go error=%s", "it does not read")
            writer.transport.abort()
        elif not writer.is_closing():
            writer.write(message)

    def _state(self) -> _State:
        freshness = self.gateway.fleet.view.freshness
        return directory_of(self._index, self._tree), {holder: freshness[holder] for holder in self.gateway.fleet.by_holder}

    def _told(self) -> Told:
        fleet = self.gateway.fleet
        streams = []
        for replica, rank, stream in self.gateway.views.streams():
            holder = fleet.replicas[replica].holders[rank]
            relayed = isinstance(stream, RedisStream) and stream.relayed
            streams.append(
                StreamState(replica, rank, fleet.view.freshness[holder].value, stream.connected, relayed, stream.counts)
            )
        return Told(directory_of(self._index, self._tree), streams, self._index.stats())


def added_up(loads: Iterable[Iterable[RankLoad]]) -> list[RankLoad]:
    """The sum of several workers' loads, by rank, in an order that depends on nothing else."""
    sums: dict[tuple[str, int], RankLoad] = {}
    for of_worker in loads:
        for load in of_worker:
            key = (load.replica, load.rank)
            before = sums.get(key, RankLoad(*key, 0, 0, 0))
            sums[key] = RankLoad(
                *key,
                before.in_flight + load.in_flight,
                before.queued_tokens + load.queued_tokens,
                before.decoding + load.decoding,
            )
    return [sums[key] for key in sorted(sums)]
