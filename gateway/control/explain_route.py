"""`POST /explain`: the body of a chat or completion, and as answer what would happen to it; nothing is sent or reserved.

As open as receipts are: it tells how much of a prompt is cached where, to whoever reaches the control plane.
"""

from __future__ import annotations

import orjson
from aiohttp import web

from gateway.body import look
from gateway.control.query import BadQuery, only
from gateway.errors import Refusal
from gateway.explain.ask import Explainer
from gateway.explain.row import explanation_row
from gateway.request import Intent, Kind


class ExplainRoute:
    """Reads the question as the data plane would. body_bytes: the largest body taken there."""

    def __init__(self, explainer: Explainer, body_bytes: int) -> None:
        self._explainer = explainer
        self._body_bytes = body_bytes

    def routes(self) -> list[web.RouteDef]:
        """For the control plane's application."""
        return [web.post("/explain", self.explain)]

    async def explain(self, request: web.Request) -> web.Response:
        """POST /explain; `x-trunkline-session` and `x-trunkline-priority` count as in a real request."""
        only(request)
        body = await self._body(request)
        try:
            intent = _intent(request, body)
        except Refusal as refusal:
            return web.Response(body=refusal.body(), status=refusal.status, content_type="application/json")
        explanation = await self._explainer.explain(intent, body)
        return web.Response(body=orjson.dumps(explanation_row(explanation)), content_type="application/json")

    async def _body(self, request: web.Request) -> bytes:
        body = bytearray()
        async for piece in request.content.iter_any():
            body += piece
            if len(body) > self._body_bytes:
                raise BadQuery(f"the body is larger than {self._body_bytes} bytes", "body", 413)
        return bytes(body)


def _intent(request: web.Request, body: bytes) -> Intent:
    """What is asked; which API it is for follows from the body. Raises Refusal."""
    priority = request.headers.get("x-trunkline-priority", "0")
    if not priority.removeprefix("-").isdecimal() or len(priority) > 10:
        raise Refusal(400, "x-trunkline-priority must be a whole number", param="x-trunkline-priority")
    session = request.headers.get("x-trunkline-session")
    intent = look(body, Kind.COMPLETION, session=session, priority=int(priority))
    if "messages" in intent.fields:
        return look(body, Kind.CHAT, session=session, priority=int(priority))
    if "prompt" not in intent.fields and "prompt_token_ids" not in intent.fields:
        raise Refusal(400, "the body has neither 'messages' nor 'prompt'", param="messages")
    return intent
