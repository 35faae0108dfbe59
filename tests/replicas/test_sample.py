"""Choosing tokens: what each setting keeps, and that a request's luck is its own."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from replicas.sample import Sampler, finite_rows
from replicas.sampling import Sampling

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 2.5])


def draws(sampling: Sampling, count: int, logits: torch.Tensor = LOGITS) -> Counter[int]:
    sampler = Sampler(sampling)
    return Counter(sampler.pick(logits, [], 0) for _ in range(count))


def test_temperature_zero_takes_the_most_likely_token() -> None:
    assert Sampler(Sampling(temperature=0)).plain_greedy
    assert draws(Sampling(temperature=0), 20) == {1: 20}


def test_draws_follow_the_softmax() -> None:
    counts = draws(Sampling(seed=1), 4_000)
    expected = torch.softmax(LOGITS.double(), dim=0).tolist()
    for token, share in enumerate(expected):
        spread = math.sqrt(share * (1 - share) / 4_000)
        assert abs(counts[token] / 4_000 - share) < 4 * spread


def test_temperature_flattens_and_sharpens() -> None:
    cold, hot = draws(Sampling(seed=1, temperature=0.3), 1_000), draws(Sampling(seed=1, temperature=5), 1_000)
    assert cold[1] > 2 * hot[1]
    assert hot[3] > cold[3]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(seed=5, temperature=3, top_k=1), {1}),
        (Sampling(seed=5, temperature=3, top_k=2), {1, 4}),
        (Sampling(seed=5, temperature=3, top_k=99), {0, 1, 2, 3, 4}),
        (Sampling(seed=5, top_p=0.01), {1}),
        (Sampling(seed=5, top_p=0.6), {1, 4}),  # 0.45 alone is not enough, 0.45 + 0.28 is
        (Sampling(seed=5, temperature=3, min_p=1), {1}),
        (Sampling(seed=5, min_p=0.5), {1, 4}),  # exp(2.5 - 3) is 0.61, exp(2 - 3) is 0.37
        (Sampling(seed=5, top_k=3, top_p=0.6), {1, 4}),
    ],
)
def test_filters_keep_exactly_their_tokens(sampling: Sampling, kept: set[int]) -> None:
    assert set(draws(sampling, 600)) == kept


def test_top_p_keeps_the_same_tokens_on_a_flat_and_large_vocabulary() -> None:
    """More tokens than the few that are looked at first: 0.5 of 2,000 equal ones and one that has the other half."""
    logits = torch.zeros(2_001)
    logits[7] = math.log(2_000)
    assert set(draws(Sampling(seed=3, top_p=0.4), 50, logits)) == {7}
    flat = draws(Sampling(seed=3, top_p=0.9), 3_000, logits)
    assert 700 < len(flat) <= 1_601
    assert 0.5 < flat[7] / 3_000 < 0.62  # 0.5 of 0.9


def test_a_seed_gives_the_same_tokens_and_others_do_not() -> None:
    logits = torch.zeros(1_000)

    def run(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(seed=seed))
        return [sampler.pick(logits, [], 0) for _ in range(10)]

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert run(None) != run(None)
    assert run(-5) == run(-5)


def test_frequency_and_presence_penalties_look_at_generated_tokens_only() -> None:
    prompt = [1, 1, 1]
    frequency = Sampler(Sampling(temperature=0, frequency_penalty=0.4))
    assert not frequency.plain_greedy
    assert frequency.pick(LOGITS, prompt, 3) == 1
    assert frequency.pick(LOGITS, [*prompt, 1], 3) == 1  # 2.6 is still above 2.5
    assert frequency.pick(LOGITS, [*prompt, 1, 1], 3) == 4
    presence = Sampler(Sampling(temperature=0, presence_penalty=0.4))
    assert presence.pick(LOGITS, [*prompt, 1, 1, 1], 3) == 1
    assert Sampler(Sampling(temperature=0, presence_penalty=0.6)).pick(LOGITS, [*prompt, 1], 3) == 4


def test_repetition_penalty_counts_the_prompt_and_lowers_both_signs() -> None:
    sampler = Sampler(Sampling(temperature=0, repetition_penalty=1.5))
    assert sampler.pick(LOGITS, [1], 1) == 4
    assert sampler.pick(torch.tensor([-1.0, -1.2]), [0], 1) == 1


def test_banned_tokens_do_not_come() -> None:
    assert Sampler(Sampling(temperature=0)).pick(LOGITS, [], 0, frozenset({1, 4})) == 2
    sampler = Sampler(Sampling(seed=2, temperature=4))
    assert all(sampler.pick(LOGITS, [], 0, frozenset({0, 1})) not in (0, 1) for _ in range(200))


def test_logits_are_left_as_they_are() -> None:
    before = LOGITS.clone()
    Sampler(Sampling(seed=1, repetition_penalty=2, frequency_penalty=1)).pick(LOGITS, [0, 1], 1, frozenset({2}))
    assert torch.equal(LOGITS, before)


def test_rows_with_anything_but_numbers_are_found() -> None:
    logits = torch.zeros(4, 3)
    logits[1, 2] = math.nan
    logits[3, 0] = math.inf
    assert finite_rows(logits) == [True, False, True, False]
