"""Whole replays: repeatable, conserving, exact where a closed form exists, and ranked as published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gateway.choose.policies import POLICY_NAMES
from simulations.cost import EngineSpec, StepCost
from simulations.errors import SettingError, SimulationError
from simulations.report.json import to_json
from simulations.report.summary import Slo, Summary, summarize
from simulations.run import FleetSpec, check_policies, replay
from simulations.traces.characterize import lru_hit_rate
from simulations.traces.columns import Trace
from simulations.traces.mooncake import read_mooncake
from simulations.traces.transform import speed_up, spread

POLICIES = ("cost", "least_loaded", "round_robin")


def busy_trace(trace_of: Callable[..., Trace], requests: int = 400, seed: int = 0) -> Trace:
    """Growing chats of 40 users under one system prompt, faster than two replicas can serve."""
    draw = np.random.default_rng(seed)
    chats = {user: [0, 1, 100 * user] for user in range(1, 41)}
    rows = []
    for at in np.cumsum(draw.exponential(0.12, requests)):
        user = int(draw.integers(1, 41))
        ids = chats[user]
        rows.append((float(at), len(ids) * 512 - int(draw.integers(0, 512)), int(draw.integers(1, 120)), list(ids)))
        if len(ids) < 30:
            ids += [ids[-1] + 1, ids[-1] + 2]
    return trace_of(*rows)


@pytest.mark.parametrize("policy", POLICIES)
def test_same_seed_gives_the_same_bytes(trace_of: Callable[..., Trace], tiny: Trace, policy: str) -> None:
    """FC-66: two replays agree bit for bit, in every column and in the report."""
    for trace in (busy_trace(trace_of), tiny):
        reports = []
        for _ in range(2):
            prepared, spec = spread(trace, seed=5), FleetSpec(replicas=3)
            run = replay(prepared, policy, spec)
            reports.append(
                (to_json(prepared, spec, Slo(), 5, [summarize(run, Slo())]), run.ttft_s.tobytes(), run.replica.tobytes())
            )
        assert reports[0] == reports[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_prompt_token_is_hit_or_computed_and_nothing_is_held_at_the_end(
    trace_of: Callable[..., Trace], policy: str
) -> None:
    trace = busy_trace(trace_of)
    # The replay itself asserts that no block, reference or load is left; a small pool makes it evict.
    run = replay(trace, policy, FleetSpec(replicas=2, engine=EngineSpec(kv_tokens=60 * 512)))
    assert run.hit_tokens.sum() + run.replica_computed_tokens.sum() == trace.input_tokens.sum()
    assert (run.hit_tokens < trace.input_tokens).all()
    assert 0 <= run.blocks_stored - run.blocks_removed <= 2 * 60
    assert (run.ttft_s > 0).all() and run.end_s > trace.arrival_s[-1]
    assert np.isnan(run.tpot_s[trace.output_tokens == 1]).all()


def test_one_replica_without_limit_reaches_the_infinite_cache_hit_rate(trace_of: Callable[..., Trace]) -> None:
    trace = speed_up(busy_trace(trace_of), 0.01)
    run = replay(trace, "round_robin", FleetSpec(replicas=1, engine=EngineSpec(kv_tokens=None)))
    whole = int((run.hit_tokens == trace.input_tokens - 1).sum())  # repeated as a whole, less the token always computed
    found = lru_hit_rate(trace) * trace.input_tokens.sum()
    assert run.hit_tokens.sum() == pytest.approx(found - whole, abs=1e-3)


def test_a_lone_request_takes_what_the_closed_form_says(trace_of: Callable[..., Trace]) -> None:
    cost = StepCost(EngineSpec())
    run = replay(trace_of((3.0, 8_000, 101, list(range(16)))), "cost", FleetSpec())
    assert run.ttft_s[0] == pytest.approx(0.564, rel=0.01)
    assert run.tpot_s[0] == pytest.approx(cost.decode_run_s(100, requests=1, kv_tokens=8_000) / 100, rel=1e-9)


def test_the_policy_expects_what_the_engine_then_finds(trace_of: Callable[..., Trace]) -> None:
    trace = speed_up(busy_trace(trace_of), 0.05)
    run = replay(trace, "cost", FleetSpec())
    assert run.hit_tokens.tolist() == run.predicted_tokens.tolist()
    assert run.hit_tokens.sum() > 0.5 * trace.input_tokens.sum()


def test_events_that_come_too_late_cost_hits(trace_of: Callable[..., Trace]) -> None:
    trace = busy_trace(trace_of)
    hits = [
        int(replay(trace, "cost", FleetSpec(replicas=4, event_delay_s=delay_s, guesses=False)).hit_tokens.sum())
        for delay_s in (0.0, 1e4)
    ]
    assert hits[1] < 0.9 * hits[0]


def test_a_request_that_can_not_fit_stops_the_replay(tiny: Trace) -> None:
    with pytest.raises(SimulationError, match="request 6 needs 18 KV blocks"):
        replay(tiny, "cost", FleetSpec(engine=EngineSpec(kv_tokens=10 * 512)))


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SettingError, match="replicas must be at least 1, got 0"):
        FleetSpec(replicas=0)
    with pytest.raises(SettingError, match="event delay must be at least 0 s, got -1"):
        FleetSpec(event_delay_s=-1)
    with pytest.raises(SettingError, match="'fastest' is not one of approximate, cost"):
        check_policies(["cost", "fastest"])
    with pytest.raises(SettingError, match="'cost' is named twice"):
        check_policies(["cost", "cost"])
    with pytest.raises(SettingError, match="slo tpot_s must be positive, got 0"):
        Slo(tpot_s=0)


def test_summary_figures_by_hand(trace_of: Callable[..., Trace]) -> None:
    run = replay(trace_of((0.0, 512, 1, [1]), (1.0, 512, 1, [2]), (2.0, 512, 3, [1])), "round_robin", FleetSpec(replicas=2))
    run = replace(run, ttft_s=np.asarray([1.0, 6.0, 2.0]), tpot_s=np.asarray([np.nan, np.nan, 0.2]))
    summary = summarize(run, Slo())
    assert (summary.hit_tokens, summary.computed_tokens) == (511, 1_025)
    assert summary.goodput == pytest.approx(1 / 3)
    assert (summary.ttft_s.mean, summary.ttft_s.p50, summary.tpot_s.p99) == (3.0, 2.0, 0.2)
    assert summary.load_max_over_mean == pytest.approx(513 / 512.5)
    assert summary.requests_max_over_mean == pytest.approx(4 / 3)


@pytest.fixture(scope="module")
def conversation(recorded: Callable[[str], Path]) -> Trace:
    return spread(read_mooncake(recorded("mooncake_conversation_first40min.jsonl")).head(1_500), seed=1)


def test_cost_beats_the_others_on_recorded_chats(conversation: Trace) -> None:
    summaries: dict[str, Summary] = {policy: summarize(replay(conversation, policy, FleetSpec()), Slo()) for policy in POLICIES}
    cost = summaries.pop("cost")
    for other in summaries.values():
        assert cost.hit_rate > 1.3 * other.hit_rate
        assert cost.ttft_s.p50 < other.ttft_s.p50
        assert cost.goodput > other.goodput
    assert summaries["least_loaded"].goodput > summaries["round_robin"].goodput


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_replays_and_repeats_itself(policy: str, trace_of: Callable[..., Trace]) -> None:
    """FC-66: what a policy draws comes from the seed."""
    rows = [(0.4 * number, 2_048, 4, [*(100 * block + number % 5 for block in range(3)), 1_000 + number]) for number in range(60)]
    trace = trace_of(*rows)
    first, again, other = (replay(trace, policy, FleetSpec(replicas=4, seed=seed)) for seed in (1, 1, 2))
    assert first.replica.tolist() == again.replica.tolist()
    assert (first.replica.tolist() != other.replica.tolist()) == (policy in ("random", "power_of_two"))
    if policy in ("approximate", "kv_aware", "prefix_hash", "cost"):  # the five heads are computed about once each
        assert first.hit_tokens.sum() > 0.9 * 55 * 1_536
