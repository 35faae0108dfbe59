"""A histogram of plain integers, turned into metrics at scrape time; observing costs one bisect and three stores."""

from __future__ import annotations

from bisect import bisect_left

TTFT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DURATION_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Counts per bucket; `counts[i]` holds values <= bounds[i], the last one everything above."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def quantile(self, share: float) -> float:
        """The bound below which that share of the values lies; the last bound where it lies above all."""
        wanted, running = share * sum(self.counts), 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            running += count
            if running >= wanted:
                return bound
        return self.bounds[-1]

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them: (upper bound, count of values up to it), '+Inf' last."""
        running = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
        return buckets
