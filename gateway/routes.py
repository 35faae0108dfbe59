"""Which paths the data plane knows, and what each of them does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.apis.passing import Passing
from gateway.apis.stored import PATH as STORED
from gateway.apis.table import API
from gateway.config import PASS_THROUGH
from gateway.errors import ErrorShape, Refusal
from gateway.request import Kind


class Local(Enum):
    """Questions the gateway answers without asking an engine."""

    MODELS = "models"
    MODEL = "model"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Route:
    """One path. name: its label in metrics. kind: the API it forwards; None where `local` answers.

    body_bytes: the largest body taken, None for that of the settings. errors: what clients of this path understand.
    """

    name: str
    methods: frozenset[bytes]
    kind: Kind | None = None
    local: Local | None = None
    needs_key: bool = True
    body_bytes: int | None = None
    errors: ErrorShape = ErrorShape.OPENAI


_POST = frozenset((b"POST",))
_GET = frozenset((b"GET", b"HEAD"))
_DELETE = frozenset((b"DELETE",))
_ANY = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_QUESTION_BYTES = 4096  # nothing is asked in them; some clients send an empty object
_ONE_MODEL = "/v1/models/"
_MODEL = Route("models", _GET, local=Local.MODEL, body_bytes=_QUESTION_BYTES)
_PASSED = Route(Kind.PASS_THROUGH.value, _ANY, kind=Kind.PASS_THROUGH)
_STORED = {
    None: Route(Kind.STORED.value, _GET | _DELETE, kind=Kind.STORED, body_bytes=_QUESTION_BYTES),
    "/input_items": Route(Kind.STORED.value, _GET, kind=Kind.STORED, body_bytes=_QUESTION_BYTES),
    "/cancel": Route(Kind.STORED.value, _POST, kind=Kind.STORED, body_bytes=_QUESTION_BYTES),
}
_ROUTES = {path: Route(kind.value, _POST, kind=kind, errors=api.errors) for kind, api in API.items() for path in api.paths} | {
    "/v1/models": Route("models", _GET, local=Local.MODELS, body_bytes=_QUESTION_BYTES),
    "/health": Route("health", _GET, local=Local.ALIVE, needs_key=False, body_bytes=_QUESTION_BYTES),
    "/livez": Route("health", _GET, local=Local.ALIVE, needs_key=False, body_bytes=_QUESTION_BYTES),
}


class Routes:
    """All paths, those that are passed through included."""

    def __init__(self, pass_through: Sequence[str] = PASS_THROUGH) -> None:
        self._passing = Passing(pass_through)

    def of(self, method: bytes, path: str) -> Route:
        """The route; raises Refusal 404 or 405. The text names neither path nor query: they may carry a key (FC-59)."""
        route = _ROUTES.get(path) or self._by_shape(path)
        if route is None:
            raise Refusal(404, "there is nothing at this path", code="unknown_path")
        if method not in route.methods:
            allowed = ", ".join(sorted(name.decode() for name in route.methods))
            raise Refusal(405, f"this path takes {allowed}", code="method_not_allowed", allow=allowed)
        return route

    def _by_shape(self, path: str) -> Route | None:
        if path.startswith(_ONE_MODEL) and len(path) > len(_ONE_MODEL):
            return _MODEL
        if self._passing.admits(path):
            return _PASSED
        stored = STORED.fullmatch(path)
        return _STORED[stored["of"]] if stored is not None else None


def errors_at(path: str) -> ErrorShape:
    """What clients of a path understand, also where their request is refused before it has a route."""
    route = _ROUTES.get(path)
    return route.errors if route is not None else ErrorShape.OPENAI


def model_of(path: str) -> str:
    """The name in the path of one model, as it was sent."""
    return path.removeprefix(_ONE_MODEL)
