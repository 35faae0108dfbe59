"""Is a replica there, what does it serve, what does it speak: asked over HTTP, one task per replica.

Going down takes several failures in a row, coming back several successes; a fault seen by traffic only wakes the next check
early. Which failures count, and which of them end what the replica held, `verdict.py` says. Open streams are never cut by a
change here, and load is never touched (FC-25).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import orjson

from gateway.cards import Card
from gateway.config import Health, ReplicaSettings
from gateway.dialects import dialect_named
from gateway.fleet import Fleet, Replica
from gateway.tls import reason_of
from gateway.verdict import BadAnswer, Failure, counts, failure_of

log = logging.getLogger(__name__)

# A refused connection is no matter of patience: the next look comes this soon, so that a killed process is out in time.
_REFUSED_RETRY_S = 0.1
_READ_AGAIN_S = 30.0  # between two readings of the facts of a healthy replica
_READ_UNHEARD_S = 2.0  # the same, while its events can not be heard
_ANSWER_BYTES = 1024 * 1024
_DIALECTS = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "trtllm"}  # by `owned_by` of an engine's models
_REPEATING_OWNERS = ("sglang", "tensorrt_llm")  # `owned_by` of their models
_REPEATING_DIALECTS = ("sglang", "trtllm")
_POLLED_OWNER = "tensorrt_llm"
_BLOCK_TOKENS_METRIC = re.compile(rb"^trtllm_kv_cache_tokens_per_block(?:\{[^}\n]*\})? ([0-9]{1,6})(?:\.0*)?\s", re.MULTILINE)
_MAX_RANKS = 1024  # what a replica says is not believed beyond this


@dataclass(frozen=True, slots=True)
class Facts:
    """What a replica told about itself.

    event_sources: rank -> (events endpoint, replay endpoint or None), published under `topic`. repeats_stores: its events name
    a block again without a further copy (SGLang, TensorRT-LLM). has_queue: its events can be polled, of blocks of
    `queue_block_tokens`, 0 where it does not say. cards: what it says of each model.
    """

    models: tuple[str, ...] = ()
    dialect: str = "openai"
    event_sources: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    topic: str = ""
    repeats_stores: bool = False
    has_queue: bool = False
    queue_block_tokens: int = 0
    cards: tuple[Card, ...] = field(default=(), compare=False)  # of `models`, which are compared


@dataclass(slots=True)
class _Watch:
    settings: ReplicaSettings
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    mark: int | None = None  # how far its answers were early in this check
    failures: int = 0
    successes: int = 0
    read_at: float = 0.0
    tells_sleep: bool = False  # it has the page that says so
    asleep: bool = False
    keeps_view: bool = False  # it is down because it is late: its process may be the one we know


class HealthMonitor:
    """Checks every replica.

    on_up gets the facts each time a replica comes (back), and again now and then while it is up: sooner when it is `unheard`,
    that is, a stream of its events has no connection. on_down is called when it is given up with all it held, on_asleep at each
    check at which it says that it sleeps. late_s: how long our own loop did not turn since a time on its clock. progress: changes
    while answers of a replica come.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: Health,
        session: aiohttp.ClientSession,
        *,
        on_up: Callable[[Replica, ReplicaSettings, Facts], Awaitable[None]],
        on_down: Callable[[Replica], None],
        on_asleep: Callable[[Replica], None] = lambda replica: None,
        unheard: Callable[[Replica], bool] = lambda replica: False,
        late_s: Callable[[float], float] = lambda since: 0.0,
        progress: Callable[[Replica], int] = lambda replica: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._session = session
        self._on_up = on_up
        self._on_down = on_down
        self._on_asleep = on_asleep
        self._unheard = unheard
        self._late_s = late_s
        self._progress = progress
        self._clock = clock
        self._watches: dict[str, _Watch] = {}

    def watch(self, replica: Replica, settings: ReplicaSettings) -> None:
        """Start checking; until the first answer the replica is not eligible."""
        replica.healthy = False
        self._fleet.refresh(replica)
        watch = self._watches[replica.name] = _Watch(settings)
        watch.task = asyncio.create_task(self._run(replica, watch), name=f"health {replica.name}")

    def fault(self, replica: Replica) -> None:
        """Traffic met a refused or dead connection: look now."""
        if watch := self._watches.get(replica.name):
            watch.wake.set()

    def settings_of(self, replica: Replica) -> ReplicaSettings:
        """How a replica that is watched is set up here."""
        return self._watches[replica.name].settings

    async def read(self, replica: Replica) -> Facts:
        """What a replica tells of itself now, whatever is set up; raises what asking raises."""
        return await self._facts(replica, msgspec.structs.replace(self.settings_of(replica), events=None))

    async def unwatch(self, replica: Replica) -> None:
        """Stop checking one replica."""
        if (watch := self._watches.pop(replica.name, None)) and watch.task:
            watch.task.cancel()
            await asyncio.gather(watch.task, return_exceptions=True)

    async def stop(self) -> None:
        """Stop all checks."""
        tasks = [watch.task for watch in self._watches.values() if watch.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watches.clear()

    async def _run(self, replica: Replica, watch: _Watch) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause_s = self._settings.interval_s
            began_at = loop.time()
            watch.mark = None
            timer = loop.call_later(self._settings.timeout_s / 4, self._set_mark, replica, watch)
            try:
                await self._check(replica)
                await self._passed(replica, watch)
            except Exception as error:  # whatever a replica answers, its checks go on
                failure = failure_of(error)
                if self._speaks_against(replica, watch, failure, began_at):
                    self._failed(replica, watch, failure, error)
                else:
                    replica.last_error = f"{_short(error, replica)}; it works, or this process stood still"
                if failure is Failure.REFUSED and replica.healthy:
                    pause_s = min(pause_s, _REFUSED_RETRY_S)
            timer.cancel()
            watch.wake.clear()
            try:
                await asyncio.wait_for(watch.wake.wait(), pause_s)
            except TimeoutError:
                pass

    def _set_mark(self, replica: Replica, watch: _Watch) -> None:
        """Only a check that takes long costs the count."""
        watch.mark = self._progress(replica)

    def _speaks_against(self, replica: Replica, watch: _Watch, failure: Failure, began_at: float) -> bool:
        progressed = watch.mark is not None and watch.mark != self._progress(replica)
        return counts(failure, timeout_s=self._settings.timeout_s, late_s=self._late_s(began_at), progressed=progressed)

    async def _check(self, replica: Replica) -> None:
        status, _ = await self._get(replica, "/health")
        if status >= 500:
            raise BadAnswer(f"/health answered {status}")

    async def _passed(self, replica: Replica, watch: _Watch) -> None:
        watch.failures = 0
        watch.successes += 1
        replica.last_error = None
        if watch.successes < self._settings.successes:
            return
        if replica.healthy:
            # A process that restarted between two checks may announce its blocks elsewhere now; models come and go, too.
            due_at = watch.read_at + (_READ_UNHEARD_S if self._unheard(replica) else _READ_AGAIN_S)
            if self._clock() >= due_at:
                await self._read_again(replica, watch)
            elif watch.tells_sleep:
                await self._look_asleep(replica, watch)
            return
        facts = await self._learn(replica, watch)
        replica.healthy, replica.down = True, None
        watch.keeps_view = False
        self._fleet.refresh(replica)
        log.info("replica up replica=%s models=%s dialect=%s", replica.name, ",".join(facts.models) or "?", facts.dialect)

    async def _read_again(self, replica: Replica, watch: _Watch) -> None:
        """A replica too busy to tell keeps what it told before: its models, its streams and its view."""
        try:
            await self._learn(replica, watch)
        except Exception as error:
            log.info("replica facts not read again replica=%s error=%s", replica.name, _short(error, replica))

    async def _learn(self, replica: Replica, watch: _Watch) -> Facts:
        watch.read_at = self._clock()
        facts = await self._facts(replica, watch.settings)
        replica.dialect = dialect_named(facts.dialect)
        self._fleet.learn_models(replica, facts.models, facts.cards)
        await self._on_up(replica, watch.settings, facts)
        await self._look_asleep(replica, watch)
        return facts

    async def _look_asleep(self, replica: Replica, watch: _Watch) -> None:
        """An engine that sleeps has dropped its cache, and its stream says so only once it works again (FC-11)."""
        try:
            status, answer = await self._get(replica, "/is_sleeping")
        except (BadAnswer, aiohttp.ClientError, TimeoutError):
            return  # whether it lives is the business of /health
        told = answer.get("is_sleeping") if status == 200 and isinstance(answer, dict) else None
        watch.tells_sleep = isinstance(told, bool)
        if told is True:
            self._on_asleep(replica)
        if (told is True) != watch.asleep:
            watch.asleep = told is True
            log.info("replica sleep replica=%s asleep=%s", replica.name, watch.asleep)

    def _failed(self, replica: Replica, watch: _Watch, failure: Failure, error: Exception) -> None:
        watch.successes = 0
        watch.failures += 1
        replica.last_error = _short(error, replica)
        if replica.healthy:
            if watch.failures >= self._settings.failures:
                self._give_up(replica, watch, failure, error)
        elif watch.keeps_view and (failure.empties or self._unheard(replica)):
            watch.keeps_view = False
            replica.down = failure.value
            self._on_down(replica)
            log.warning("replica gone replica=%s error=%s", replica.name, _short(error, replica))
        elif watch.failures == self._settings.failures:
            log.warning("replica not up replica=%s failures=%d error=%s", replica.name, watch.failures, _short(error, replica))

    def _give_up(self, replica: Replica, watch: _Watch, failure: Failure, error: Exception) -> None:
        replica.healthy, replica.down = False, failure.value
        self._fleet.refresh(replica)
        watch.keeps_view = not failure.empties and not self._unheard(replica)
        if not watch.keeps_view:
            self._on_down(replica)
        kept = "kept" if watch.keeps_view else "dropped"
        log.warning(
            "replica down replica=%s failures=%d view=%s error=%s", replica.name, watch.failures, kept, _short(error, replica)
        )

    async def _facts(self, replica: Replica, settings: ReplicaSettings) -> Facts:
        status, models = await self._told(replica, "/v1/models")
        cards = _cards(models) if status == 200 else []
        shown = tuple(_card(name, card) for card in cards if isinstance(name := card.get("id"), str) and _presentable(name))
        names = tuple(card.name for card in shown)
        status, info = await self._told(replica, "/server_info")
        told = info if status == 200 and isinstance(info, dict) else {}
        published = told.get("kv_events")
        owners = [card.get("owned_by") for card in cards]
        dialect = settings.dialect or ("trunkline" if told.get("dialect") == "trunkline" else _dialect_of(owners))
        named = dialect in _REPEATING_DIALECTS or any(owner in _REPEATING_OWNERS for owner in owners)
        sets = isinstance(published, dict) or named
        if settings.events is not None:
            return Facts(names, dialect, repeats_stores=sets, cards=shown)
        status, answer = await self._told(replica, "/kv_event_sources")
        sources, topic = _event_sources(answer) if status == 200 else ({}, "")
        if not sources and isinstance(published, dict):
            sources, topic = _published(published)
        if sources or not settings.poll_events or _POLLED_OWNER not in owners:
            return Facts(names, dialect, sources, topic, sets, cards=shown)
        block_tokens = settings.block_tokens or await self._block_tokens(replica)
        return Facts(names, dialect, repeats_stores=sets, has_queue=True, queue_block_tokens=block_tokens, cards=shown)

    async def _block_tokens(self, replica: Replica) -> int:
        """Tokens per block of TensorRT-LLM; 0 where it does not say. Its `/metrics` would lose what others read there."""
        try:
            _, text = await self._fetch(replica, "/prometheus/metrics")
        except (BadAnswer, aiohttp.ClientError, TimeoutError):  # it is a nicety, and may be large
            return 0
        found = _BLOCK_TOKENS_METRIC.search(text)
        return int(found[1]) if found else 0

    async def _told(self, replica: Replica, path: str) -> tuple[int, Any]:
        """`_get` of a page of facts; raises BadAnswer where the answer is only that there is none now."""
        status, answer = await self._get(replica, path)
        if status == 429 or (status >= 500 and status != 501):
            raise BadAnswer(f"{path} answered {status}")
        return status, answer

    async def _get(self, replica: Replica, path: str) -> tuple[int, Any]:
        """(status, parsed JSON or None)."""
        status, body = await self._fetch(replica, path)
        try:
            return status, orjson.loads(body)
        except orjson.JSONDecodeError:
            return status, None

    async def _fetch(self, replica: Replica, path: str) -> tuple[int, bytes]:
        """(status, body). Redirects are not followed: a replica is where it was said to be (FC-58)."""
        url = replica.address.url + path
        headers = {"authorization": f"Bearer {replica.api_key}"} if replica.api_key else {}
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_s)
        tls = replica.tls
        context, name = (tls.context, tls.server_name) if tls is not None else (True, None)
        async with self._session.get(
            url, headers=headers, timeout=timeout, allow_redirects=False, ssl=context, server_hostname=name
        ) as response:
            body = bytearray()
            while piece := await response.content.read(_ANSWER_BYTES):  # as much as has come, which need not be all
                body += piece
                if len(body) > _ANSWER_BYTES:
                    raise BadAnswer(f"{path} answered more than {_ANSWER_BYTES} bytes")
            return response.status, bytes(body)


