"""Policies that look at load or at nothing."""

from __future__ import annotations

import math
from collections import Counter

from gateway.choose.policies import policy_named
from tests.gateway.choose.fleets import fleet_of, queue, request_of


def test_round_robin_takes_turns_over_eligible_holders() -> None:
    policy, fleet = policy_named("round_robin"), fleet_of(4)
    fleet.eligible[1] = False
    request = request_of(1_000, {2: 160})
    decisions = [policy.choose(request, fleet, 0.0) for _ in range(6)]
    assert [decision.holder for decision in decisions] == [0, 2, 3, 0, 2, 3]
    assert [decision.credit_tokens for decision in decisions] == [0, 160, 0, 0, 160, 0]
    assert {decision.reason for decision in decisions} == {"policy"}
    assert math.isnan(decisions[0].price_s)
    fleet.eligible = [False, True, False, False]
    assert policy.choose(request, fleet, 0.0).holder == 1


def test_least_loaded_takes_the_fewest_open_requests_and_turns_between_equals() -> None:
    policy, fleet = policy_named("least_loaded"), fleet_of(3)
    request = request_of(1_000, {0: 992})
    assert [policy.choose(request, fleet, 0.0).holder for _ in range(4)] == [0, 1, 2, 0]
    fleet.in_flight = [2, 1, 1]
    fleet.queued_tokens = [0, 50, 10]
    decision = policy.choose(request, fleet, 0.0)
    assert (decision.holder, decision.reason, decision.credit_tokens) == (2, "policy", 0)


def test_policies_keep_their_own_turns() -> None:
    fleet = fleet_of(2)
    first, second = policy_named("round_robin"), policy_named("round_robin")
    assert first.choose(request_of(1), fleet, 0.0).holder == second.choose(request_of(1), fleet, 0.0).holder == 0


def test_power_of_two_takes_the_one_that_waits_less_of_any_two() -> None:
    policy, fleet = policy_named("power_of_two", seed=1), fleet_of(3)
    queue(fleet, 2, 5_000)
    chosen = Counter(policy.choose(request_of(100), fleet, 0.0).holder for _ in range(300))
    assert set(chosen) == {0, 1}  # whichever two are drawn, one of them does not wait
    fleet.eligible = [False, False, True]
    assert policy.choose(request_of(100), fleet, 0.0).holder == 2


def test_random_takes_all_alike_and_the_same_for_the_same_seed() -> None:
    fleet = fleet_of(4)
    fleet.eligible[1] = False
    one, other = policy_named("random", seed=7), policy_named("random", seed=7)
    drawn = [one.choose(request_of(100, {0: 96}), fleet, 0.0) for _ in range(600)]
    assert [decision.holder for decision in drawn] == [other.choose(request_of(100), fleet, 0.0).holder for _ in range(600)]
    counts = Counter(decision.holder for decision in drawn)
    assert set(counts) == {0, 2, 3}
    assert min(counts.values()) > 150
    assert {(decision.holder == 0, decision.credit_tokens) for decision in drawn} == {(True, 96), (False, 0)}
