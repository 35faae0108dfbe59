"""Which paths the data plane knows, and what each of them does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.errors import Refusal
from gateway.request import Kind


class Local(Enum):
    """Questions the gateway answers without asking an engine."""

    MODELS = "models"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Route:
    """One path. name: its label in metrics. kind: the API it forwards; None where `local` answers.

    body_bytes: the largest body taken, None for that of the settings.
    """

    name: str
    methods: frozenset[bytes]
    kind: Kind | None = None
    local: Local | None = None
    needs_key: bool = True
    body_bytes: int | None = None


_POST = frozenset((b"POST",))
_GET = frozenset((b"GET", b"HEAD"))
_QUESTION_BYTES = 4096  # nothing is asked in them; some clients send an empty object
_ROUTES = {
    "/v1/chat/completions": Route("chat", _POST, kind=Kind.CHAT),
    "/v1/completions": Route("completion", _POST, kind=Kind.COMPLETION),
    "/v1/models": Route("models", _GET, local=Local.MODELS, body_bytes=_QUESTION_BYTES),
    "/health": Route("health", _GET, local=Local.ALIVE, needs_key=False, body_bytes=_QUESTION_BYTES),
    "/livez": Route("health", _GET, local=Local.ALIVE, needs_key=False, body_bytes=_QUESTION_BYTES),
}


def route_of(method: bytes, path: str) -> Route:
    """The route; raises Refusal 404 or 405. The text names neither path nor query: they may carry a key (FC-59)."""
    route = _ROUTES.get(path)
    if route is None:
        raise Refusal(404, "there is nothing at this path", code="unknown_path")
    if method not in route.methods:
        allowed = ", ".join(sorted(name.decode() for name in route.methods))
        raise Refusal(405, f"this path takes {allowed}", code="method_not_allowed", allow=allowed)
    return route
