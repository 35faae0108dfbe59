"""The figures of one run, from its columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulations.errors import SettingError
from simulations.run import Run
from simulations.traces.columns import Float64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What counts as good service; a request meets it when both hold."""

    ttft_s: float = 5.0
    tpot_s: float = 0.1

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not getattr(self, name) > 0:
                raise SettingError(f"slo {name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and percentiles of one figure over requests."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy's line.

    hit_rate: share of prompt tokens not computed. predicted_hit_rate: the share the policy expected. goodput: share of requests
    within the SLO, answers of one token judged by TTFT alone. load_max_over_mean: computed prompt tokens of the busiest replica
    over the mean. busy_share: of the time, engines were in a step; prefill_share: in one that computes prompts, which nears 1
    when the fleet is overloaded.
    ttft_ms_per_1k_computed: TTFT over computed tokens, which keeps single huge prompts from hiding the rest.
    """

    policy: str
    requests: int
    input_tokens: int
    hit_tokens: int
    computed_tokens: int
    hit_rate: float
    predicted_hit_rate: float
    ttft_s: Spread
    tpot_s: Spread
    ttft_ms_per_1k_computed: Spread
    goodput: float
    load_max_over_mean: float
    requests_max_over_mean: float
    busy_share: float
    prefill_share: float
    end_s: float
    steps: int
    event_batches: int
    blocks_stored: int
    blocks_removed: int


def summarize(run: Run, slo: Slo) -> Summary:
    """The figures of one run."""
    input_tokens, hit_tokens = int(run.input_tokens.sum()), int(run.hit_tokens.sum())
    replicas = len(run.replica_busy_s)
    good = (run.ttft_s < slo.ttft_s) & ~(run.tpot_s >= slo.tpot_s)
    per_replica = np.bincount(run.replica, minlength=replicas)
    return Summary(
        policy=run.policy,
        requests=len(run.ttft_s),
        input_tokens=input_tokens,
        hit_tokens=hit_tokens,
        computed_tokens=input_tokens - hit_tokens,
        hit_rate=hit_tokens / input_tokens,
        predicted_hit_rate=int(run.predicted_tokens.sum()) / input_tokens,
        ttft_s=_spread(run.ttft_s),
        tpot_s=_spread(run.tpot_s[~np.isnan(run.tpot_s)]),
        ttft_ms_per_1k_computed=_spread(run.ttft_s * 1e6 / (run.input_tokens - run.hit_tokens)),
        goodput=float(good.mean()),
        load_max_over_mean=float(run.replica_computed_tokens.max() / run.replica_computed_tokens.mean()),
        requests_max_over_mean=float(per_replica.max() / per_replica.mean()),
        busy_share=float(run.replica_busy_s.mean() / run.end_s),
        prefill_share=float(run.replica_prefill_s.mean() / run.end_s),
        end_s=run.end_s,
        steps=run.steps,
        event_batches=run.event_batches,
        blocks_stored=run.blocks_stored,
        blocks_removed=run.blocks_removed,
    )


def _spread(values: Float64Array) -> Spread:
    """Zeros where no request has the figure, as when all answers are one token long."""
    if not len(values):
        return Spread(mean=0.0, p50=0.0, p90=0.0, p99=0.0)
    p50, p90, p99 = (float(value) for value in np.percentile(values, (50, 90, 99)))
    return Spread(mean=float(values.mean()), p50=p50, p90=p90, p99=p99)
