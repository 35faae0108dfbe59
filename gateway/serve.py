"""Start and stop order of one gateway process.

Start: listen on both planes first (a probe gets an answer at once, requests go by load), then health checks, event streams
and the tokenizer come in as they are ready. Stop on SIGTERM or SIGINT: readiness off, no new requests, open streams finish up
to the drain limit, then everything is closed; a second signal ends at once (FC-57).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import aiohttp
import uvloop
from aiohttp import web

from events.relay.store import Place
from gateway import compiled
from gateway.check import check_replica
from gateway.choose.policies import BY_HISTORY, policy_named
from gateway.choose.rates import Rates
from gateway.config import ReplicaSettings, Settings
from gateway.control.admin import Admin
from gateway.control.app import ControlPlane
from gateway.control.doctor_route import DoctorRoute
from gateway.control.explain_route import ExplainRoute
from gateway.control.key_metrics import KeyCollector
from gateway.control.spool_metrics import SpoolCollector
from gateway.doctor.examine import Doctor
from gateway.errors import ConfigError
from gateway.explain.ask import Explainer
from gateway.fleet import Address, Fleet, Replica
from gateway.followed import Knowledge
from gateway.guards import Guards
from gateway.health import HealthMonitor
from gateway.key_file import KeyFile
from gateway.lag import LagTicker
from gateway.place import FleetPlacer
from gateway.plane import DataPlane
from gateway.protect import protect
from gateway.request import Outcome, TrafficCounts
from gateway.tls import Certificates, Swapped, uses_files
from gateway.tokenize.load import LoadedTokenizer
from gateway.views import Views
from gateway.written import Written
from radix.index import Index
from radix.reading import ReadableIndex
from radix.sent import SentPrompts

log = logging.getLogger(__name__)
T = TypeVar("T")

_TIDY_INTERVAL_S = 0.5
_MEET_LOOKS, _MEET_LOOK_S = 100, 0.02  # for the first replica to answer its health check


class OwnKnowledge:
    """An index of this process, fed by streams that are followed here."""

    def __init__(self, settings: Settings) -> None:
        self.index = Index(budget_bytes=settings.index_mib << 20)
        self._settings = settings

    def views(self, fleet: Fleet) -> Views:
        """The streams, which feed the index."""
        return views_of(self._settings, fleet, self.index)

    async def keep(self) -> None:
        """Change over to the compiled tree, and keep it small."""
        await compiled.keep(self.index)


def views_of(settings: Settings, fleet: Fleet, index: Index) -> Views:
    """Event streams that feed an index of this process."""
    place = Place(settings.redis.url, settings.redis.prefix) if settings.redis is not None else None
    return Views(fleet, index, place)


class Gateway:
    """All parts of one gateway process, wired. `start`, wait, `stop`."""

    def __init__(self, settings: Settings, knowledge: Knowledge | None = None) -> None:
        """knowledge: of what replicas hold, where a gateway is made of several processes; else it is all in this one."""
        self.settings = settings
        self._knowledge = knowledge or OwnKnowledge(settings)
        self.index: ReadableIndex = self._knowledge.index
        self._sent = SentPrompts(self.index) if settings.policy in BY_HISTORY else None
        self.index = self._sent or self.index
        self.rates = Rates()
        self.fleet = Fleet(self.index, self.rates)
        self.traffic = TrafficCounts()
        self.views = self._knowledge.views(self.fleet)
        self.placer = FleetPlacer(
            self.fleet,
            self.index,
            policy_named(settings.policy),
            guess_ttl_s=settings.guess_ttl_s,
            receipts=settings.receipts,
            on_fault=self.fault,
            guards=Guards(self.fleet, settings.resilience),
            on_answered=self.views.answered,
        )
        self.tokenizer = LoadedTokenizer(settings.tokenizer, settings.tokenizer_caches)
        self._written = Written()
        self.doctor: Doctor | None = None
        self._key_file = KeyFile(Path(settings.api_keys_file)) if settings.api_keys_file else None
        self.plane = DataPlane(
            settings,
            self.placer,
            self.tokenizer,
            self._key_file.keys if self._key_file is not None else None,
            self.traffic,
            models=self.fleet.cards,
            ttft=self.placer.counts.ttft,
        )
        if self._key_file is not None:
            self._key_file.changed = self.plane.set_keys
        protect(self.fleet, self.placer, self.plane, settings.admission)
        admin = Admin(
            os.environ.get("TRUNKLINE_ADMIN_TOKEN"), settings.admin_networks, add=self.add_replica, remove=self.remove_replica
        )
        explainer = Explainer(self.placer, self.plane.prompts, self._knowledge.index)
        self.control = ControlPlane(
            self.placer,
            self.traffic,
            self.views,
            admin,
            lambda: self.tokenizer.state,
            self.tokenizer,
            lambda: self.plane,
            more=[*ExplainRoute(explainer, settings.limits.body_bytes).routes(), *DoctorRoute(lambda: self.doctor).routes()],
            collectors=[KeyCollector(self.plane.quotas), SpoolCollector(self._written)],
        )
        self.certificates = Certificates()
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._health: HealthMonitor | None = None
        self._lag: LagTicker | None = None
        self._runner: web.AppRunner | None = None

    async def start(self, *, serves: bool = True, share_port: bool = False) -> tuple[int, int]:
        """Listen and begin; returns the bound (data port, control port). Raises ConfigError for bad replicas.

        serves: clients, on the data port (0 without). share_port: with other processes.
        """
        listen = self.settings.listen
        self._session = aiohttp.ClientSession()
        self._lag = LagTicker(self.plane.desk.note_lag)
        self._health = HealthMonitor(
            self.fleet,
            self.settings.health,
            self._session,
            on_up=self.views.follow,
            on_down=self._suspect,
            on_asleep=self._emptied,
            unheard=self.views.unheard,
            late_s=self._lag.late_s,
            progress=self._progress,
        )
        self.doctor = Doctor(
            self.settings,
            self.placer,
            self.views,
            self._knowledge.index,
            self._health,
            self._session,
            self.tokenizer,
        )
        for replica in self.settings.replicas:
            await self.add_replica(replica, Address.parse(replica.url))
        port = 0
        control_tls = self.certificates.server(listen.control_tls, "listen.control_tls") if listen.control_tls else None
        if serves:
            self.placer.witness = self._written.open(self.settings)
            if share_port:
                await self._meet_a_replica()
            tls, handshake_s = self._client_tls()
            opening = self.plane.start(listen.host, listen.port, share_port=share_port, tls=tls, handshake_s=handshake_s)
            port = await _listening(opening, "", listen.host, listen.port)
        self._runner = web.AppRunner(self.control.app(), access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, listen.control_host, listen.control_port, ssl_context=control_tls)
        await _listening(site.start(), "control_", listen.control_host, listen.control_port)
        control_port = int(self._runner.addresses[0][1])
        of_several = share_port or not serves
        self._begin("tidy", self._tidy(), of_several)
        self._begin("index", self._keep_index(), of_several)
        self._begin("certificates", self.certificates.keep(), of_several)
        if self._key_file is not None and serves:
            self._begin("keys", self._key_file.keep(), of_several)
        if self.settings.tokenizer and serves:
            self._begin("tokenizer", self.tokenizer.keep_loading(), of_several)
        return port, control_port

    def _client_tls(self) -> tuple[Swapped | None, float]:
        """TLS of the data port and how long a handshake may take."""
        tls = self.settings.listen.tls
        if tls is None:
            return None, 0.0
        context = self.certificates.server(tls, "listen.tls")
        context.most = self.settings.limits.connections * 9 // 8 + 64  # in between, who is too many is told so
        return context, tls.handshake_s

    def look(self) -> None:
        """Look after the files that are read again when they change."""
        self.certificates.look()
        if self._key_file is not None:
            self._key_file.look()

    def _begin(self, name: str, work: Coroutine[None, None, None], of_several: bool) -> None:
        """Run something beside the requests. of_several: who started this process starts it again when it ends."""

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or (error := task.exception()) is None:
                return
            log.error("task died name=%s", name, exc_info=error)
            if of_several:
                signal.raise_signal(signal.SIGTERM)  # a process that only looks alive is worse than a new one

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(ended)
        self._tasks.append(task)

    async def _meet_a_replica(self) -> None:
        """Who shares a port gets requests at once that another process could serve: be of use first, if that is soon."""
        replicas = self.fleet.replicas
        for _ in range(_MEET_LOOKS):
            if not replicas or any(replica.eligible for replica in replicas.values()):
                return
            await asyncio.sleep(_MEET_LOOK_S)

    async def stop(self) -> None:
        """Drain, then close everything in the reverse order of `start`."""
        self.control.draining = True
        await self.plane.drain(self.settings.limits.drain_s)
        self.plane.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._health:
            await self._health.stop()
        await self.views.stop()
        if self._runner:
            await self._runner.cleanup()
        if self._session:
            await self._session.close()
        if self._lag:
            self._lag.stop()
        await self._written.close()

    async def add_replica(self, settings: ReplicaSettings, address: Address) -> str:
        """Add one replica and start watching it; returns its name."""
        name = check_replica(settings)
        dialect = settings.dialect or "openai"
        tls = self.certificates.engine(settings.tls, self.settings.replica_tls, address)
        replica = self.fleet.add(name, address, dialect=dialect, api_key=settings.api_key, ranks=settings.ranks, tls=tls)
        assert self._health is not None
        self._health.watch(replica, settings)
        return name

    async def remove_replica(self, name: str) -> bool:
        """Take one replica out; False when there is none of that name."""
        replica = self.fleet.replicas.get(name)
        if replica is None or replica.draining:  # draining: another call is at it
            return False
        replica.draining = True
        assert self._health is not None
        await self._health.unwatch(replica)
        await self.views.unfollow(replica)
        self.fleet.remove(name)
        self.placer.guards.forget(replica)
        self.plane.forget(name)
        return True

    def _progress(self, replica: Replica) -> int:
        """Of the answers of one replica: those that come, and those that came."""
        return self.plane.progress(replica) + self.placer.counts.outcomes[replica.name, Outcome.OK.value]

    def fault(self, replica: Replica) -> None:
        """Traffic met a dead connection: look now."""
        if self._health is not None:
            self._health.fault(replica)

    def _suspect(self, replica: Replica) -> None:
        """A replica does not answer."""
        self.views.suspect(replica)
        self._forget_sent(replica)

    def _emptied(self, replica: Replica) -> None:
        """A replica gave up its cache."""
        self.views.emptied(replica)
        self._forget_sent(replica)

    def _forget_sent(self, replica: Replica) -> None:
        if self._sent is not None:
            for holder in replica.holders:
                self._sent.forget(holder)

    async def _keep_index(self) -> None:
        if self._sent is not None:
            await compiled.remember(self._sent, self.settings.index_mib << 20)
        await self._knowledge.keep()

    async def _tidy(self) -> None:
        """Let expired guesses go, do what is due, and let little-known replicas follow the fleet's average rates."""
        while True:
            await asyncio.sleep(_TIDY_INTERVAL_S)
            now = self.placer.clock()
            self.placer.due.run(now)
            self.placer.guards.tick(now)
            self.index.expire(now)
            self.views.refresh()
            for replica in self.fleet.replicas.values():
                self.fleet.refresh(replica)


