"""Connections to the replicas: the idle ones kept, new ones opened.

Last in, first out, so that the pool shrinks to what is needed. A connection that has been idle for nearly as long as its
engine keeps idle connections is not used again (FC-34); how long that is, is learned from the closes that are seen.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Protocol

from gateway.fleet import Address, EngineTls, Replica
from gateway.http1.aborts import Aborts
from gateway.http1.answer import AnswerReader
from gateway.http1.engine_side import EngineConnection

log = logging.getLogger(__name__)

_MAX_IDLE = 64
_IDLE_S = 4.0  # below the 5 s of the servers most engines run on
_LEAST_IDLE_S = 0.5
_IDLE_SHARE = 0.8  # of the shortest idle time after which the engine was seen to close


class Waiter(Protocol):
    """Who asked for a new connection."""

    def connected(self, connection: EngineConnection) -> bool:
        """Take the connection; False when it is no longer wanted."""
        ...

    def connect_failed(self, error: Exception) -> None: ...


class Pool:
    """The connections to one replica."""

    def __init__(
        self,
        replica: Replica,
        connect_s: float,
        answers: AnswerReader,
        abort_ended: Callable[[str], None] = lambda result: None,
    ) -> None:
        """abort_ended: told how each call to stop a request of this replica ended."""
        self.replica = replica
        self.aborts = Aborts(self, abort_ended)
        self.host_line = b"host: %s\r\n" % replica.address.netloc.encode()
        self.base_path = replica.address.base_path.encode()
        self._address: Address = replica.address
        self._answers = answers
        self._connect_s = connect_s
        self._idle: list[EngineConnection] = []
        self._idle_s = _IDLE_S
        self._closed = False
        self._opening: set[asyncio.Task[None]] = set()
        self._tls = replica.tls
        if replica.address.tls and self._tls is None:
            self._tls = EngineTls(ssl.create_default_context(), replica.address.host)

    @property
    def idle(self) -> int:
        """Connections ready for use."""
        return len(self._idle)

    def take(self) -> EngineConnection | None:
        """The newest idle connection that can still be trusted."""
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and not connection.closing:
                return connection
            connection.abort()
        return None

    def give(self, connection: EngineConnection) -> None:
        """Take a connection back whose last answer is complete."""
        connection.idle_since = asyncio.get_running_loop().time()
        if connection.closing or self._closed or len(self._idle) >= _MAX_IDLE:
            connection.abort()
        else:
            self._idle.append(connection)

    def lost(self, connection: EngineConnection) -> None:
        """An idle connection was closed by the engine: forget it, and learn how long it keeps them."""
        if connection not in self._idle:
            return
        self._idle.remove(connection)
        idle_s = asyncio.get_running_loop().time() - connection.idle_since
        self._idle_s = min(self._idle_s, max(_LEAST_IDLE_S, idle_s * _IDLE_SHARE))

    def expire(self, now: float) -> None:
        """Close what has been idle too long."""
        while self._idle and self._idle[0].idle_since < now - self._idle_s:
            self._idle.pop(0).abort()

    def open(self, waiter: Waiter) -> None:
        """Start connecting; the waiter is told. The only place of the data plane that needs a task."""
        task = asyncio.get_running_loop().create_task(self._open(waiter))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def close(self) -> None:
        """Drop all connections, also those being opened."""
        self._closed = True  # what is in use comes back later
        self.aborts.close()
        for task in self._opening:
            task.cancel()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _open(self, waiter: Waiter) -> None:
        loop = asyncio.get_running_loop()
        address, tls = self._address, self._tls
        context, name = (tls.context, tls.server_name) if tls is not None else (None, None)
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: EngineConnection(self, self._answers), address.host, address.port, ssl=context, server_hostname=name
                )
        except Exception as error:  # refused, too slow, no such name, no trust: whatever it is, the waiter goes elsewhere
            waiter.connect_failed(error)
            return
        if not waiter.connected(connection):
            self.give(connection)  # its client has gone; the next one can use it


class Pools:
    """One pool per replica."""

    def __init__(self, connect_s: float, abort_ended: Callable[[str], None] = lambda result: None) -> None:
        """abort_ended: see `Pool`."""
        self._connect_s = connect_s
        self._abort_ended = abort_ended
        self._answers = AnswerReader()
        self._pools: dict[str, Pool] = {}

    def of(self, replica: Replica) -> Pool:
        """The replica's pool; a new one where its name now belongs to another replica."""
        pool = self._pools.get(replica.name)
        if pool is None or pool.replica is not replica:
            if pool is not None:
                pool.close()
            pool = self._pools[replica.name] = Pool(replica, self._connect_s, self._answers, self._abort_ended)
        return pool

    def forget(self, name: str) -> None:
        """Close the connections of a replica that left the fleet (FC-14)."""
        pool = self._pools.pop(name, None)
        if pool is not None:
            pool.close()

    def expire(self, now: float) -> None:
        """Close what has been idle too long; once a tick."""
        for pool in self._pools.values():
            pool.expire(now)

    def close(self) -> None:
        """Drop everything."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def idle(self) -> int:
        """Idle connections to all replicas."""
        return sum(pool.idle for pool in self._pools.values())

    def aborting(self) -> int:
        """Calls to stop requests that are on their way to all replicas."""
        return sum(pool.aborts.open for pool in self._pools.values())
