"""The data plane: one listening port, its connections, and the order in which a request passes the parts.

head -> `_judge` (route, key) -> body -> `begin` (look into the JSON) -> `Exchange` (tokens, placing, sending, relaying).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

import orjson

from gateway.auth import Keys
from gateway.body import look, without_report_mode
from gateway.config import Limits, Settings
from gateway.errors import Refusal
from gateway.floor import Floor
from gateway.forward import Exchange
from gateway.http1.client_side import LINGER_S, ClientConnection
from gateway.http1.intake import BodyBudget
from gateway.http1.parse import HeadReader, Judged, RequestHead
from gateway.http1.pool import Pools
from gateway.prompt import Prompts, PromptTokenizer
from gateway.refusals import shutting_down
from gateway.request import Placer, TrafficCounts
from gateway.routes import Local, Route, route_of

log = logging.getLogger(__name__)

_BACKLOG = 4096
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
        models: Callable[[], Sequence[str]],
    ) -> None:
        self.limits: Limits = settings.limits
        self.counts = counts
        self.heads = HeadReader(settings.limits, self._judge)
        self.budget = BodyBudget(settings.limits.bodies_total_bytes)
        self.draining = False
        self._keys = keys
        self._models = models
        self._clients: set[ClientConnection] = set()
        self._unchecked: list[ClientConnection] = []
        self._slice = 1
        self._pools = Pools(settings.limits.connect_s)
        self.prompts = Prompts(tokenizer, configured=settings.tokenizer is not None)
        self._changed = asyncio.Event()  # no exchange is open any more, or a connection ended
        self._floor = Floor(settings, placer, self.prompts, self._pools, counts, self.internal_error, self._changed.set)
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, *, share_port: bool = False) -> int:
        """Listen; returns the bound port. share_port: other processes of ours listen there, too."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self), host, port, backlog=_BACKLOG, reuse_port=share_port or None
        )
        self._ticker = loop.call_later(self._tick_s(), self._tick)
        return int(self._server.sockets[0].getsockname()[1])

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
        await self._wait_while(lambda: not self._clients.isdisjoint(late), LINGER_S)

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
        self._pools.close()
        self.prompts.close()

    def forget(self, name: str) -> None:
        """Close the connections to a replica that left the fleet (FC-14)."""
        self._pools.forget(name)

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
            self._answer_locally(client, route)
            return
        intent = look(body, route.kind, session=head.session, priority=head.priority, parse=self.prompts.parse)
        body = without_report_mode(body, intent.fields)
        request_id = f"{self._prefix}-{next(self._numbers):x}"
        exchange = Exchange(self._floor, client, head, route.name, body, intent, request_id)
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

    def _judge(self, head: RequestHead) -> Route:
        """Where a head may go; raises Refusal. Runs once per distinct head: the answer is remembered with it."""
        route = route_of(head.method, head.path)
        if self._keys is not None and route.needs_key:
            self._keys.name_of(head.key)
        return route

    def _answer_locally(self, client: ClientConnection, route: Route) -> None:
        if route.local is Local.ALIVE:
            client.answer(200, _ALIVE)
            return
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "trunkline"} for name in self._models()]
        client.answer(200, orjson.dumps({"object": "list", "data": models}))

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
