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
from gateway.auth import Keys
from gateway.check import check_replica
from gateway.choose.policies import BY_HISTORY, policy_named
from gateway.choose.rates import Rates
from gateway.config import ReplicaSettings, Settings, TokenizerCaches
from gateway.control.admin import Admin
from gateway.control.app import ControlPlane
from gateway.control.doctor_route import DoctorRoute
from gateway.control.explain_route import ExplainRoute
from gateway.control.spool_metrics import SpoolCollector
from gateway.doctor.examine import Doctor
from gateway.errors import ConfigError
from gateway.explain.ask import Explainer
from gateway.fleet import Address, Fleet, Replica
from gateway.followed import Knowledge
from gateway.health import HealthMonitor
from gateway.place import FleetPlacer
from gateway.plane import DataPlane
from gateway.record import Recorder
from gateway.request import TrafficCounts
from gateway.request_log import RequestLog
from gateway.tokenize.cached import CachedTokenizer
from gateway.tokenize.folder import model_folder
from gateway.tokenize.prompt import Tokenizer
from gateway.views import Views
from gateway.witness import Witnesses
from radix.index import Index
from radix.reading import ReadableIndex
from radix.sent import SentPrompts

log = logging.getLogger(__name__)
T = TypeVar("T")

_TIDY_INTERVAL_S = 0.5
_MEET_LOOKS, _MEET_LOOK_S = 100, 0.02  # for the first replica to answer its health check
_FETCH_HINT = "; `trunkline model fetch smollm2` brings it"


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
            on_answered=self.views.answered,
        )
        self.tokenizer: CachedTokenizer | None = None
        self.recorder: Recorder | None = None
        self.request_log: RequestLog | None = None
        self.doctor: Doctor | None = None
        keys = Keys.load(Path(settings.api_keys_file)) if settings.api_keys_file else None
        self.plane = DataPlane(
            settings, self.placer, lambda: self.tokenizer, keys, self.traffic, models=lambda: list(self.fleet.models())
        )
        admin = Admin(
            os.environ.get("TRUNKLINE_ADMIN_TOKEN"), settings.admin_networks, add=self.add_replica, remove=self.remove_replica
        )
        explainer = Explainer(self.placer, self.plane.prompts, self._knowledge.index)
        self.control = ControlPlane(
            self.placer,
            self.traffic,
            self.views,
            admin,
            self._tokenizer_state,
            lambda: self.tokenizer,
            more=[*ExplainRoute(explainer, settings.limits.body_bytes).routes(), *DoctorRoute(lambda: self.doctor).routes()],
            collectors=[SpoolCollector(lambda: self.recorder, lambda: self.request_log)],
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._health: HealthMonitor | None = None
        self._runner: web.AppRunner | None = None

    async def start(self, *, serves: bool = True, share_port: bool = False) -> tuple[int, int]:
        """Listen and begin; returns the bound (data port, control port). Raises ConfigError for bad replicas.

        serves: clients, on the data port (0 without). share_port: with other processes.
        """
        listen = self.settings.listen
        self._session = aiohttp.ClientSession()
        self._health = HealthMonitor(
            self.fleet,
            self.settings.health,
            self._session,
            on_up=self.views.follow,
            on_down=self._suspect,
            on_asleep=self._emptied,
            unheard=self.views.unheard,
        )
        self.doctor = Doctor(
            self.settings,
            self.placer,
            self.views,
            self._knowledge.index,
            self._health,
            self._session,
            lambda: self.tokenizer,
        )
        for replica in self.settings.replicas:
            await self.add_replica(replica, Address.parse(replica.url))
        port = 0
        if serves:
            self._witness()
            if share_port:
                await self._meet_a_replica()
            opening = self.plane.start(listen.host, listen.port, share_port=share_port)
            port = await _listening(opening, "", listen.host, listen.port)
        self._runner = web.AppRunner(self.control.app(), access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, listen.control_host, listen.control_port)
        await _listening(site.start(), "control_", listen.control_host, listen.control_port)
        control_port = int(self._runner.addresses[0][1])
        of_several = share_port or not serves
        self._begin("tidy", self._tidy(), of_several)
        self._begin("index", self._keep_index(), of_several)
        if self.settings.tokenizer and serves:
            self._begin("tokenizer", self._load_tokenizer(self.settings.tokenizer), of_several)
        return port, control_port

    def _witness(self) -> None:
        """Open the files that requests are written to; raises ConfigError."""
        settings = self.settings
        self.recorder = Recorder(settings.record) if settings.record is not None else None
        self.request_log = RequestLog(settings.request_log) if settings.request_log is not None else None
        self.placer.witness = Witnesses([one for one in (self.recorder, self.request_log) if one is not None])

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
        for one in (self.recorder, self.request_log):
            if one is not None:
                await asyncio.to_thread(one.spool.close)

    async def add_replica(self, settings: ReplicaSettings, address: Address) -> str:
        """Add one replica and start watching it; returns its name."""
        name = check_replica(settings)
        dialect = settings.dialect or "openai"
        replica = self.fleet.add(name, address, dialect=dialect, api_key=settings.api_key, ranks=settings.ranks)
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
        self.plane.forget(name)
        return True

    def _tokenizer_state(self) -> str:
        if self.tokenizer is not None:
            return "ready"
        return "loading" if self.settings.tokenizer else "none"

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

    async def _load_tokenizer(self, name: str) -> None:
        """Load in a thread; a folder that can not be loaded is tried again with growing pauses, never per request (FC-53)."""
        pause_s = 1.0
        while True:
            try:
                folder = model_folder(name)
                if not folder.is_dir():
                    raise FileNotFoundError(f"{folder} is not there{_FETCH_HINT if name == 'smollm2' else ''}")
                self.tokenizer = await asyncio.to_thread(load_tokenizer, folder, self.settings.tokenizer_caches)
            except Exception as error:
                log.error("tokenizer failed to load name=%s retry_s=%.0f error=%s", name, pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 60.0)
            else:
                caches = ",".join(self.tokenizer.caches) or "none"
                log.info("tokenizer ready name=%s vocabulary=%d caches=%s", name, self.tokenizer.vocab_size, caches)
                return

    async def _tidy(self) -> None:
        """Let expired guesses go, do what is due, and let little-known replicas follow the fleet's average rates."""
        while True:
            await asyncio.sleep(_TIDY_INTERVAL_S)
            now = self.placer.clock()
            self.placer.due.run(now)
            self.index.expire(now)
            self.views.refresh()
            for replica in self.fleet.replicas.values():
                self.fleet.refresh(replica)


def load_tokenizer(folder: Path, caches: TokenizerCaches) -> CachedTokenizer:
    """Read and prove a folder's tokenizer and the caches that are switched on; raises NoTokens. Takes about a second."""
    tokenizer = Tokenizer.load(folder)
    return CachedTokenizer(tokenizer, segments=caches.segments, plan=caches.plan, lift=caches.lift, budget_mib=caches.budget_mib)


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
