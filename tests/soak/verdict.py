"""What the samples of a soak say: flat or growing, clean or not. No processes here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import linear_regression, median
from typing import Any

MAX_SLOPE_MIB_PER_MIN = 3.0  # over five minutes; the allocators' steps of a few MiB look like one or two
MAX_LAG_GROWTH_S = 0.1
WARM_SHARE = 0.5  # of the time; caches, pools and the memory of seen batches fill up in it


@dataclass(frozen=True, slots=True)
class Quiet:
    """The gateway between two stretches of traffic.

    at_s: since the start. rss_mib: resident memory; held_mib: without what the C library has free.
    """

    at_s: float
    rss_mib: float
    held_mib: float
    tasks: int
    fds: int
    holders: int
    in_flight: int


@dataclass(slots=True)
class Verdict:
    """Collects what is seen and what is wrong with it."""

    failures: list[str] = field(default_factory=list)
    quiet: list[Quiet] = field(default_factory=list)
    lags_s: list[tuple[float, float]] = field(default_factory=list)  # (median, 90th of a hundred) of all streams, under load

    def lag(self, lags_s: Sequence[float]) -> None:
        """The newest batch's lag of each stream, sorted."""
        if lags_s:
            self.lags_s.append((median(lags_s), lags_s[int(0.9 * (len(lags_s) - 1))]))

    def clean(self, sample: dict[str, Any]) -> None:
        """Nothing has gone wrong in the gateway so far."""
        for name in ("internal_errors", "fault_count"):
            if sample[name]:
                self._fail(f"{name} is {sample[name]}: {sample['faults'][:3]}")
        for name in ("apply_errors", "decode_errors", "crashes", "broken_messages", "skipped"):
            if sample["counts"].get(name):
                self._fail(f"{name} is {sample['counts'][name]}")

    def settled(self, now: Quiet, replicas: int) -> None:
        """Nothing is left of what is over."""
        self.quiet.append(now)
        if now.holders != replicas:
            self._fail(f"{now.holders} holders for {replicas} replicas")
        if now.in_flight:
            self._fail(f"{now.in_flight} requests in flight while nobody asks")

    def finish(self, *, steady: bool) -> dict[str, Any]:
        """Figures over the whole run. steady: it was long enough to speak of growth."""
        warm = self.quiet[int(WARM_SHARE * len(self.quiet)) :]
        slope = slope_per_min([(each.at_s, each.held_mib) for each in warm])
        third = max(len(self.lags_s) // 3, 1)
        first, last = (median(mid for mid, _ in part) for part in (self.lags_s[:third], self.lags_s[-third:]))
        if steady:
            if slope > MAX_SLOPE_MIB_PER_MIN:
                self._fail(f"memory grows by {slope:.2f} MiB a minute")
            if last > 2 * first + MAX_LAG_GROWTH_S:
                self._fail(f"the lag grows from {first:.3f} to {last:.3f} s")
            for name in ("tasks", "fds"):
                before, after = getattr(warm[0], name), getattr(warm[-1], name)
                if after > before * 1.05 + 8:
                    self._fail(f"{name} grow from {before} to {after}")
        return {
            "rss_mib": [round(each.rss_mib, 1) for each in (self.quiet[0], warm[0], warm[-1])],
            "held_mib": [round(each.held_mib, 1) for each in (self.quiet[0], warm[0], warm[-1])],
            "held_mib_per_min": round(slope, 3),
            "lag_s": {
                "first": round(first, 4),
                "last": round(last, 4),
                "worst_p90": round(max(p90 for _, p90 in self.lags_s), 4),
            },
            "tasks": [warm[0].tasks, warm[-1].tasks],
            "fds": [warm[0].fds, warm[-1].fds],
            "checks": len(self.quiet),
        }

    def _fail(self, text: str) -> None:
        if text not in self.failures:
            self.failures.append(text)


def slope_per_min(points: Sequence[tuple[float, float]]) -> float:
    """Growth per minute of (seconds, value); 0 for fewer than three points."""
    if len(points) < 3:
        return 0.0
    return linear_regression([at_s for at_s, _ in points], [value for _, value in points]).slope * 60


def disagreement(truth: dict[str, Any], view: dict[str, Any] | None, rows: Sequence[Sequence[int]] | None) -> str | None:
    """Why a view is not yet what its engine has; None when it is, or when it is true as far as it goes and says so.

    rows: of the view, asked for only where it is partial.
    """
    if view is None:
        return "no stream"
    if view["digest"] == truth["digest"]:
        return None
    if view["freshness"] != "partial" or rows is None:
        return f"{view['freshness']}, with another digest"
    there = {(tier, name): copies for tier, name, copies in truth["rows"]}
    beyond = [row for row in rows if row[2] > there.get((row[0], row[1]), 0)]
    return f"partial, with {len(beyond)} blocks the engine has not" if beyond else None
