"""The control plane's routes. Reading is open on the interface it listens on (loopback by default); changing needs a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gateway.control.admin import Admin
from gateway.control.cache_metrics import TokenCacheCollector
from gateway.control.index_routes import IndexRoutes
from gateway.control.metrics import GatewayCollector
from gateway.control.query import BadQuery, only, whole_number
from gateway.control.resilience_metrics import ResilienceCollector
from gateway.control.show import index_row, receipt_row, replica_row
from gateway.followed import FollowedViews
from gateway.place import FleetPlacer
from gateway.plane import DataPlane
from gateway.request import TrafficCounts
from gateway.tokenize.cached import CachedTokenizer

_MAX_RECEIPTS = 10_000


class ControlPlane:
    """Builds the aiohttp application over the running parts of the gateway."""

    def __init__(
        self,
        placer: FleetPlacer,
        traffic: TrafficCounts,
        views: FollowedViews,
        admin: Admin,
        tokenizer: Callable[[], str],
        token_caches: Callable[[], CachedTokenizer | None] = lambda: None,
        plane: Callable[[], DataPlane | None] = lambda: None,
        *,
        more: Sequence[web.RouteDef] = (),
        collectors: Sequence[Collector] = (),
    ) -> None:
        """tokenizer: 'ready', 'loading' or 'none', asked on every status. more, collectors: what others bring."""
        self._placer = placer
        self._views = views
        self._admin = admin
        self._index = IndexRoutes(placer, views, admin)
        self._tokenizer = tokenizer
        self._more = more
        self.draining = False
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(GatewayCollector(placer, traffic, views))
        self._registry.register(TokenCacheCollector(token_caches))
        self._registry.register(ResilienceCollector(placer.guards, placer.fleet, plane))
        for collector in collectors:
            self._registry.register(collector)

    def app(self) -> web.Application:
        """The application; `serve` runs it."""
        app = web.Application(middlewares=[_bad_queries])
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/status", self._status)
        app.router.add_get("/replicas", self._replicas)
        app.router.add_get("/receipts", self._receipts)
        app.router.add_get("/index/stats", self._index.stats)
        app.router.add_get("/index/dump", self._index.dump)
        app.router.add_post("/replicas", self._admin.add_replica)
        app.router.add_delete("/replicas/{name}", self._admin.remove_replica)
        app.add_routes(self._more)
        return app

    async def _livez(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        """Ready while a replica can be chosen; not while draining."""
        usable = sum(replica.eligible for replica in self._placer.fleet.replicas.values())
        ready = usable > 0 and not self.draining
        return _json({"ready": ready, "usable_replicas": usable, "draining": self.draining}, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _status(self, request: web.Request) -> web.Response:
        fleet = self._placer.fleet
        return _json(
            {
                "at": time.time(),
                "policy": self._placer.policy.name,
                "models": fleet.models(),
                "draining": self.draining,
                "tokenizer": self._tokenizer(),
                "replicas": self._rows(),
                "index": index_row(self._placer.index.stats()),
            }
        )

    def _rows(self) -> list[dict[str, Any]]:
        fleet, guards = self._placer.fleet, self._placer.guards
        return [replica_row(fleet, self._views, replica, guards) for replica in fleet.replicas.values()]

    async def _replicas(self, request: web.Request) -> web.Response:
        return _json({"replicas": self._rows()})

    async def _receipts(self, request: web.Request) -> web.Response:
        """The latest receipts, newest first; ?limit= (default 100), ?replica=, ?reason=, ?request_id=."""
        only(request, "limit", "replica", "reason", "request_id")
        limit = whole_number(request, "limit", 100, least=1, most=_MAX_RECEIPTS)
        replica, reason, request_id = (request.query.get(name) for name in ("replica", "reason", "request_id"))
        rows: list[dict[str, Any]] = []
        for receipt in reversed(self._placer.receipts):
            if replica not in (None, receipt.replica) or reason not in (None, receipt.decision.reason):
                continue
            if request_id not in (None, receipt.request_id):
                continue
            rows.append(receipt_row(receipt, self._placer.fleet.view.names))
            if len(rows) == limit:
                break
        return _json({"receipts": rows})


@web.middleware
async def _bad_queries(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadQuery as error:
        return _json({"error": {"message": str(error), "param": error.param}}, status=error.status)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
