"""Who is chosen, why, and what never happens."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.types import Freshness
from gateway.choose.policies import POLICY_NAMES, policy_named
from gateway.choose.price import bound_s, weigh
from gateway.choose.types import FleetView, NoEligible, RequestView
from gateway.errors import ConfigError
from radix.match import Match
from tests.gateway.choose.fleets import fleet_of, queue, request_of
from tests.gateway.choose.situations import situations

COST = policy_named("cost")


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_nobody_eligible_is_an_error(name: str) -> None:
    fleet = fleet_of(2)
    fleet.eligible = [False, False]
    for view in (fleet, FleetView()):
        with pytest.raises(NoEligible):
            policy_named(name).choose(request_of(100), view, 0.0)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ConfigError, match="'fastest' is not one of approximate, cost, kv_aware, "):
        policy_named("fastest")


def test_the_longest_prefix_wins_on_an_idle_fleet() -> None:
    decision = COST.choose(request_of(1_000, {0: 160, 1: 800}), fleet_of(3), 0.0)
    assert (decision.holder, decision.reason, decision.credit_tokens) == (1, "credit", 800)
    assert decision.price_s == pytest.approx(0.1)
    assert [candidate.credit_tokens for candidate in decision.candidates] == [160, 800, 0]


def test_waiting_longer_than_recomputing_spreads_a_hot_prefix() -> None:
    fleet = fleet_of(2)
    queue(fleet, 1, 5_000)
    decision = COST.choose(request_of(1_000, {1: 800}), fleet, 0.0)
    assert (decision.holder, decision.reason, decision.credit_tokens) == (0, "price", 0)


def test_without_credit_load_decides() -> None:
    fleet = fleet_of(2)
    queue(fleet, 0, 500)
    decision = COST.choose(request_of(1_000), fleet, 0.0)
    assert (decision.holder, decision.reason) == (1, "load")


def test_without_tokens_load_decides() -> None:
    """FC-22: a prompt without ids is no cache miss, it has its own reason."""
    fleet = fleet_of(2)
    queue(fleet, 0, 500)
    decision = COST.choose(request_of(0), fleet, 0.0)
    assert (decision.holder, decision.reason, decision.credit_tokens) == (1, "no_tokens", 0)


def test_a_loaded_replica_is_seen_as_loaded() -> None:
    """FC-25: twenty long streams on the replica with affinity: their drag outweighs a short credit."""
    fleet = fleet_of(2)
    fleet.in_flight[0] = fleet.decode_load[0] = 20
    fleet.drag_s[0] = 20 * 0.01
    assert COST.choose(request_of(300, {0: 112}), fleet, 0.0).holder == 1
    assert COST.choose(request_of(3_000, {0: 2_800}), fleet, 0.0).holder == 0


def test_only_eligible_holders_count() -> None:
    """FC-26: an unhealthy idle holder neither wins nor makes others look loaded."""
    fleet = fleet_of(3)
    for holder in (0, 1):
        fleet.in_flight[holder] = 5
    fleet.eligible[2] = False
    decision = COST.choose(request_of(1_000, {1: 960, 2: 960}), fleet, 0.0)
    assert (decision.holder, decision.reason) == (1, "credit")
    assert [candidate.holder for candidate in decision.candidates] == [0, 1]


def test_unmatched_prompts_go_where_nobody_waits() -> None:
    """FC-27: fifty queued requests against an idle holder, however much that one holds."""
    fleet = fleet_of(2)
    for _ in range(50):
        queue(fleet, 0, 400)
    chosen = Counter(COST.choose(request_of(400, prefix=number), fleet, 0.0).holder for number in range(100))
    assert chosen == {1: 100}


def test_siblings_share_a_replica_through_the_guess() -> None:
    """FC-28: sixteen requests with one 4,000-token prefix before any event, on four cold holders."""
    fleet = fleet_of(4)
    fleet.freshness = [Freshness.COLD] * 4
    guessed: dict[int, int] = {}
    chosen: list[int] = []
    for number in range(16):
        request = request_of(4_020, {h: guessed.get(h, 0) for h in range(4)}, guessed=list(guessed), prefix=77)
        decision = COST.choose(request, fleet, number * 0.0003)
        queue(fleet, decision.holder, 4_020 - decision.credit_tokens)
        guessed[decision.holder] = 4_000
        chosen.append(decision.holder)
    computed = sum(fleet.queued_tokens)
    assert chosen[:8] == [chosen[0]] * 8  # siblings stay together ...
    assert 1 <= len(set(chosen)) <= 2  # ... until the queue in front of them is worth another copy
    assert computed < 3 * 4_020


def test_equal_prices_go_to_the_least_loaded() -> None:
    fleet = fleet_of(3)
    fleet.in_flight = [2, 1, 3]
    assert COST.choose(request_of(1_000), fleet, 0.0).holder == 1
    fleet.in_flight = [1, 1, 1]
    fleet.queued_tokens = [9, 9, 3]
    assert COST.choose(request_of(1_000), fleet, 0.0).holder == 2


def test_a_common_first_block_does_not_pull_everyone_to_one_holder() -> None:
    """Every chat shares its first block; sixteen tokens of a thousand are within the tolerance, so prefixes spread."""
    fleet = fleet_of(4)
    chosen = Counter(COST.choose(request_of(1_000, {2: 16}, prefix=number * 7919), fleet, 0.0).holder for number in range(400))
    assert set(chosen) == {0, 1, 2, 3}
    assert max(chosen.values()) < 160


def test_equal_holders_keep_a_prefix_and_share_the_prefixes() -> None:
    fleet = fleet_of(8)
    first = {prefix: COST.choose(request_of(500, prefix=prefix), fleet, 0.0).holder for prefix in range(1, 801)}
    assert first == {prefix: COST.choose(request_of(500, prefix=prefix), fleet, 1.0).holder for prefix in first}
    shares = Counter(first.values())
    assert len(shares) == 8
    assert max(shares.values()) < 160
    fleet.eligible[3] = False
    moved = [p for p, holder in first.items() if COST.choose(request_of(500, prefix=p), fleet, 0.0).holder != holder]
    assert sorted(moved) == sorted(p for p, holder in first.items() if holder == 3)


# Properties of `cost` over random fleets.


@settings(max_examples=300, deadline=None)
@given(situations())
def test_cost_stays_within_the_tolerance_of_the_least_price(situation: tuple[RequestView, FleetView]) -> None:
    """FC-26: and the chosen one is always eligible."""
    request, fleet = situation
    decision = COST.choose(request, fleet, 0.0)
    prices = weigh(request, fleet)
    assert fleet.eligible[decision.holder]
    assert prices.holders == [holder for holder, eligible in enumerate(fleet.eligible) if eligible]
    assert decision.price_s == prices.prices_s[prices.holders.index(decision.holder)]
    assert decision.price_s <= bound_s(min(prices.prices_s))
    assert 0 <= decision.credit_tokens <= max(0, request.tokens - 1)


@settings(max_examples=300, deadline=None)
@given(situations(), st.randoms(use_true_random=False))
def test_permuting_holders_permutes_the_answer(situation: tuple[RequestView, FleetView], random: object) -> None:
    request, fleet = situation
    places = list(range(len(fleet.eligible)))
    random.shuffle(places)  # type: ignore[attr-defined]
    permuted = FleetView(**{name: [getattr(fleet, name)[place] for place in places] for name in FleetView.__dataclass_fields__})
    moved = replace(request, match=Match(request.match.depth[places], request.match.guessed[places]))
    decision = COST.choose(request, fleet, 0.0)
    permuted_decision = COST.choose(moved, permuted, 0.0)
    assert places[permuted_decision.holder] == decision.holder
    assert permuted_decision.reason == decision.reason


@settings(max_examples=500, deadline=None)
@given(
    situations(),
    st.data(),
    st.sampled_from(["wait_s", "drag_s", "in_flight", "queued_tokens"]),
    st.sampled_from([0.001, 0.01, 0.1, 1.0]),
)
def test_more_load_never_attracts(
    situation: tuple[RequestView, FleetView], data: st.DataObject, name: str, amount: float
) -> None:
    """FC-25: a holder that was not chosen is not chosen when it becomes more loaded."""
    request, fleet = situation
    chosen = COST.choose(request, fleet, 0.0).holder
    others = [holder for holder in range(len(fleet.eligible)) if holder != chosen]
    if not others:
        return
    holder = data.draw(st.sampled_from(others))
    heavier = copy.deepcopy(fleet)
    getattr(heavier, name)[holder] += amount if name.endswith("_s") else 1
    assert COST.choose(request, heavier, 0.0).holder != holder


@settings(max_examples=300, deadline=None)
@given(situations())
def test_more_credit_never_repels(situation: tuple[RequestView, FleetView]) -> None:
    """The chosen holder stays chosen when it turns out to hold one block more."""
    request, fleet = situation
    chosen = COST.choose(request, fleet, 0.0).holder
    depth = request.match.depth.copy()
    depth[chosen] += 16
    if depth[chosen, 0] > request.tokens:
        return
    assert COST.choose(replace(request, match=Match(depth, request.match.guessed)), fleet, 0.0).holder == chosen
