"""What a key may take: by the minute, at once, and what it gets back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gateway.auth import Allowance, Caller
from gateway.errors import Refusal
from gateway.quota import OTHER, Permit, Quotas
from gateway.request import Intent, Kind, Prompt, Usage

NOBODY = Prompt(None, "no_tokenizer")


def quotas(share: float = 1.0, **limits: Any) -> Quotas:
    made = Quotas(share)
    made.set({"alice": Allowance(**limits)}, 0.0)
    return made


def enter(made: Quotas, now: float = 0.0, name: str = "alice", **fields: Any) -> Permit:
    return made.enter(Caller(name), Intent(Kind.CHAT, {}, **fields), now)


def refused(made: Quotas, now: float = 0.0, **fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        enter(made, now, **fields)
    return caught.value


def prompt(tokens: int) -> Prompt:
    return Prompt(np.zeros(tokens, np.int32))


def test_without_limits_everything_passes_and_is_counted() -> None:
    made = quotas()
    permits = [enter(made) for _ in range(1_000)]
    assert made.counts(10)["alice"].in_flight == 1_000
    for permit in permits:
        permit.charge(prompt(10), 0, 0.0)
        permit.close(200, Usage(10, 5, 8))
        permit.close(200, Usage(10, 5, 8))
    counts = made.counts(10)["alice"]
    assert (counts.in_flight, counts.requests, counts.refused) == (0, {2: 1_000}, {})
    assert (counts.prompt_tokens, counts.output_tokens, counts.cached_tokens) == (10_000, 5_000, 8_000)


def test_requests_by_the_minute_come_in_bursts_of_ten_seconds_and_say_when_to_come_back() -> None:
    made = quotas(requests_per_minute=60)
    for _ in range(10):
        enter(made)
    refusal = refused(made)
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (429, "key_requests_per_minute", 1.0)
    enter(made, 1.0)
    assert refused(made, 1.0).status == 429
    passed = sum(1 for tick in range(600) if _passes(made, 2.0 + tick / 10))
    assert passed in (60, 61)


def _passes(made: Quotas, now: float) -> bool:
    try:
        enter(made, now)
    except Refusal:
        return False
    return True


def test_a_slow_rate_lets_one_request_through() -> None:
    made = quotas(requests_per_minute=2)
    enter(made)
    assert refused(made, 1.0).retry_after_s == 29.0
    enter(made, 30.0)


def test_requests_at_once_are_given_back_however_they_end() -> None:
    """FC-29: a thousand that end at random, some twice."""
    made, chance = quotas(concurrent=3), random.Random(1)
    open_now: list[Permit] = []
    for _ in range(1_000):
        if len(open_now) == 3:
            assert refused(made).code == "key_concurrent"
            ended = open_now.pop(chance.randrange(3))
            for _ in range(chance.choice([1, 2])):
                ended.close(chance.choice([200, 404, 499, 599]), None)
        open_now.append(enter(made))
    for permit in open_now:
        permit.close(200, None)
    assert made.counts(1)["alice"].in_flight == 0


def test_tokens_are_charged_by_our_count_and_settled_by_the_engines() -> None:
    made = quotas(tokens_per_minute=600)  # a burst of 100, 10 a second
    first = enter(made)
    first.charge(prompt(90), 0, 0.0)
    second = enter(made)
    second.charge(prompt(90), 0, 0.0)  # there was something left
    with pytest.raises(Refusal) as caught:
        enter(made).charge(prompt(1), 0, 0.0)
    assert (caught.value.code, caught.value.retry_after_s) == ("key_tokens_per_minute", 9.0)  # 80 below zero
    first.close(200, Usage(90, 100))
    with pytest.raises(Refusal) as caught:
        enter(made).charge(prompt(1), 0, 8.0)
    assert caught.value.retry_after_s == 11.0  # 80 + 100 - 80 since
    second.close(502, None)  # nothing was computed
    enter(made).charge(prompt(1), 0, 10.0)


def test_a_prompt_without_ids_is_charged_by_its_length() -> None:
    made = quotas(tokens_per_minute=600)
    enter(made).charge(NOBODY, 400, 0.0)
    with pytest.raises(Refusal):
        enter(made).charge(NOBODY, 4, 0.0)


def test_models_and_priorities_are_bounded() -> None:
    made = quotas(models=frozenset({"a"}), max_priority=3)
    intent = Intent(Kind.CHAT, {}, model="a", priority=9)
    made.enter(Caller("alice"), intent, 0.0)
    assert intent.priority == 3
    refusal = refused(made, model="b")
    assert (refusal.status, refusal.param, refusal.code) == (403, "model", "key_models")
    assert b"a" not in refusal.message.encode().split()[-1:]
    assert made.counts(1)["alice"].refused == {"models": 1}


def test_each_of_several_processes_gives_its_share() -> None:
    made = quotas(share=0.25, concurrent=8, requests_per_minute=240)
    enter(made)
    enter(made)
    assert refused(made).code == "key_concurrent"
    assert _most_at_once(quotas(share=0.25, requests_per_minute=240)) == 10


def _most_at_once(made: Quotas) -> int:
    return sum(1 for _ in range(100) if _passes(made, 0.0))


def test_new_limits_hold_at_once_and_open_requests_stay_counted() -> None:
    made = quotas(concurrent=1)
    permit = enter(made)
    made.set({"alice": Allowance(concurrent=2), "bob": Allowance()}, 1.0)
    enter(made)
    assert refused(made).code == "key_concurrent"
    made.set({"bob": Allowance()}, 2.0)
    assert made.counts(10)["alice"].in_flight == 2
    permit.close(200, None)
    assert made.counts(10)["alice"].in_flight == 1


def test_a_name_that_was_taken_away_meanwhile_is_unknown() -> None:
    made = quotas()
    made.set({}, 0.0)
    assert refused(made).status == 401


def test_names_beyond_the_bound_are_summed_up() -> None:
    """FC-62."""
    made = Quotas()
    made.set({f"n{number}": Allowance() for number in range(10)}, 0.0)
    for number in range(10):
        enter(made, name=f"n{number}").close(200, Usage(1, 1, 1))
    counts = made.counts(3)
    assert list(counts) == ["n0", "n1", "n2", OTHER]
    assert (counts[OTHER].requests, counts[OTHER].prompt_tokens) == ({2: 7}, 7)