def _presentable(name: str) -> bool:
    """A model's name stands in logs and answers: one line, of a sane length."""
    return name.isprintable() and 0 < len(name) <= 500


def _cards(answer: object) -> list[dict[str, Any]]:
    data = answer.get("data") if isinstance(answer, dict) else None
    return [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []


def _card(name: str, told: dict[str, Any]) -> Card:
    """What is believed of one entry of /v1/models. An entry with a parent is an adapter of it."""
    parent, length = told.get("parent"), told.get("max_model_len")
    named = parent if isinstance(parent, str) and _presentable(parent) and parent != name else None
    return Card(name, parent=named, context_tokens=length if type(length) is int and length > 0 else 0)


def _dialect_of(owners: list[object]) -> str:
    """What the engine speaks that owns the models; 'openai', which is right for all, unless they agree on one that is known."""
    named = {_DIALECTS.get(owner, "openai") if isinstance(owner, str) else "openai" for owner in owners}
    return named.pop() if len(named) == 1 else "openai"


def _event_sources(answer: object) -> tuple[dict[int, tuple[str, str | None]], str]:
    """The object of vLLM's /kv_event_sources: rank (a string) -> config with endpoint, replay_endpoint and topic."""
    sources: dict[int, tuple[str, str | None]] = {}
    topic = ""
    for rank, source in answer.items() if isinstance(answer, dict) else ():
        known = re.fullmatch("[0-9]{1,4}", rank) is not None and int(rank) < _MAX_RANKS
        if known and isinstance(source, dict) and isinstance(source.get("endpoint"), str):
            replay = source.get("replay_endpoint")
            sources[int(rank)] = (source["endpoint"], replay if isinstance(replay, str) else None)
            topic = source["topic"] if isinstance(source.get("topic"), str) else topic
    return sources, topic


def _published(events: dict[str, Any]) -> tuple[dict[int, tuple[str, str | None]], str]:
    """SGLang's `kv_events` in /server_info: base ports, to which each of `dp_size` ranks adds its number."""
    host, port = events.get("endpoint_host"), events.get("endpoint_port_base")
    ranks, replay = events.get("dp_size", 1), events.get("replay_endpoint_port_base")
    if events.get("publisher") != "zmq" or not isinstance(port, int) or not isinstance(ranks, int):
        return {}, ""
    host = host if isinstance(host, str) and host else "*"
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    sources = {
        rank: (f"tcp://{host}:{port + rank}", f"tcp://{host}:{replay + rank}" if isinstance(replay, int) else None)
        for rank in range(min(max(ranks, 1), _MAX_RANKS))
    }
    topic = events.get("topic")
    return sources, topic if isinstance(topic, str) else ""


def _short(error: Exception, replica: Replica) -> str:
    reason = reason_of(error, by_tls=replica.tls is not None)
    return (reason or f"{type(error).__name__}: {error}")[:200]
