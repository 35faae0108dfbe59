"""Learning speed and trust from few, noisy, odd observations."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.choose.line import OVERHEAD_MAX_S, RATE_MAX, RATE_MIN
from gateway.choose.rates import DRAG_MAX_S, OVERHEAD_PRIOR_S, RATE_PRIOR, TRUST_FLOOR, Rates

CPU, GPU = (200.0, 0.05), (20_000.0, 0.03)  # tokens per second, overhead


def teach(
    rates: Rates, holder: int, speed: tuple[float, float], lengths: list[int], *, noise: float = 0.0, seed: int = 1
) -> None:
    """One request per length, first byte after overhead + tokens / rate, times log-normal noise."""
    source = random.Random(seed)
    rate, overhead_s = speed
    for tokens in lengths:
        ttft_s = (overhead_s + tokens / rate) * source.lognormvariate(0, noise)
        rates.observe_first_byte(holder, uncached_tokens=tokens, waited_tokens=0, ttft_s=ttft_s)


def predicted_s(rates: Rates, holder: int, tokens: int) -> float:
    return rates.overhead_s(holder) + tokens / rates.prefill_rate(holder)


def test_an_unknown_holder_has_the_defaults() -> None:
    rates = Rates()
    assert rates.prefill_rate(0) == pytest.approx(RATE_PRIOR)
    assert rates.drag_s(0, 0) == rates.overhead_s(0) == OVERHEAD_PRIOR_S
    assert rates.trust(0) == 1.0


@pytest.mark.parametrize("speed", [CPU, GPU, (2_000.0, 0.01), (60_000.0, 0.1)])
def test_ten_requests_of_mixed_length_teach_rate_and_overhead(speed: tuple[float, float]) -> None:
    rates = Rates()
    teach(rates, 0, speed, [500, 2_000, 8_000, 300, 60, 4_000, 1_000, 150, 3_000, 700])
    assert rates.prefill_rate(0) == pytest.approx(speed[0], rel=0.15)
    for tokens in (100, 1_000, 10_000):
        assert predicted_s(rates, 0, tokens) == pytest.approx(speed[1] + tokens / speed[0], rel=0.25)


@pytest.mark.parametrize("speed", [CPU, GPU])
@pytest.mark.parametrize("seed", range(5))
def test_noise_leaves_the_estimate_near(speed: tuple[float, float], seed: int) -> None:
    rates = Rates()
    lengths = random.Random(seed).choices([200, 800, 3_000, 6_000], k=40)
    teach(rates, 0, speed, lengths, noise=0.25, seed=seed)
    for tokens in (800, 6_000):
        assert predicted_s(rates, 0, tokens) == pytest.approx(speed[1] + tokens / speed[0], rel=0.4)


def test_requests_of_one_length_teach_the_time_of_that_length() -> None:
    rates = Rates()
    teach(rates, 0, GPU, [150] * 12)
    assert predicted_s(rates, 0, 150) == pytest.approx(GPU[1] + 150 / GPU[0], rel=0.05)


def test_waiting_behind_others_is_not_taken_for_slowness() -> None:
    rates = Rates()
    for _ in range(12):
        rates.observe_first_byte(0, uncached_tokens=500, waited_tokens=9_500, ttft_s=0.03 + 10_000 / 20_000)
        rates.observe_first_byte(0, uncached_tokens=500, waited_tokens=0, ttft_s=0.03 + 500 / 20_000)
    assert rates.prefill_rate(0) == pytest.approx(20_000, rel=0.1)


def test_three_token_prefills_say_nothing_about_the_rate() -> None:
    rates = Rates()
    teach(rates, 0, (20_000.0, 0.2), [3] * 60, noise=0.1)
    assert rates.prefill_rate(0) == pytest.approx(RATE_PRIOR)
    assert rates.overhead_s(0) == pytest.approx(0.2, rel=0.15)


def test_a_stall_counts_little() -> None:
    rates = Rates()
    teach(rates, 0, GPU, [500, 4_000] * 10)
    before_s = predicted_s(rates, 0, 2_000)
    rates.observe_first_byte(0, uncached_tokens=2_000, waited_tokens=0, ttft_s=600.0)
    assert before_s <= predicted_s(rates, 0, 2_000) < 1.25 * before_s


def test_an_answer_too_quick_to_be_true_counts_little() -> None:
    rates = Rates()
    teach(rates, 0, CPU, [500, 4_000] * 10)
    before_s = predicted_s(rates, 0, 2_000)
    rates.observe_first_byte(0, uncached_tokens=2_000, waited_tokens=0, ttft_s=0.001)
    assert 0.6 * before_s < predicted_s(rates, 0, 2_000) <= before_s


def test_a_slow_first_request_does_not_keep_the_second_away() -> None:
    """An engine that compiles on its first request would otherwise never get another while others are idle."""
    rates = Rates()
    teach(rates, 0, GPU, [500, 4_000, 1_000] * 4)
    rates.observe_first_byte(1, uncached_tokens=500, waited_tokens=0, ttft_s=60.0)
    assert predicted_s(rates, 1, 500) <= predicted_s(rates, 0, 500) * 1.001
    teach(rates, 1, GPU, [500, 4_000, 1_000] * 4)
    assert rates.prefill_rate(1) == pytest.approx(GPU[0], rel=0.2)


@pytest.mark.parametrize("before", [GPU, CPU, (1e6, 0.001)])
def test_a_change_of_speed_is_noticed_within_twenty_requests(before: tuple[float, float]) -> None:
    rates = Rates()
    teach(rates, 0, before, [500, 4_000] * 15)
    teach(rates, 0, (5_000.0, 0.03), [500, 4_000] * 10)
    assert rates.prefill_rate(0) == pytest.approx(5_000, rel=0.2)


def test_an_estimate_at_its_upper_bound_comes_back() -> None:
    rates = Rates()
    teach(rates, 0, (1e6, 0.1), [500, 4_000] * 10)
    teach(rates, 0, CPU, [60, 150] * 12)
    assert rates.prefill_rate(0) == pytest.approx(200, rel=0.2)


def test_an_unknown_holder_is_taken_for_an_average_one() -> None:
    rates = Rates()
    teach(rates, 0, GPU, [500, 4_000] * 10)
    assert rates.prefill_rate(9) == pytest.approx(GPU[0], rel=0.1)
    teach(rates, 1, CPU, [500, 4_000] * 10)
    assert rates.prefill_rate(9) == pytest.approx(math.sqrt(GPU[0] * CPU[0]), rel=0.1)
    rates.forget(1)
    assert rates.prefill_rate(9) == pytest.approx(GPU[0], rel=0.1)
    rates.forget(0)
    assert rates.prefill_rate(9) == pytest.approx(RATE_PRIOR)


def test_forgetting_is_complete() -> None:
    rates = Rates()
    teach(rates, 0, CPU, [500] * 10)
    rates.observe_credit(0, 1_000, 0)
    rates.forget(0)
    rates.forget(5)
    assert rates.prefill_rate(0) == pytest.approx(RATE_PRIOR)
    assert rates.trust(0) == 1.0


def test_decoding_neighbours_are_learned_as_drag() -> None:
    rates, source = Rates(), random.Random(3)
    for _ in range(200):
        tokens, decoding = source.choice([300, 1_000, 3_000]), source.choice([0, 0, 2, 4, 8])
        ttft_s = 0.03 + tokens / 20_000 + 0.012 * decoding
        rates.observe_first_byte(0, uncached_tokens=tokens, waited_tokens=0, ttft_s=ttft_s, decoding=decoding)
    assert rates.drag_s(0, 8) - rates.drag_s(0, 0) == pytest.approx(8 * 0.012, rel=0.25)
    assert rates.prefill_rate(0) == pytest.approx(20_000, rel=0.2)


def test_trust_is_realised_over_predicted() -> None:
    rates = Rates()
    for _ in range(30):
        rates.observe_credit(0, 1_000, 600)
    assert rates.trust(0) == pytest.approx(0.6, abs=0.08)
    for _ in range(30):
        rates.observe_credit(0, 1_000, 1_000)
    assert rates.trust(0) == pytest.approx(1.0, abs=0.02)


def test_one_miss_among_hits_costs_little_and_three_in_a_row_much() -> None:
    rates = Rates()
    for _ in range(20):
        rates.observe_credit(0, 2_000, 2_000)
    rates.observe_credit(0, 100_000, 0)
    assert rates.trust(0) > 0.8
    for _ in range(3):
        rates.observe_credit(1, 2_000, 0)
    assert rates.trust(1) < 0.3
    for _ in range(40):
        rates.observe_credit(1, 2_000, 0)
    assert TRUST_FLOOR <= rates.trust(1) < 0.2
    for _ in range(10):
        rates.observe_credit(1, 2_000, 2_000)
    assert rates.trust(1) > 0.7


def test_more_than_predicted_is_no_reason_for_distrust() -> None:
    rates = Rates()
    rates.observe_credit(0, 512, 4_096)
    rates.observe_credit(0, 0, 4_096)
    assert rates.trust(0) == 1.0


observations = st.lists(
    st.tuples(
        st.integers(0, 10**7),
        st.integers(0, 10**7),
        st.one_of(st.floats(1e-9, 1e6), st.sampled_from([0.0, -1.0, math.inf, math.nan])),
        st.integers(0, 500),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(observations)
def test_estimates_stay_in_bounds_whatever_comes(seen: list[tuple[int, int, float, int]]) -> None:
    rates = Rates()
    for uncached, waited, ttft_s, decoding in seen:
        rates.observe_first_byte(0, uncached_tokens=uncached, waited_tokens=waited, ttft_s=ttft_s, decoding=decoding)
        rates.observe_credit(0, uncached, waited)
        assert RATE_MIN * 0.999 <= rates.prefill_rate(0) <= RATE_MAX * 1.001
        assert 0 <= rates.overhead_s(0) <= OVERHEAD_MAX_S
        assert TRUST_FLOOR <= rates.trust(0) <= 1
        drags = [rates.drag_s(0, count) for count in (0, 1, 10)]
        assert drags == sorted(drags)
        assert drags[1] - drags[0] <= DRAG_MAX_S * 1.001


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 5_000)), min_size=1, max_size=10), st.integers(1, 1_000))
def test_less_realised_credit_never_raises_trust(seen: list[tuple[int, int]], less: int) -> None:
    rates = Rates()
    for predicted, realised in seen:
        rates.observe_credit(0, predicted, realised)
        rates.observe_credit(1, predicted, max(0, realised - less))
        assert rates.trust(1) <= rates.trust(0) + 1e-12


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5_000), st.floats(0.01, 10), st.floats(1.05, 20))
def test_a_slower_answer_never_lowers_the_prediction(tokens: int, ttft_s: float, factor: float) -> None:
    """For the length that was measured, and a holder known before."""
    rates = Rates()
    for holder in (0, 1):
        teach(rates, holder, (2_000.0, 0.02), [500, 2_000] * 5)
    rates.observe_first_byte(0, uncached_tokens=tokens, waited_tokens=0, ttft_s=ttft_s)
    rates.observe_first_byte(1, uncached_tokens=tokens, waited_tokens=0, ttft_s=ttft_s * factor)
    assert predicted_s(rates, 1, tokens) >= predicted_s(rates, 0, tokens) * 0.999
