"""The one control plane of a gateway of several processes: asks each of them on loopback and puts their answers together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import orjson
from aiohttp import StreamReader, web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gateway.control.admin import Admin
from gateway.workers.merged import index_row, receipt_rows, replica_rows, status_row
from gateway.workers.passed import PassedOn
from gateway.workers.processes import Process
from gateway.workers.totals import ProcessId, Totals

log = logging.getLogger(__name__)

_ANSWER_S = 3.0


class Answer(NamedTuple):
    """What a process said."""

    status: int
    body: bytes
    content_type: str


class MergedControl:
    """Routes of `gateway.control.app`, over all processes."""

    def __init__(
        self, index: Process, workers: Sequence[Process], admin: Admin, draining: Callable[[], bool], token: str
    ) -> None:
        """token: the administrator's of all these processes. draining: whether we are ending."""
        self._token = token
        self._index = index
        self._workers = workers
        self._admin = admin
        self._draining = draining
        self._totals = Totals()
        self._session: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """The application; `supervise` runs it."""
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/status", self._status)
        app.router.add_get("/replicas", self._replicas)
        app.router.add_get("/receipts", self._receipts)
        app.add_routes(PassedOn(self, self._workers).routes())
        app.router.add_get("/index/stats", self._index_stats)
        app.router.add_get("/index/{page}", self._index_page)
        app.router.add_post("/replicas", self._admin.add_replica)
        app.router.add_delete("/replicas/{name}", self._admin.remove_replica)
        app.on_cleanup.append(self._close)
        return app

    async def ask(
        self,
        process: Process,
        method: str,
        path: str,
        *,
        body: bytes | StreamReader | None = None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float = _ANSWER_S,
    ) -> Answer | None:
        """One process's answer; None when there is none in time."""
        if process.ready is None:
            return None
        if self._session is None:
            self._session = aiohttp.ClientSession()
        fields = {**(headers or {}), **({"authorization": f"Bearer {token}"} if token else {})}
        limit = aiohttp.ClientTimeout(total=within_s)
        url = f"http://127.0.0.1:{process.ready.control_port}{path}"
        try:
            async with self._session.request(method, url, data=body, headers=fields, timeout=limit) as response:
                return Answer(response.status, await response.read(), response.content_type)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("process did not answer name=%s path=%s error=%s", process.name, path, error)
            return None

    async def _all(self, path: str) -> dict[Process, Answer]:
        """What each worker answers, in their order."""
        answers = await asyncio.gather(*(self.ask(worker, "GET", path) for worker in self._workers))
        return {worker: answer for worker, answer in zip(self._workers, answers, strict=True) if answer is not None}

    async def _told(self, path: str) -> list[Any]:
        return [orjson.loads(answer.body) for answer in (await self._all(path)).values() if answer.status == 200]

    async def _livez(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _readyz(self, request: web.Request) -> web.Response:
        """Ready while one worker is."""
        rows = [orjson.loads(answer.body) for answer in (await self._all("/readyz")).values()]
        ready = not self._draining() and any(row["ready"] for row in rows)
        usable = max((row["usable_replicas"] for row in rows), default=0)
        return _json({"ready": ready, "usable_replicas": usable, "draining": self._draining()}, 200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        answers = await self._all("/metrics")
        pages: dict[ProcessId, str] = {_id_of(worker): answer.body.decode() for worker, answer in answers.items()}
        alive: list[ProcessId] = [_id_of(worker) for worker in self._workers if worker.ready is not None]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Page([*self._totals.metrics(pages, alive), *self._own_metrics()]))
        return web.Response(body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    def _own_metrics(self) -> list[Metric]:
        up = GaugeMetricFamily("trunkline_process_up", "1 while a process of the gateway runs.", labels=["process"])
        restarts = CounterMetricFamily("trunkline_process_restarts", "Times it was started again.", labels=["process"])
        for process in (self._index, *self._workers):
            up.add_metric([process.name], float(process.ready is not None))
            restarts.add_metric([process.name], process.restarts)
        return [up, restarts]

    async def _status(self, request: web.Request) -> web.Response:
        row = status_row(await self._told("/status"))
        processes = [
            {"name": process.name, "pid": process.pid, "up": process.ready is not None, "restarts": process.restarts}
            for process in (self._index, *self._workers)
        ]
        return _json({**row, "draining": self._draining(), "processes": processes})

    async def _replicas(self, request: web.Request) -> web.Response:
        return _json({"replicas": replica_rows([row["replicas"] for row in await self._told("/replicas")])})

    async def _receipts(self, request: web.Request) -> web.Response:
        answers = list((await self._all(request.raw_path)).values())
        if refused := next((answer for answer in answers if answer.status != 200), None):
            return _passed_on(refused)
        rows = [orjson.loads(answer.body)["receipts"] for answer in answers]
        return _json({"receipts": receipt_rows(rows, int(request.query.get("limit", "100")))})

    async def _index_stats(self, request: web.Request) -> web.Response:
        """As the index process says, with the guesses of all workers; as workers were told when it is not there."""
        told = index_row(await self._told("/index/stats"))
        answer = await self.ask(self._index, "GET", request.raw_path)
        if answer is None:
            return _json(told)
        if answer.status != 200:
            return _passed_on(answer)
        return _json({**orjson.loads(answer.body), "guesses": told.get("guesses", 0)})

    async def _index_page(self, request: web.Request) -> web.Response:
        """What only the index process knows; it takes our token where the request has the administrator's."""
        allowed = "authorization" in request.headers and self._admin.refuse(request) is None
        answer = await self.ask(self._index, "GET", request.raw_path, token=self._token if allowed else None)
        if answer is None:
            return _json({"error": {"message": "the index process is not there", "type": "unavailable"}}, 503)
        return _passed_on(answer)

    async def _close(self, app: web.Application) -> None:
        if self._session is not None:
            await self._session.close()


class _Page(Collector):
    """Metrics that are there already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _passed_on(answer: Answer) -> web.Response:
    return web.Response(body=answer.body, status=answer.status, content_type=answer.content_type)


def _id_of(process: Process) -> ProcessId:
    return process.name, process.pid or 0


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")
