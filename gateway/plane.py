"""The data plane: one listening port, its connections, and the order in which a request passes the parts.

head -> `_judge` (route, key) -> body -> `begin` (look into the JSON) -> `Exchange` (tokens, placing, sending, relaying).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import ssl
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import unquote

import orjson

from gateway.admission.desk import Desk
from gateway.apis.asked import Asked
from gateway.auth import Caller, Keys
from gateway.cards import Card, aliased, card_data
from gateway.config import Limits, Settings
from gateway.errors import Refusal
from gateway.fleet import Replica
from gateway.floor import Floor
from gateway.forward import Exchange
from gateway.hedge import hedge_after
from gateway.histogram import Histogram
from gateway.http1.client_side import LINGER_S, ClientConnection
from gateway.http1.intake import BodyBudget
from gateway.http1.parse import HeadReader, Judged, RequestHead
from gateway.http1.pool import Pools
from gateway.models import not_served
from gateway.prompt import Prompts, PromptTokenizer
from gateway.quota import Quotas
from gateway.refusals import shutting_down
from gateway.request import Placer, TrafficCounts
from gateway.retries import RetryBudget
from gateway.routes import Local, Route, Routes, model_of

log = logging.getLogger(__name__)

_BACKLOG = 4096
_GOODBYE_S = 5.0  # for a client's part of the end of its TLS connection
_TICK_S = 1.0
_SLICES = 8
_ALIVE = b'{"status":"ok"}'


class DataPlane:
    """Serves clients. Everything runs on the loop that calls `start`, except long tokenizing."""

    def __init__(
        self,
        settings: Settings,
        placer: Placer,
        tokenizer: Callable[[], PromptTokenizer | None],
        keys: Keys | None,
        counts: TrafficCounts,
        *,
        models: Callable[[], Sequence[Card]],
        ttft: Histogram | None = None,
    ) -> None:
        """ttft: of all streams, for hedging by quantile."""
        self.limits: Limits = settings.limits
        self.counts = counts
        self.heads = HeadReader(settings.limits, self._judge)
        self.budget = BodyBudget(settings.limits.bodies_total_bytes)
        self.draining = False
        self._keys = keys
        self.quotas = Quotas(1 / settings.workers)
        if keys is not None:
            self.set_keys(keys)
        self._models = models
        self._aliases = settings.models.aliases
        self._routes = Routes(settings.pass_through)
        self._clients: set[ClientConnection] = set()
        self._unchecked: list[ClientConnection] = []
        self._slice = 1
        self._pools = Pools(settings.limits.connect_s, self._abort_ended)
        self.prompts = Prompts(tokenizer, configured=settings.tokenizer is not None)
        self._changed = asyncio.Event()  # no exchange is open any more, or a connection ended
        self.desk = Desk(settings.admission)
        resilience = settings.resilience
        self.retries = RetryBudget(resilience.retries.share, resilience.retries.floor_per_s, time.monotonic())
        self._floor = Floor(
            settings,
            placer,
            self.prompts,
            self._pools,
            counts,
            self.internal_error,
            self._changed.set,
            self.desk,
            self.retries,
            hedge_after(resilience.hedge, ttft),
        )
        self._asked = Asked(self._aliases, self.prompts.parse, self._floor.stored)
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None

    async def start(
        self, host: str, port: int, *, share_port: bool = False, tls: ssl.SSLContext | None = None, handshake_s: float = 10.0
    ) -> int:
        """Listen; returns the bound port. share_port: other processes of ours listen there, too. handshake_s: of `tls`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self),
            host,
            port,
            backlog=_BACKLOG,
            reuse_port=share_port or None,
            ssl=tls,
            ssl_handshake_timeout=handshake_s if tls is not None else None,
            ssl_shutdown_timeout=_GOODBYE_S if tls is not None else None,
        )
        self._ticker = loop.call_later(self._tick_s(), self._tick)
        return int(self._server.sockets[0].getsockname()[1])

    def set_keys(self, keys: Keys) -> None:
        """Ask for these from now on, on open connections too; what is being served goes on."""
        self._keys = keys
        self.heads.forget()
        self.quotas.set(keys.allowances(), time.monotonic())

    async def drain(self, grace_s: float) -> None:
        """Refuse what is new, let what is open finish for `grace_s`, end the rest with an error (FC-57).

        A request whose body is still coming is open: its client has been told to send it.
        """
        self.draining = True
        await self._wait_while(lambda: bool(self._floor.exchanges) or any(client.uploading for client in self._clients), grace_s)
        for exchange in list(self._floor.exchanges):
            exchange.stop()
        late = [client for client in self._clients if client.uploading]
        for client in late:
            client.refuse(shutting_down())
        await self._wait_while(lambda: not self._clients.isdisjoint(late) or self._pools.aborting() > 0, LINGER_S)

    async def _wait_while(self, busy: Callable[[], bool], limit_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while busy():
                    self._changed.clear()
                    await self._changed.wait()

    def close(self) -> None:
        """Stop listening; close what is open, after what was written has left."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._server is not None:
            self._server.close()
        for exchange in list(self._floor.exchanges):
            exchange.stop()
        for client in list(self._clients):
            client.close()
        self.desk.close()
        self._pools.close()
        self.prompts.close()

    def forget(self, name: str) -> None:
        """Close the connections to a replica that left the fleet (FC-14)."""
        self._pools.forget(name)
        self._floor.stored.forget_replica(name)

    def progress(self, replica: Replica) -> int:
        """Changes while answers of a replica come. Costs a look at every open exchange."""
        return sum(exchange.progress[1] for exchange in self._floor.exchanges if exchange.replica is replica)

    @property
    def open_exchanges(self) -> int:
        """Requests being served."""
        return len(self._floor.exchanges)

    @property
    def idle_engine_connections(self) -> int:
        """Connections kept for the next requests."""
        return self._pools.idle()

    # --- what client connections ask for (`http1.service.Service`) ---

    def opened(self, client: ClientConnection) -> None:
        """A client connected."""
        self._clients.add(client)
        self.counts.open_connections += 1

    def closed(self, client: ClientConnection) -> None:
        """A client connection ended."""
        self._clients.discard(client)
        self._changed.set()
        self.counts.open_connections -= 1

    def begin(self, client: ClientConnection, judged: Judged, body: bytes) -> None:
        """Serve one whole request; raises Refusal."""
        route, head = judged.route, judged.head
        if route.kind is None:
            self._answer_locally(client, route, head)
            return
        intent, body = self._asked.read(route.kind, head, body)
        request_id = f"{self._prefix}-{next(self._numbers):x}"
        exchange = Exchange(self._floor, client, head, route.name, body, intent, request_id)
        if judged.caller is not None:
            intent.key = judged.caller.name
            exchange.permit = self.quotas.enter(judged.caller, intent, time.monotonic())
        client.exchange = exchange
        exchange.start()

    def counted(self, route: str, status: int, refusal: Refusal | None = None) -> None:
        """Count an answer of the gateway's own."""
        key = route, status // 100
        self.counts.requests[key] = self.counts.requests.get(key, 0) + 1
        if refusal is None:
            return
        reason = refusal.code or refusal.kind  # both from closed sets
        self.counts.refused[reason] = self.counts.refused.get(reason, 0) + 1
        if status == 413:
            log.info("refused status=413 reason=%s", refusal.message)

    def internal_error(self, error: Exception) -> None:
        """Count and log an exception of our own: where it came from, not what it says, which may be a client's text."""
        self.counts.internal_errors += 1
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        log.error("internal error type=%s where=%s", type(error).__name__, where)

    # --- own parts ---

    def _abort_ended(self, result: str) -> None:
        self.counts.count_abort(result)
        self._changed.set()

    def _judge(self, head: RequestHead) -> tuple[Route, Caller | None]:
        """Where a head may go; raises Refusal. Runs once per distinct head: the answer is remembered with it."""
        route = self._routes.of(head.method, head.path)
        if self._keys is not None and route.needs_key:
            return route, self._keys.caller(head.key)
        return route, None

    def _answer_locally(self, client: ClientConnection, route: Route, head: RequestHead) -> None:
        if route.local is Local.ALIVE:
            client.answer(200, _ALIVE)
            return
        cards = aliased(self._models(), self._aliases)
        if route.local is Local.MODELS:
            client.answer(200, orjson.dumps({"object": "list", "data": [card_data(card) for card in cards]}))
            return
        wanted = unquote(model_of(head.path))
        card = next((card for card in cards if card.name == wanted), None)
        if card is None:
            raise not_served(wanted, [card.name for card in cards])
        client.answer(200, orjson.dumps(card_data(card)))

    def _tick_s(self) -> float:
        """How long one round over all connections takes: a second, or a quarter of the shortest limit."""
        limits = self.limits
        times = (limits.head_s, limits.body_stall_s, limits.keep_alive_s, limits.write_stall_s)
        shortest = min(*times, limits.first_byte_s or _TICK_S, limits.silence_s or _TICK_S)
        return max(0.01, min(_TICK_S, shortest / 4))

    def _tick(self) -> None:
        """One coarse clock for all limits, in slices: thousands of connections at once would hold up every stream."""
        loop = asyncio.get_running_loop()
        self._ticker = loop.call_later(self._tick_s() / _SLICES, self._tick)
        now = loop.time()
        if not self._unchecked:
            self._pools.expire(now)
            self._unchecked = list(self._clients)
            self._slice = len(self._unchecked) // _SLICES + 1
        clients, self._unchecked = self._unchecked[: self._slice], self._unchecked[self._slice :]
        for client in clients:
            try:
                client.tick(now)
            except Exception as error:
                client.failed_inside(error)
