"""What the gateway says in its own words when no engine can answer."""

from __future__ import annotations

from gateway.errors import Refusal

_ENGINE = "engine_error"


def unavailable(message: str, retry_after_s: float = 1.0) -> Refusal:
    """503: nothing can take the request now."""
    return Refusal(503, message, kind="unavailable", code="no_replica", retry_after_s=retry_after_s)


def shutting_down() -> Refusal:
    """503: this gateway takes no more requests."""
    return Refusal(503, "the gateway is shutting down", kind="unavailable", code="draining", retry_after_s=1.0, close=True)


def overloaded(message: str) -> Refusal:
    """503: a limit of the gateway itself is reached; nothing of the request was read."""
    return Refusal(503, message, kind="overloaded", code="overloaded", retry_after_s=1.0, close=True)


def unreachable() -> Refusal:
    """502: every engine that was tried failed before it answered."""
    return Refusal(502, "no engine answered", kind=_ENGINE, code="engine_unreachable")


def bad_answer(reason: str) -> Refusal:
    """502: what the engine sent is not HTTP."""
    return Refusal(502, reason, kind=_ENGINE, code="bad_answer")


def engine_timeout() -> Refusal:
    """504: the engine let its limit pass without a byte."""
    return Refusal(504, "the engine did not answer in time", kind=_ENGINE, code="engine_timeout")


def stream_cut(reason: str) -> Refusal:
    """Told in an event of its own, because the status has long been sent."""
    return Refusal(502, reason, kind=_ENGINE, code="stream_cut")


def internal() -> Refusal:
    """500: our own code raised."""
    return Refusal(500, "internal error", kind="internal_error", code="internal_error", close=True)
