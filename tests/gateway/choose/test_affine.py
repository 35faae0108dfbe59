"""Policies that keep together what belongs together."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from gateway.choose.affine import LOAD_SHARE, LOAD_SLACK
from gateway.choose.policies import policy_named
from gateway.choose.types import FleetView, RequestView
from tests.gateway.choose.fleets import fleet_of, queue, request_of


def chosen(name: str, request: RequestView, fleet: FleetView) -> int:
    return policy_named(name).choose(request, fleet, 0.0).holder


def test_kv_aware_takes_the_longest_credit_whatever_waits_there() -> None:
    fleet = fleet_of(3)
    queue(fleet, 1, 50_000)
    fleet.in_flight[1] = LOAD_SLACK - 1
    decision = policy_named("kv_aware").choose(request_of(1_000, {0: 480, 1: 800}), fleet, 0.0)
    assert (decision.holder, decision.reason, decision.credit_tokens) == (1, "credit", 800)
    assert math.isnan(decision.price_s)
    assert [candidate.credit_tokens for candidate in decision.candidates] == [480, 800, 0]


def test_kv_aware_leaves_a_holder_that_has_far_more_than_the_mean() -> None:
    fleet = fleet_of(3)
    fleet.in_flight[1] = 3 * LOAD_SLACK
    decision = policy_named("kv_aware").choose(request_of(1_000, {0: 480, 1: 800}), fleet, 0.0)
    assert (decision.holder, decision.reason, decision.credit_tokens) == (0, "price", 480)


def test_a_first_block_that_all_share_does_not_draw_them_to_one_holder() -> None:
    fleet = fleet_of(4)
    requests = [request_of(900, {2: 16}, prefix=number * 7919) for number in range(400)]
    assert {chosen("kv_aware", request, fleet) for request in requests} == {0, 1, 2, 3}


def test_kv_aware_goes_by_load_between_equals() -> None:
    fleet = fleet_of(3)
    fleet.in_flight = [2, 1, 0]
    decision = policy_named("kv_aware").choose(request_of(1_000, {0: 480, 1: 480}), fleet, 0.0)
    assert (decision.holder, decision.reason) == (1, "credit")
    decision = policy_named("kv_aware").choose(request_of(1_000), fleet, 0.0)
    assert (decision.holder, decision.reason, decision.credit_tokens) == (2, "load", 0)
    assert policy_named("kv_aware").choose(request_of(0), fleet, 0.0).reason == "no_tokens"


@pytest.mark.parametrize("name", ["prefix_hash", "session"])
def test_a_key_stays_where_it_is_and_keys_are_spread(name: str) -> None:
    fleet = fleet_of(8)

    def of(key: int) -> int:
        request = request_of(500, prefix=key) if name == "prefix_hash" else replace(request_of(500), session=f"s{key}")
        return chosen(name, request, fleet)

    first = {key: of(key) for key in range(1, 801)}
    assert first == {key: of(key) for key in first}
    assert len(set(first.values())) == 8
    assert max(Counter(first.values()).values()) < 160
    fleet.eligible[3] = False
    assert sorted(key for key in first if of(key) != first[key]) == sorted(key for key in first if first[key] == 3)


def test_a_holder_with_far_more_than_the_mean_gets_no_more_by_its_hash() -> None:
    fleet, request = fleet_of(4), request_of(500, prefix=9)
    home = chosen("prefix_hash", request, fleet)
    fleet.in_flight[home] = LOAD_SLACK  # mean 2 and a bit
    assert chosen("prefix_hash", request, fleet) == home
    fleet.in_flight[home] = 2 * LOAD_SLACK
    other = chosen("prefix_hash", request, fleet)
    assert other != home
    fleet.in_flight = [100] * 4
    fleet.in_flight[home] = round(100 * LOAD_SHARE)
    assert chosen("prefix_hash", request, fleet) == home
    fleet.in_flight[home] = round(140 * LOAD_SHARE)
    assert chosen("prefix_hash", request, fleet) == other  # the next in the order of this prefix


def test_without_a_prefix_the_hash_goes_by_load() -> None:
    fleet = fleet_of(3)
    fleet.in_flight = [1, 1, 0]
    assert chosen("prefix_hash", request_of(0), fleet) == 2


def test_without_a_session_prices_decide() -> None:
    fleet = fleet_of(3)
    decision = policy_named("session").choose(request_of(1_000, {0: 160, 1: 800}), fleet, 0.0)
    assert (decision.holder, decision.reason) == (1, "credit")
    named = policy_named("session").choose(replace(request_of(1_000, {0: 160, 1: 800}), session="anna"), fleet, 0.0)
    assert named.reason == "policy"


def test_approximate_prices_what_a_history_says() -> None:
    decision = policy_named("approximate").choose(request_of(1_000, {1: 800}, guessed=[1]), fleet_of(3), 0.0)
    assert (decision.holder, decision.reason, decision.credit_tokens) == (1, "credit", 800)
