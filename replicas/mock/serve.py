"""Start and stop of many fake engines in one process: sockets first, then engines, then HTTP; and back."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import uvloop
import zmq
from aiohttp import web

from replicas.errors import EngineDied, ReplicaError
from replicas.mock.app import application
from replicas.mock.engine import MockEngine
from replicas.mock.faults import Fault
from replicas.mock.faulty_http import reset_transport
from replicas.mock.settings import MockSettings
from replicas.mock.stream import Place, Sockets
from replicas.mock.tokens import Codec

log = logging.getLogger(__name__)

_LAST_WRITES_S = 1.0  # for answers that are complete but not yet on the wire when the server closes
_PORT_TRIES = 20  # for ports in a row that nobody else has
_FILES_PER_RANK = 8
_FILES_PER_ENGINE = 64  # connections of clients


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How a fleet of engines is reached. Engine i has `port` + i, and its rank r the event ports + i * ranks + r; 0 takes any.

    events, replay: tcp endpoints of the first engine's first rank, None for none. faults: on from the start.
    """

    engine: MockSettings
    count: int = 1
    host: str = "0.0.0.0"
    port: int = 9000
    events: str | None = None
    replay: str | None = None
    faults: Sequence[tuple[str, Fault]] = ()
    drain_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Ready:
    """Where one engine can be reached now. events, replay: by rank, empty without."""

    port: int
    events: tuple[str, ...]
    replay: tuple[str, ...]


class HttpSide:
    """One engine behind one port, which can go down and come back."""

    def __init__(self, engine: MockEngine, host: str, port: int) -> None:
        """Binds at once; raises OSError."""
        self.engine = engine
        self._listener = _listen(host, port)
        self._host = host
        self.port: int = self._listener.getsockname()[1]
        self._runner = web.AppRunner(
            application(engine, self.bounce),
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            shutdown_timeout=_LAST_WRITES_S,
        )
        self._site: web.SockSite | None = None

    async def start(self) -> None:
        """Take connections."""
        if self._runner.server is None:
            await self._runner.setup()
        self._site = web.SockSite(self._runner, self._listener, backlog=1024)
        await self._site.start()

    async def bounce(self, down_s: float) -> None:
        """Reset every connection, refuse new ones for so long, and take them again at the same port."""
        assert self._site is not None
        await self._site.stop()
        self._listener.close()
        server = self._runner.server
        for connection in list(server.connections) if server is not None else ():
            if connection.transport is not None:
                reset_transport(connection.transport)
        await asyncio.sleep(down_s)
        self._listener = _listen(self._host, self.port)
        await self.start()

    async def stop(self) -> None:
        """Take no more connections; what is still open gets a moment."""
        await self._runner.cleanup()

    def close(self) -> None:
        """Let go of the port."""
        self._listener.close()


def serve(settings: FleetSettings, codec: Codec, announce: Callable[[list[Ready]], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once, when all engines take requests.

    Raises OSError for a taken port, ReplicaError for what can not be, and EngineDied when an engine's own loop fails.
    """
    _allow_files(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, codec, announce))


async def _serve(settings: FleetSettings, codec: Codec, announce: Callable[[list[Ready]], None]) -> None:
    asked = _stop_signals()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2 * settings.count * settings.engine.ranks + 16)
    with ExitStack() as stack:
        stack.callback(context.destroy, linger=0)
        sides = []
        for number in range(settings.count):
            engine = _engine(settings, number, codec, context)
            stack.callback(engine.close)
            sides.append(HttpSide(engine, settings.host, settings.port + number if settings.port else 0))
            stack.callback(sides[-1].close)
        steps = [task for side in sides for task in side.engine.tasks()]
        try:
            for side in sides:
                await side.start()
            announce([_ready(side) for side in sides])
            await _until(asked, steps)
            await _drain(sides, settings.drain_s)
        finally:
            for task in steps:
                task.cancel()
            await asyncio.gather(*(side.stop() for side in sides), *steps, return_exceptions=True)


def _engine(settings: FleetSettings, number: int, codec: Codec, context: zmq.Context[zmq.Socket[bytes]]) -> MockEngine:
    sockets: list[Sockets] = []
    if settings.events is not None:
        sockets = _sockets(settings, number, context)
    engine = MockEngine(number, settings.engine, codec, sockets)
    for name, fault in settings.faults:
        engine.faults.set(name, Fault(fault.value, fault.rate, fault.times, fault.rank))
    return engine


def _sockets(settings: FleetSettings, number: int, context: zmq.Context[zmq.Socket[bytes]]) -> list[Sockets]:
    """Those of all ranks, on ports in a row, as gateways count on."""
    assert settings.events is not None
    ranks, steps = settings.engine.ranks, settings.engine.buffer_steps
    first = number * ranks
    for _ in range(_PORT_TRIES):
        bound: list[Sockets] = []
        try:
            bound.append(Sockets(context, Place(_shifted(settings.events, first), _shifted_replay(settings, first)), steps))
            at = bound[0].place
            for rank in range(1, ranks):
                place = Place(_shifted(at.events, rank), at.replay and _shifted(at.replay, rank))
                bound.append(Sockets(context, place, steps))
            return bound
        except zmq.ZMQError as error:
            for each in bound:
                each.close()
            if _port(settings.events):
                raise ReplicaError(f"cannot bind the events of engine {number} at {settings.events}: {error}") from error
    raise ReplicaError(f"no {ranks} free ports in a row for the events of engine {number}")


def _shifted_replay(settings: FleetSettings, by: int) -> str | None:
    return None if settings.replay is None else _shifted(settings.replay, by)


def _port(endpoint: str) -> int:
    tail = endpoint.rpartition(":")[2]
    return int(tail) if tail.isdigit() else 0  # '*' is any


def _shifted(endpoint: str, by: int) -> str:
    """The endpoint so many ports up; one that takes any port stays."""
    port = _port(endpoint)
    if port + by > 65_535:
        raise ReplicaError(f"{endpoint} and {by} more ports go beyond 65535")
    return f"{endpoint.rpartition(':')[0]}:{port + by if port else 0}"


def _ready(side: HttpSide) -> Ready:
    places = [stream.place for stream in side.engine.streams]
    return Ready(
        side.port, tuple(place.events for place in places), tuple(place.replay for place in places if place.replay is not None)
    )


async def _until(asked: asyncio.Event, steps: Sequence[asyncio.Task[None]]) -> None:
    """Wait for a signal; an engine whose loop ends raises what it died of."""
    signalled = asyncio.create_task(asked.wait())
    try:
        done, _ = await asyncio.wait([signalled, *steps], return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
    for task in done - {signalled}:
        log.critical("engine died task=%s", task.get_name(), exc_info=task.exception())
        raise EngineDied(f"{task.get_name()} died: {task.exception()!r}")


async def _drain(sides: Sequence[HttpSide], drain_s: float) -> None:
    """Refuse what is new and let open answers finish until the time is up."""
    for side in sides:
        side.engine.draining = True
    try:
        async with asyncio.timeout(drain_s):
            for side in sides:
                await side.engine.idle.wait()
    except TimeoutError:
        pass  # they are cut when the servers close
    log.info("stopping open_requests=%d", sum(side.engine.open_requests for side in sides))


def _stop_signals() -> asyncio.Event:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    return asked


def _allow_files(settings: FleetSettings) -> None:
    """Many engines are many sockets; the usual soft limit is low and the hard one is not."""
    needed = settings.count * (settings.engine.ranks * _FILES_PER_RANK + _FILES_PER_ENGINE) + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket; raises OSError for an address that is taken or not ours."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
