"""The gateway's errors. Those a client can cause carry the HTTP status and the body the client gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import orjson


class GatewayError(Exception):
    """Root of what can go wrong in the gateway."""


class ConfigError(GatewayError):
    """A setting is wrong; the text names the key and the value."""


class NoTokens(GatewayError):
    """The prompt of a request could not be turned into token ids; it is routed by load and `reason` is counted (FC-22).

    reason: one of a small closed set (it becomes a metric label), such as 'no_tokenizer', 'template', 'images', 'shape'.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class NoReplica(GatewayError):
    """Nothing eligible can take the request now."""

    def __init__(self, model: str | None, retry_after_s: float = 1.0) -> None:
        super().__init__(f"no healthy replica serves model {model!r:.100}" if model else "no healthy replica")
        self.retry_after_s = retry_after_s


class ErrorShape(Enum):
    """Whose clients have to understand an error."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class NoRoom(GatewayError):
    """Replicas could take the request, and each has as much as it may be given. must_wait: whether that is still so."""

    def __init__(self, must_wait: Callable[[], bool]) -> None:
        super().__init__("no replica has room")
        self.must_wait = must_wait


@dataclass(eq=False)
class Refusal(GatewayError):
    """A request is answered by the gateway itself, in the error shape of its API.

    close: framing can not be trusted any more, or body bytes are still to come; the connection ends after the answer. allow: the
    methods a path does take, for 405.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    close: bool = False
    shape: ErrorShape = ErrorShape.OPENAI
    allow: str | None = None

    def __post_init__(self) -> None:
        super().__init__(f"{self.status} {self.message}")

    def body(self) -> bytes:
        """The JSON body: {"error": {"message", "type", "param", "code"}}, or {"type": "error", "error": {"type", "message"}}."""
        if self.shape is ErrorShape.ANTHROPIC:
            kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
            return orjson.dumps({"type": "error", "error": {"type": kind, "message": self.message}})
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})
