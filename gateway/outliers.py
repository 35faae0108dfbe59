"""Which replicas do far worse than their like: by failed requests, or by time to first byte per token they had to compute.

Sums over a sliding window, compared with the median of the other replicas of the same models; no clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

BUCKETS = 6  # of a window
# Added to the tokens of each request: what it costs beside its prefill. Without it short prompts would look slow.
OVERHEAD_TOKENS = 256
_LEAST_FAILURES = 5


class Sums(NamedTuple):
    """What requests of one replica came to."""

    requests: int = 0
    failures: int = 0
    first_bytes: int = 0
    ttft_s: float = 0.0
    tokens: int = 0  # uncached ones computed or waited for until those first bytes, with `OVERHEAD_TOKENS` each


class Window:
    """The sums of one replica over the last few buckets. Adding costs a few stores."""

    __slots__ = ("_closed", "failures", "first_bytes", "requests", "tokens", "ttft_s")

    def __init__(self) -> None:
        self._closed: deque[Sums] = deque(maxlen=BUCKETS - 1)
        self._open()

    def first_byte(self, ttft_s: float, tokens: int) -> None:
        """A stream began ttft_s after it was sent; tokens: uncached, its own and those queued before it."""
        self.first_bytes += 1
        self.ttft_s += ttft_s
        self.tokens += tokens + OVERHEAD_TOKENS

    def turn(self) -> None:
        """A bucket's time is over; the oldest goes."""
        self._closed.append(self._current())
        self._open()

    def clear(self) -> None:
        """Begin anew."""
        self._closed.clear()
        self._open()

    def total(self) -> Sums:
        """Over all buckets."""
        columns = zip(*self._closed, self._current(), strict=True)
        requests, failures, first_bytes, ttft_s, tokens = (sum(column) for column in columns)
        return Sums(int(requests), int(failures), int(first_bytes), ttft_s, int(tokens))

    def _current(self) -> Sums:
        return Sums(self.requests, self.failures, self.first_bytes, self.ttft_s, self.tokens)

    def _open(self) -> None:
        self.requests = self.failures = self.first_bytes = self.tokens = 0
        self.ttft_s = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is far worse. least_requests: fewer say nothing. share: of failed requests. times: slower than the others' median."""

    least_requests: int
    share: float
    times: float


def outliers(replicas: Mapping[str, Sums], bounds: Bounds) -> dict[str, str]:
    """Name -> 'failures' or 'slow', of replicas that serve the same; those that did too little to tell do not count."""
    judged = {name: sums for name, sums in replicas.items() if sums.requests >= bounds.least_requests}
    found: dict[str, str] = {}
    for name, sums in judged.items():
        others = [other for one, other in judged.items() if one != name]
        if not others:
            continue
        share = sums.failures / sums.requests
        if sums.failures >= _LEAST_FAILURES and share >= bounds.share and share > 2 * median(map(_failed_share, others)):
            found[name] = "failures"
        elif _is_slow(sums, others, bounds):
            found[name] = "slow"
    return found


def _failed_share(sums: Sums) -> float:
    return sums.failures / sums.requests


def _is_slow(sums: Sums, others: Sequence[Sums], bounds: Bounds) -> bool:
    timed = [other.ttft_s / other.tokens for other in others if other.first_bytes >= bounds.least_requests]
    if not timed or sums.first_bytes < bounds.least_requests:
        return False
    return sums.ttft_s / sums.tokens > bounds.times * median(timed)


def how_many_more(replicas: int, ejected: int, share: float) -> int:
    """How many may still be ejected: a share of all, at least one, and never the last."""
    return max(0, min(max(1, int(replicas * share)), replicas - 1) - ejected)
