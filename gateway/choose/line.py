"""A straight line through times to first byte: `seconds = overhead + tokens * slope`, learned from few and noisy requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RATE_MIN, RATE_MAX = 10.0, 1e6  # tokens per second; bounds of 1 / slope
OVERHEAD_MAX_S = 5.0
WINDOW = 16  # requests that count

_BLOCK_TOKENS = 16  # a prefill shorter than a block is one step, whatever its length
_PULL = 0.05  # strength of the ridge, in requests
_LEAST_SHARE = 0.25  # a request counts as at least this share of what was predicted
# The ridge is relative to the present line; these keep it weak where the present line is wrong by being too fast.
_OVERHEAD_SCALE_S, _SLOPE_SCALE_S = 0.01, 5e-5


@dataclass(slots=True)
class Line:
    """The line and the last requests it comes from. slope_s: seconds per token."""

    overhead_s: float
    slope_s: float
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))  # (tokens, seconds)

    def predict(self, tokens: float) -> float:
        """Seconds for so many tokens."""
        return self.overhead_s + tokens * self.slope_s

    def add(self, tokens: float, seconds: float) -> None:
        """Learn from one request: weighted least squares over the last 16, with a ridge around the present line.

        Fewer tokens than a block say something about the overhead only.
        """
        self.recent.append((tokens if tokens >= _BLOCK_TOKENS else 0.0, seconds))
        self._solve()

    def _solve(self) -> None:
        """Minimise `sum(weight * (seconds - line)^2)` plus the ridge.

        The weight is `1 / (seconds * predicted)`. Relative errors count that way, so short prompts fix the overhead and long
        ones the slope, and a stall, however long, moves the sums no more than one ordinary request. In return the line
        follows the harmonic mean of noisy times, a little below the ordinary mean. A time that is too short to be true (the
        engine had more cached than we knew) is raised to a quarter of the prediction. The ridge keeps what the requests say
        nothing about: equal lengths do not tell how a time divides into overhead and slope.
        """
        overhead_s, slope_s = self.overhead_s, self.slope_s
        a = _PULL / max(overhead_s, _OVERHEAD_SCALE_S) ** 2
        c = _PULL / max(slope_s, _SLOPE_SCALE_S) ** 2
        b, p, q = 0.0, a * overhead_s, c * slope_s
        for tokens, seconds in self.recent:
            predicted = max(overhead_s + tokens * slope_s, 1e-6)
            counted = max(seconds, _LEAST_SHARE * predicted)
            weight = 1.0 / (counted * predicted)
            a += weight
            b += weight * tokens
            c += weight * tokens * tokens
            p += weight * counted
            q += weight * tokens * counted
        slope_s = _within((a * q - b * p) / (a * c - b * b))  # the ridge keeps the determinant above 0
        overhead_s = (p - b * slope_s) / a
        if overhead_s < 0:
            overhead_s, slope_s = 0.0, _within(q / c)
        self.overhead_s, self.slope_s = min(overhead_s, OVERHEAD_MAX_S), slope_s


def _within(slope_s: float) -> float:
    return min(max(slope_s, 1 / RATE_MAX), 1 / RATE_MIN)
