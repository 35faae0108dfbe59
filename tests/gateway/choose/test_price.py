"""The terms of a price, one by one, and the example of docs/choosing.md."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.types import Freshness
from gateway.choose.policies import policy_named
from gateway.choose.price import FRESHNESS_CONFIDENCE, GUESS_CONFIDENCE, credit_tokens, unpriced, weigh
from gateway.choose.types import Candidate, RequestView
from radix.match import Match
from tests.gateway.choose.fleets import SPACE, fleet_of, queue, request_of

PAGE = Path(__file__).parents[3] / "docs" / "choosing.md"


@pytest.mark.parametrize(
    ("depth", "tokens", "block", "credit"),
    [
        (0, 100, 16, 0),
        (96, 100, 16, 96),
        (96, 97, 16, 96),
        (96, 96, 16, 80),  # cached to its end: the last block is computed again
        (96, 96, 32, 64),
        (96, 96, 1, 95),
        (16, 16, 16, 0),
        (1, 1, 1, 0),
        (96, 100, 0, 96),  # unknown block size
        (100, 100, 64, 64),
        (200, 100, 16, 96),
        (0, 0, 16, 0),
    ],
)
def test_credit_is_whole_blocks_without_the_last_token(depth: int, tokens: int, block: int, credit: int) -> None:
    assert credit_tokens(depth, tokens, block) == credit


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(1, 64))
def test_credit_is_what_an_engine_reuses(depth: int, tokens: int, block: int) -> None:
    """The rule of the engines: full blocks, at most (tokens - 1) // block of them."""
    blocks_held = depth // block
    assert credit_tokens(blocks_held * block, tokens, block) == block * max(0, min(blocks_held, (tokens - 1) // block))


def test_price_is_wait_and_prefill_and_drag() -> None:
    fleet = fleet_of(2)
    fleet.wait_s[1], fleet.drag_s[1] = 0.25, 0.05
    assert weigh(request_of(1_000), fleet).prices_s == pytest.approx([0.5, 0.8])


def test_credit_and_a_faster_holder_make_the_prefill_cheaper() -> None:
    fleet = fleet_of(3)
    fleet.prefill_rate[2] = 8_000.0
    prices = weigh(request_of(1_000, {1: 800}), fleet)
    assert prices.credit == [0, 800, 0]
    assert prices.prices_s == pytest.approx([0.5, 0.1, 0.125])


def test_trust_scales_the_price_and_not_the_prediction() -> None:
    fleet = fleet_of(1)
    fleet.trust[0] = 0.5
    prices = weigh(request_of(1_000, {0: 800}), fleet)
    assert prices.credit == [800]
    assert prices.prices_s == pytest.approx([0.3])


@pytest.mark.parametrize("freshness", list(Freshness))
def test_every_freshness_gets_some_credit(freshness: Freshness) -> None:
    fleet = fleet_of(1)
    fleet.freshness[0] = freshness
    share = FRESHNESS_CONFIDENCE[freshness]
    assert 0 < share <= 1
    assert (share == 1) == (freshness is Freshness.LIVE)
    prices = weigh(request_of(1_000, {0: 800}), fleet)
    assert prices.credit == [800]
    assert prices.prices_s == pytest.approx([(1_000 - share * 800) / 2_000])


def test_a_guess_counts_by_itself_and_not_by_the_event_stream() -> None:
    """FC-28: cold holders are where guesses matter most."""
    fleet = fleet_of(1)
    fleet.freshness[0] = Freshness.COLD
    prices = weigh(request_of(1_000, {0: 800}, guessed=[0]), fleet)
    assert prices.prices_s == pytest.approx([(1_000 - GUESS_CONFIDENCE * 800) / 2_000])


def test_slower_tiers_cost_time_and_still_count_as_credit() -> None:
    fleet = fleet_of(4)
    prices = weigh(
        request_of(2_000, {0: 1_600, 1: [0, 1_600, 1_600, 1_600], 2: [0, 0, 1_600, 1_600], 3: [0, 0, 0, 1_600]}), fleet
    )
    assert prices.credit == [1_600] * 4
    assert prices.prices_s == sorted(prices.prices_s)
    assert prices.prices_s[0] < prices.prices_s[1] < prices.prices_s[2] < prices.prices_s[3] < 2_000 / 2_000
    partly = weigh(request_of(2_000, {0: [800, 1_600, 1_600, 1_600]}), fleet).prices_s[0]
    assert partly == pytest.approx((prices.prices_s[0] + prices.prices_s[1]) / 2)


def test_an_index_that_could_not_answer_gives_no_credit() -> None:
    match = Match(np.full((1, 4), 800, np.int32), np.zeros(1, np.bool_), known=False)
    request = RequestView(tokens=1_000, namespace=SPACE, match=match)
    fleet = fleet_of(1)
    assert weigh(request, fleet).credit == unpriced(request, fleet).credit == [0]


def test_candidates_are_the_eligible_holders_in_order() -> None:
    fleet = fleet_of(4)
    fleet.eligible[1] = False
    candidates = weigh(request_of(1_000, {2: 160}), fleet).candidates()
    assert list(candidates) == [Candidate(0, 0, 0.5), Candidate(2, 160, 0.42), Candidate(3, 0, 0.5)]
    assert candidates[-1] == Candidate(3, 0, 0.5)
    assert candidates[1:] == [Candidate(2, 160, 0.42), Candidate(3, 0, 0.5)]
    assert len(candidates) == 3


def test_unpriced_holders_have_credit_and_no_price() -> None:
    priced = unpriced(request_of(1_000, {0: 160}), fleet_of(2))
    assert priced.credit == [160, 0]
    assert all(math.isnan(price) for price in priced.prices_s)


def test_the_worked_example_of_the_page_is_what_the_code_computes() -> None:
    fleet = fleet_of(3)
    queue(fleet, 0, 900)
    fleet.drag_s = [0.022, 0.020, 0.020]
    fleet.freshness[1] = Freshness.PARTIAL
    fleet.trust[1] = 0.9
    request = request_of(1_200, {0: 1_104, 1: 800})
    prices = weigh(request, fleet)
    rows = [
        f"| r{holder} | {fleet.wait_s[holder]:.3f} | {credit} | {price_s - fleet.wait_s[holder] - fleet.drag_s[holder]:.3f} "
        f"| {fleet.drag_s[holder]:.3f} | **{price_s:.3f}** |"
        for holder, credit, price_s in zip(prices.holders, prices.credit, prices.prices_s, strict=True)
    ]
    page = PAGE.read_text(encoding="utf-8")
    for row in rows:
        assert row in page, row
    decision = policy_named("cost").choose(request, fleet, 0.0)
    assert (
        f"`{fleet.names[decision.holder]}`, reason `{decision.reason}`, predicted cached tokens {decision.credit_tokens}" in page
    )
