"""Routes that one worker answers for all of them: each knows the whole fleet, with the load of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from gateway.workers.processes import Process

if TYPE_CHECKING:
    from gateway.workers.control import MergedControl

_LONG_S = 110.0  # a request with a very long prompt is tokenized, replicas are looked at one by one
_PASSED_FIELDS = ("content-type", "authorization", "x-trunkline-session", "x-trunkline-priority")


class PassedOn:
    """Hands a request to the first worker that runs, and its answer back."""

    def __init__(self, control: MergedControl, workers: Sequence[Process]) -> None:
        self._control = control
        self._workers = workers

    def routes(self) -> list[web.RouteDef]:
        """For the supervisor's application."""
        return [web.post("/explain", self.pass_on), web.post("/doctor", self.pass_on)]

    async def pass_on(self, request: web.Request) -> web.Response:
        """The answer of the first worker that gives one; the body goes through as it comes, and is bounded there."""
        fields = {name: request.headers[name] for name in _PASSED_FIELDS if name in request.headers}
        worker = next((worker for worker in self._workers if worker.ready is not None), None)
        answer = None
        if worker is not None:
            answer = await self._control.ask(
                worker, "POST", request.raw_path, body=request.content, headers=fields, within_s=_LONG_S
            )
        if answer is None:
            body = orjson.dumps({"error": {"message": "no worker answered", "type": "unavailable"}})
            return web.Response(body=body, status=503, content_type="application/json")
        return web.Response(body=answer.body, status=answer.status, content_type=answer.content_type)
