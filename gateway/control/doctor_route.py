"""`POST /doctor`: examine every replica now. Each gets a few small questions, with `?probe=1` two small completions, too."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from aiohttp import web

from gateway.control.query import BadQuery, only, switch
from gateway.doctor.examine import Busy, Doctor
from gateway.doctor.row import diagnosis_row


class DoctorRoute:
    """One examination at a time."""

    def __init__(self, doctor: Callable[[], Doctor | None]) -> None:
        """doctor: None before the gateway has started."""
        self._doctor = doctor

    def routes(self) -> list[web.RouteDef]:
        """For the control plane's application."""
        return [web.post("/doctor", self.examine)]

    async def examine(self, request: web.Request) -> web.Response:
        """POST /doctor; `?probe=1`: also send each replica a prompt of a few blocks, twice."""
        only(request, "probe")
        doctor = self._doctor()
        if doctor is None:
            raise BadQuery("the gateway is still starting", "doctor", 503)
        try:
            diagnosis = await doctor.examine(probe=switch(request, "probe"))
        except Busy as error:
            raise BadQuery(str(error), "doctor", 503) from error
        return web.Response(body=orjson.dumps(diagnosis_row(diagnosis)), content_type="application/json")
