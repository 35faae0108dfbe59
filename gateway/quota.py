"""What each key has taken and may still take: requests and tokens by the minute, requests at once. Pure; times are passed in.

Rates are token buckets that hold ten seconds' worth, at least one request. Tokens are charged before the request is sent, by our
count of its prompt, and corrected by what the engine reports; the output is charged afterwards, so a bucket may go below zero and
then keeps its key waiting until it has recovered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.auth import Allowance, Caller, unknown_key
from gateway.errors import Refusal
from gateway.request import Intent, Prompt, Usage

_BURST_S = 10.0
_LONGEST_WAIT_S = 60.0
_BYTES_A_TOKEN = 4  # about
OTHER = "other"


class Bucket:
    """A token bucket. level: what may be taken at once now."""

    def __init__(self, per_minute: float, now: float) -> None:
        self._rate = per_minute / 60
        self._full = max(1.0, self._rate * _BURST_S)
        self._level = self._full
        self._at = now

    def wait_s(self, now: float) -> float:
        """Seconds until something may be taken; 0 when it may be now. What is taken then may be more than there is."""
        self._level = min(self._full, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        least = min(1.0, self._full)
        return 0.0 if self._level >= least else (least - self._level) / self._rate

    def take(self, amount: float) -> None:
        """Take it, or give back what is below zero."""
        self._level = min(self._full, self._level - amount)


@dataclass(slots=True)
class KeyCounts:
    """One key's totals, for metrics."""

    in_flight: int = 0
    requests: Counter[int] = field(default_factory=Counter)  # by status class
    refused: Counter[str] = field(default_factory=Counter)  # by limit
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class Quota:
    """One name's limits and what it has taken."""

    def __init__(self, allowance: Allowance, share: float, now: float) -> None:
        """share: of the limits, where several processes serve."""
        self.counts = KeyCounts()
        self.limit(allowance, share, now)

    def limit(self, allowance: Allowance, share: float, now: float) -> None:
        """New limits; what is open stays counted."""
        self.allowance = allowance
        self._concurrent = None if allowance.concurrent is None else max(1, round(allowance.concurrent * share))
        self._requests = _bucket(allowance.requests_per_minute, share, now)
        self._tokens = _bucket(allowance.tokens_per_minute, share, now)

    def enter(self, intent: Intent, now: float) -> Permit:
        """One more request; raises Refusal 403 or 429 naming the limit. About 1 us."""
        allowance = self.allowance
        if allowance.models and intent.model not in allowance.models:
            self._count("models")
            raise Refusal(403, "the key may not ask for this model", kind="permission_error", param="model", code="key_models")
        if self._concurrent is not None and self.counts.in_flight >= self._concurrent:
            raise self._over("concurrent", "requests at once", 1.0)
        if self._requests is not None:
            wait_s = self._requests.wait_s(now)
            if wait_s:
                raise self._over("requests_per_minute", "requests per minute", wait_s)
            self._requests.take(1)
        if allowance.max_priority is not None:
            intent.priority = min(intent.priority, allowance.max_priority)
        self.counts.in_flight += 1
        return Permit(self)

    def charge(self, tokens: int, now: float) -> None:
        """Tokens of a prompt that is about to be sent; raises Refusal 429."""
        if self._tokens is None:
            return
        wait_s = self._tokens.wait_s(now)
        if wait_s:
            raise self._over("tokens_per_minute", "tokens per minute", wait_s)
        self._tokens.take(tokens)

    def settle(self, charged: int, usage: Usage) -> None:
        """What an answer really took, where `charged` was taken before."""
        counts = self.counts
        counts.prompt_tokens += usage.prompt_tokens
        counts.output_tokens += usage.completion_tokens
        counts.cached_tokens += usage.cached_tokens or 0
        if self._tokens is not None:
            self._tokens.take(usage.prompt_tokens + usage.completion_tokens - charged)

    def _over(self, limit: str, words: str, wait_s: float) -> Refusal:
        self._count(limit)
        wait_s = min(_LONGEST_WAIT_S, max(1.0, math.ceil(wait_s)))
        text = f"the key's limit of {words} is reached"
        return Refusal(429, text, kind="rate_limit_error", code=f"key_{limit}", retry_after_s=wait_s)

    def _count(self, limit: str) -> None:
        self.counts.refused[limit] += 1


class Permit:
    """One request's stay under its key's limits; `close` gives it back, once however often it is called (FC-29)."""

    __slots__ = ("_charged", "_closed", "_quota")

    def __init__(self, quota: Quota) -> None:
        self._quota = quota
        self._charged = 0
        self._closed = False

    def charge(self, prompt: Prompt, body_bytes: int, now: float) -> None:
        """The prompt is about to be sent; by its body where it has no ids. Raises Refusal 429."""
        tokens = body_bytes // _BYTES_A_TOKEN if prompt.tokens is None else len(prompt.tokens)
        self._quota.charge(tokens, now)
        self._charged = tokens

    def close(self, status: int, usage: Usage | None) -> None:
        """The request is over. status: as the client saw it, or 499 and 599."""
        if self._closed:
            return
        self._closed = True
        counts = self._quota.counts
        counts.in_flight -= 1
        counts.requests[status // 100] += 1
        if usage is not None:
            self._quota.settle(self._charged, usage)
        elif self._charged and status >= 400:  # nothing was computed, as far as anybody knows
            self._quota.settle(self._charged, Usage(0, 0))


class Quotas:
    """All names' quotas. share: of each limit, where several processes serve."""

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._of: dict[str, Quota] = {}

    def set(self, allowances: Mapping[str, Allowance], now: float) -> None:
        """What the keys file says now. Names that are gone stay as long as they have open requests."""
        for name in [name for name, quota in self._of.items() if name not in allowances and not quota.counts.in_flight]:
            del self._of[name]
        for name, allowance in allowances.items():
            known = self._of.get(name)
            if known is None:
                self._of[name] = Quota(allowance, self._share, now)
            elif known.allowance != allowance:
                known.limit(allowance, self._share, now)

    def enter(self, caller: Caller, intent: Intent, now: float) -> Permit:
        """See `Quota.enter`."""
        quota = self._of.get(caller.name)
        if quota is None:  # the key was taken away while the body came
            raise unknown_key()
        return quota.enter(intent, now)

    def counts(self, most: int) -> dict[str, KeyCounts]:
        """By name, the first `most` of the file; the sum of the rest as `OTHER`."""
        shown: dict[str, KeyCounts] = {}
        rest = KeyCounts()
        for number, (name, quota) in enumerate(self._of.items()):
            if number < most and name != OTHER:
                shown[name] = quota.counts
            else:
                _add(rest, quota.counts)
        if len(shown) < len(self._of):
            shown[OTHER] = rest
        return shown


def _bucket(per_minute: int | None, share: float, now: float) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute * share, now)


def _add(total: KeyCounts, more: KeyCounts) -> None:
    total.in_flight += more.in_flight
    total.prompt_tokens += more.prompt_tokens
    total.output_tokens += more.output_tokens
    total.cached_tokens += more.cached_tokens
    total.requests.update(more.requests)
    total.refused.update(more.refused)
