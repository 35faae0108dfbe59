"""`trunkline serve --workers N`: one index process, N workers on one data port, and this process, which keeps them running.

Start: the port is taken, the processes start, the control plane opens when all workers listen. A process that ends is started
again with the replicas there are by then; the others never stop. Stop on SIGTERM or SIGINT: the workers drain, then the index
process ends; a second signal is passed on, and ends them at once (FC-57).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable

import msgspec
import uvloop
from aiohttp import web

from gateway.check import check_replica
from gateway.config import Listen, ReplicaSettings, Settings
from gateway.control.admin import Admin
from gateway.errors import ConfigError
from gateway.fleet import Address
from gateway.record import KEY_VARIABLE, TraceKey
from gateway.request_log import STDOUT_VARIABLE
from gateway.serve import log_to_stderr, rereads
from gateway.spool import keep_older
from gateway.tls import Certificates
from gateway.workers.child import Job
from gateway.workers.control import MergedControl
from gateway.workers.processes import Process
from gateway.workers.shares import share_of_line, share_of_retries
from gateway.workers.watchdog import Watchdog
from gateway.workers.wire import new_door

log = logging.getLogger(__name__)

_END_S = 5.0  # beyond the drain limit
_ANYWHERE = ("0.0.0.0/0", "::/0")  # what may be added is decided here; workers believe us


class Supervisor:
    """All processes of one gateway. `start`, wait, `stop`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._replicas = {check_replica(replica): replica for replica in settings.replicas}
        self._inside, self._outside = new_door()
        self._port = _taken_port(settings.listen.host, settings.listen.port)
        self._token = secrets.token_urlsafe(32)
        environment = {"TRUNKLINE_ADMIN_TOKEN": self._token}
        if settings.record is not None:  # one file, so one key and one clock
            keep_older(settings.record.file)
            environment[KEY_VARIABLE] = TraceKey.new().handed_on()
        self._stdout = (os.dup(1),) if settings.request_log == "-" else ()
        for handle in self._stdout:
            environment[STDOUT_VARIABLE] = str(handle)
        self.index = Process("index", lambda: self._job("index", "index", self._inside), environment)
        names = [f"worker-{number}" for number in range(settings.workers)]
        self.workers = [Process(name, self._worker_job(name), environment) for name in names]
        admin = Admin(os.environ.get("TRUNKLINE_ADMIN_TOKEN"), settings.admin_networks, add=self._add, remove=self._remove)
        self.control = MergedControl(self.index, self.workers, admin, lambda: self.draining, self._token)
        self.draining = False
        self._watchdog = Watchdog([self.index, *self.workers], self._answers)
        self.certificates = Certificates()
        self._watching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> tuple[int, int]:
        """Start all processes; returns (data port, control port) when all workers listen. Raises ConfigError."""
        self.index.start()
        for worker in self.workers:
            worker.start()
        await asyncio.gather(*(worker.first_ready() for worker in self.workers))
        self._watching = asyncio.create_task(self._watchdog.run(), name="watchdog")
        listen = self.settings.listen
        tls = self.certificates.server(listen.control_tls, "listen.control_tls") if listen.control_tls else None
        self._looking = asyncio.create_task(self.certificates.keep(), name="certificates")
        self._runner = web.AppRunner(self.control.app(), access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, listen.control_host, listen.control_port, ssl_context=tls).start()
        except OSError as error:
            where = f"{listen.control_host!r}, {listen.control_port}"
            raise ConfigError(f"listen.control_host, listen.control_port: cannot listen on {where}: {error}") from error
        return int(self._port.getsockname()[1]), int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Let the workers drain, then end the index process, then the control plane."""
        self.draining = True
        for task in (self._watching, self._looking):
            if task is not None:
                task.cancel()
        within_s = self.settings.limits.drain_s + _END_S
        await asyncio.gather(*(worker.stop(within_s) for worker in self.workers))
        await self.index.stop(_END_S)
        if self._runner is not None:
            await self._runner.cleanup()
        for sock in (self._inside, self._outside, self._port):
            sock.close()
        for handle in self._stdout:
            os.close(handle)

    def look(self) -> None:
        """Have every process look after its files now."""
        self.certificates.look()
        for process in (self.index, *self.workers):
            process.signal(signal.SIGHUP)

    def hurry(self) -> None:
        """Do not wait for open requests."""
        for worker in self.workers:
            worker.signal(signal.SIGTERM)

    async def _answers(self, process: Process) -> bool:
        return await self.control.ask(process, "GET", "/livez") is not None

    def _worker_job(self, name: str) -> Callable[[], Job]:
        return lambda: self._job("worker", name, self._outside)

    def _job(self, role: str, name: str, door: socket.socket) -> Job:
        given = self.settings.listen
        listen = Listen(given.host, self._port.getsockname()[1], "127.0.0.1", 0, tls=given.tls)
        settings = msgspec.structs.replace(
            self.settings,
            listen=listen,
            replicas=tuple(self._replicas.values()),
            admin_networks=_ANYWHERE,
            workers=1,
            admission=share_of_line(self.settings.admission, self.settings.workers),
            resilience=share_of_retries(self.settings.resilience, self.settings.workers),
        )
        return Job("index" if role == "index" else "worker", name, settings, door.fileno(), self._stdout)

    async def _add(self, settings: ReplicaSettings, address: Address) -> str:
        """Add a replica in every process, at the address that was judged."""
        name = check_replica(settings)
        if name in self._replicas:
            raise ConfigError(f"replica name {name!r} is used twice")
        scheme = "https" if address.tls else "http"
        pinned = msgspec.structs.replace(settings, name=name, url=f"{scheme}://{address.netloc}{address.base_path}")
        self._replicas[name] = pinned
        await self._everywhere("POST", "/replicas", 201, msgspec.json.encode(pinned))
        return name

    async def _remove(self, name: str) -> bool:
        if self._replicas.pop(name, None) is None:
            return False
        await self._everywhere("DELETE", f"/replicas/{name}", 204)
        return True

    async def _everywhere(self, method: str, path: str, wanted: int, body: bytes | None = None) -> None:
        """Change all processes; one that does not follow is ended, and comes back with the replicas there are."""

        async def change(process: Process) -> None:
            answer = await self.control.ask(process, method, path, body=body, token=self._token)
            if answer is None or answer.status != wanted:
                log.warning("process does not follow name=%s method=%s path=%s: started anew", process.name, method, path)
                process.signal(signal.SIGTERM)

        await asyncio.gather(*(change(process) for process in (self.index, *self.workers)))


def serve_workers(settings: Settings, announce: Callable[[int, int], None]) -> int:
    """Run a gateway of several processes until a signal; `announce(data_port, control_port)` once all workers listen.

    Raises ConfigError.
    """
    if not hasattr(os, "memfd_create"):
        raise ConfigError(f"workers: more than one needs Linux, got {settings.workers}")
    log_to_stderr(settings, "supervisor")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, announce))


async def _serve(settings: Settings, announce: Callable[[int, int], None]) -> int:
    loop = asyncio.get_running_loop()
    stopping, at_once = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (at_once if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    supervisor = Supervisor(settings)
    if rereads(settings):
        loop.add_signal_handler(signal.SIGHUP, supervisor.look)
    starting, stop_asked = asyncio.ensure_future(supervisor.start()), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({starting, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            announce(*starting.result())
            await stop_asked
    finally:
        starting.cancel()
        stop_asked.cancel()
        hurry = asyncio.ensure_future(_hurry(at_once, supervisor))
        await supervisor.stop()
        hurry.cancel()
    return 1 if at_once.is_set() else 0


async def _hurry(at_once: asyncio.Event, supervisor: Supervisor) -> None:
    await at_once.wait()
    log.warning("second signal, ending at once")
    supervisor.hurry()


def _taken_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the data port ours; it does not listen, so it gets no connection. Raises ConfigError."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind, protocol) as probe:  # nobody else's, not even another gateway's that shares
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(where)
    except OSError as error:
        raise ConfigError(f"listen.host, listen.port: cannot listen on {host!r}, {port}: {error}") from error
    return taken
