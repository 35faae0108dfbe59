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


def crowded_out(*, over_share: bool, retry_after_s: float) -> Refusal:
    """There is no room in the waiting line: 429 for a key that has more of it than is its share, else 503."""
    if over_share:
        message = "more requests of this key wait than is its share"
        return Refusal(429, message, kind="rate_limit_error", code="over_fair_share", retry_after_s=retry_after_s)
    return Refusal(503, "too many requests wait", kind="overloaded", code="line_full", retry_after_s=retry_after_s)


def line_timeout(waited_s: float, retry_after_s: float) -> Refusal:
    """503: no replica had room in time."""
    message = f"no replica had room for {waited_s:g} s"
    return Refusal(503, message, kind="overloaded", code="line_timeout", retry_after_s=retry_after_s)


def shed() -> Refusal:
    """503: this process can not keep up, and the request is less urgent than others."""
    message = "the gateway is overloaded and takes urgent requests only"
    return Refusal(503, message, kind="overloaded", code="shedding", retry_after_s=1.0)


def retries_spent() -> Refusal:
    """502: an engine failed before it answered, and too many requests were sent a second time already."""
    return Refusal(502, "the engine failed, and the retry budget is spent", kind=_ENGINE, code="retry_budget", retry_after_s=1.0)


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
