"""Many holders at once: the same answers as one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gateway.choose import cost
from gateway.choose.cost import MANY
from gateway.choose.many import _best, choose_of_many, weigh_many
from gateway.choose.policies import policy_named
from gateway.choose.price import Prices, reason_of, weigh
from gateway.choose.types import FleetView, NoEligible, RequestView
from radix.match import Match
from tests.gateway.choose.fleets import fleet_of, request_of
from tests.gateway.choose.situations import situations


@settings(max_examples=500, deadline=None)
@given(situations())
def test_prices_and_the_choice_are_those_of_the_loop(situation: tuple[RequestView, FleetView]) -> None:
    request, fleet = situation
    request = replace(request, match=_some_on_slower_tiers(request.match))
    one_by_one = weigh(request, fleet)
    holders, credit, prices_s = weigh_many(request, fleet)
    assert holders.tolist() == one_by_one.holders
    assert credit.tolist() == one_by_one.credit
    assert prices_s.tolist() == pytest.approx(one_by_one.prices_s, abs=1e-12)
    # Prices that differ in their last bit may lie on two sides of the bound: the choice is compared over the same ones.
    at = cost._best(Prices(one_by_one.holders, one_by_one.credit, prices_s.tolist()), request, fleet)
    assert _best(holders, credit, prices_s, request, fleet) == at
    decision = choose_of_many(request, fleet)
    assert (decision.holder, decision.credit_tokens) == (one_by_one.holders[at], one_by_one.credit[at])
    assert decision.reason == reason_of(request, decision.credit_tokens, max(one_by_one.credit))
    assert decision.price_s == prices_s[at]
    assert [candidate.holder for candidate in decision.candidates] == one_by_one.holders


def _some_on_slower_tiers(match: Match) -> Match:
    depth = match.depth.copy()
    depth[::2, 0] //= 2
    depth[1::4, :2] = 0
    return replace(match, depth=depth)


def test_a_decision_among_many_tells_the_cheapest_few_and_the_chosen_one() -> None:
    fleet = fleet_of(300)
    for holder in range(300):
        fleet.wait_s[holder] = 1.0 + holder / 1_000  # within the tolerance up to some hundred
        fleet.in_flight[holder] = 5
    fleet.in_flight[90] = 0
    decision = policy_named("cost").choose(request_of(100), fleet, 0.0)
    assert decision.holder == 90
    assert [candidate.holder for candidate in decision.candidates] == [*range(32), 90]
    assert [type(candidate.price_s) for candidate in decision.candidates[:1]] == [float]


def test_columns_are_read_as_they_are_now() -> None:
    fleet = FleetView()
    for _ in range(MANY):
        fleet.grow()
    with pytest.raises(NoEligible):
        policy_named("cost").choose(request_of(100), fleet, 0.0)
    for holder in (7, 9):
        fleet.eligible[holder] = True
        fleet.prefill_rate[holder] = 1_000.0
    fleet.wait_s[7] = 3.0
    assert policy_named("cost").choose(request_of(100), fleet, 0.0).holder == 9
    fleet.wait_s[9] = 6.0
    assert policy_named("cost").choose(request_of(100), fleet, 0.0).holder == 7
    fleet.grow()  # nothing holds on to the columns
    assert policy_named("cost").choose(request_of(100), fleet, 0.0).holder == 7


def test_holders_the_match_does_not_know_have_no_credit() -> None:
    fleet = fleet_of(64)
    request = request_of(1_000, {3: 960})
    assert len(request.match.depth) == 4
    assert policy_named("cost").choose(request, fleet, 0.0).holder == 3
    unknown = replace(request, match=replace(request.match, known=False))
    assert policy_named("cost").choose(unknown, fleet, 0.0).credit_tokens == 0
    assert np.array_equal(weigh_many(unknown, fleet)[1], np.zeros(64))