def rereads(settings: Settings) -> bool:
    """Whether there are files that are read again when they change."""
    return settings.api_keys_file is not None or uses_files(settings)


async def _listening(start: Awaitable[T], plane: str, host: str, port: int) -> T:
    try:
        return await start
    except OSError as error:
        raise ConfigError(f"listen.{plane}host, listen.{plane}port: cannot listen on {host!r}, {port}: {error}") from error


def serve(settings: Settings, announce: Callable[[int, int], None]) -> int:
    """Run one gateway until a signal; `announce(data_port, control_port)` once it listens. Returns the exit status."""
    log_to_stderr(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve_until_signal(Gateway(settings), announce))


def log_to_stderr(settings: Settings, process: str = "") -> None:
    """Set up logging. process: which one of several it is."""
    form = f"%(asctime)s %(levelname)s {process and process + ' '}%(name)s %(message)s"
    logging.basicConfig(level=settings.log_level.upper(), stream=sys.stderr, format=form)


async def serve_until_signal(
    gateway: Gateway, announce: Callable[[int, int], None], *, serves: bool = True, share_port: bool = False
) -> int:
    """Start, `announce`, wait for a signal, stop; see `Gateway.start`. Returns the exit status."""
    loop = asyncio.get_running_loop()
    stopping, at_once = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (at_once if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if rereads(gateway.settings):  # else it ends us, as when a terminal is closed
        loop.add_signal_handler(signal.SIGHUP, gateway.look)
    try:
        announce(*await gateway.start(serves=serves, share_port=share_port))
    except BaseException:
        await gateway.stop()
        raise
    # What lives from here on is short; full collections would walk caches and receipts for nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    await stopping.wait()
    log.info("draining limit_s=%.0f", gateway.settings.limits.drain_s)
    stop = asyncio.ensure_future(gateway.stop())
    hurry = asyncio.ensure_future(at_once.wait())
    await asyncio.wait({stop, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not stop.done():
        log.warning("second signal, ending at once")
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stop
        gateway.plane.close()
        return 1
    stop.result()
    return 0
