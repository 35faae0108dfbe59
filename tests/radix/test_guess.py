"""Guesses: what our own choices will cause, beside what is known."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radix import Batch, Index, Namespace, Removed, Stored
from radix.guess import Guesses
from radix.match import TIERS
from tests.radix.shape import assert_empty

BASE = Namespace("m")
PROMPT = np.arange(40, dtype=np.int32)


@pytest.fixture
def index() -> Index:
    return Index()


def know(index: Index, holder: int, blocks: int, block_tokens: int = 4) -> None:
    """The holder's events say that it has this much of the prompt."""
    tokens = PROMPT[: blocks * block_tokens]
    index.apply(holder, Batch(0, 0, 0.0, (Stored(tuple(range(1, blocks + 1)), None, tokens, block_tokens),)))


def test_a_sibling_follows_the_first_request_before_any_event(index: Index) -> None:
    """FC-28: the guess counts at once, is marked as one, and ends by itself."""
    holder = index.holder("a", 0, model="m")
    index.guess(holder, BASE, PROMPT, expires_at=10.0)
    sibling = np.concatenate([PROMPT[:30], np.array([999], np.int32)])
    match = index.match(BASE, sibling, now=9.0)
    assert match.depth[holder].tolist() == [30] * 4
    assert match.guessed[holder]
    assert index.match(BASE, sibling, now=10.0).tokens(holder) == 0
    assert_empty(index)


def test_a_failed_request_takes_its_guess_back(index: Index) -> None:
    """FC-28: once; again, or after its end, nothing happens. A second guess on the same prompt stays."""
    holder = index.holder("a", 0, model="m")
    first, second = (index.guess(holder, BASE, PROMPT, expires_at=10.0) for _ in range(2))
    index.withdraw(first)
    index.withdraw(first)
    assert index.match(BASE, PROMPT).tokens(holder) == 40
    index.withdraw(second)
    assert index.match(BASE, PROMPT).tokens(holder) == 0
    assert_empty(index)


def test_events_replace_a_guess_and_are_not_added_to_it(index: Index) -> None:
    """FC-28: part confirmed: the longer of both; all confirmed: the guess is gone, so a removal is believed at once."""
    holder = index.holder("a", 0, model="m")
    index.guess(holder, BASE, PROMPT[:38], expires_at=1e9)
    know(index, holder, 5)
    match = index.match(BASE, PROMPT)
    assert (match.tokens(holder), match.guessed[holder]) == (36, True)  # whole blocks, now that their size is known
    know(index, holder, 9)
    match = index.match(BASE, PROMPT)
    assert (match.tokens(holder), match.guessed[holder]) == (36, False)
    assert index.stats().guesses == 0
    index.apply(holder, Batch(0, 1, 0.0, (Removed(tuple(range(9, 0, -1))), Removed(tuple(range(5, 0, -1))))))
    assert index.match(BASE, PROMPT).tokens(holder) == 0


def test_a_guess_is_confirmed_only_by_its_own_prompt(index: Index) -> None:
    """FC-28: another prompt of the same length, another holder, another namespace or model leave it alone."""
    a, b = index.holder("a", 0, model="m"), index.holder("b", 0, model="m")
    index.guess(a, BASE, PROMPT + 1, expires_at=1e9)
    index.guess(a, Namespace("m", "lora"), PROMPT, expires_at=1e9)
    index.guess(a, Namespace("other"), PROMPT, expires_at=1e9)
    index.guess(b, BASE, PROMPT, expires_at=1e9)
    know(index, a, 10)
    assert index.stats().guesses == 4
    index.guess(a, BASE, PROMPT, expires_at=1e9)
    know(index, a, 10)
    assert index.stats().guesses == 4


def test_guesses_stay_in_their_namespace_and_holder(index: Index) -> None:
    """FC-18: no guess crosses an adapter, a salt or a model."""
    a, b = index.holder("a", 0, model="m"), index.holder("b", 0, model="m")
    index.guess(a, Namespace("m", "x"), PROMPT, expires_at=1e9)
    for namespace in (BASE, Namespace("m", "y"), Namespace("m", None, "x"), Namespace("n", "x")):
        assert not index.match(namespace, PROMPT).guessed.any()
    assert index.match(Namespace("m", "x"), PROMPT).depth[:, 0].tolist() == [40, 0]
    index.drop(a)
    assert index.stats().guesses == 0
    assert index.holder("c", 0) == a
    assert not index.match(Namespace("m", "x"), PROMPT).guessed.any()
    assert b == 1


def test_an_empty_prompt_may_be_guessed(index: Index) -> None:
    holder = index.holder("a", 0, model="m")
    first = index.guess(holder, BASE, PROMPT[:0], expires_at=1.0)
    index.guess(holder, BASE, PROMPT, expires_at=2.0)
    index.withdraw(first)
    assert index.match(BASE, PROMPT).tokens(holder) == 40
    assert index.expire(2.0) == 1
    assert_empty(index)


def test_guesses_are_bounded() -> None:
    """FC-28: the one that would end first is given up."""
    guesses = Guesses(limit=3)
    numbers = [guesses.add(0, BASE, PROMPT[:n], float(n)) for n in (9, 5, 7, 8)]
    assert len(guesses) == 3
    assert not guesses.withdraw(numbers[1])


@pytest.mark.parametrize("holders", [3, 70])
@pytest.mark.parametrize("seed", range(4))
def test_random_guesses_equal_a_list_of_prompts(seed: int, holders: int) -> None:
    """FC-28: add, withdraw and expire in any order; nothing is left at the end. Few holders in a loop, many at once."""
    rnd = random.Random(seed)
    guesses = Guesses()
    live: dict[int, tuple[int, list[int], float]] = {}
    sizes = np.array([rnd.choice([0, 1, 3]) for _ in range(holders)], np.int32)
    known = np.array([[rnd.randrange(4)] * TIERS for _ in range(holders)], np.int32)
    for step in range(400):
        draw = rnd.random()
        if draw < 0.5 or len(live) < 2 * holders:
            holder, prompt = rnd.randrange(holders), [rnd.choice([1, 2]) for _ in range(rnd.randrange(8))]
            ends = step + rnd.randrange(30)
            live[guesses.add(holder, BASE, np.array(prompt, np.int32), ends)] = (holder, prompt, ends)
        elif draw < 0.7 and live:
            number = rnd.choice(list(live))
            del live[number]
            assert guesses.withdraw(number)
        elif draw < 0.75:
            guesses.expire(step)
            live = {number: guess for number, guess in live.items() if guess[2] > step}
        query = [rnd.choice([1, 2]) for _ in range(8)]
        want: dict[int, int] = dict.fromkeys(range(holders), 0)
        for holder, prompt, _ in live.values():
            same = next((i for i, (x, y) in enumerate(zip(prompt, query, strict=False)) if x != y), min(len(prompt), len(query)))
            want[holder] = max(want[holder], same)
        credit = [tokens - tokens % (sizes[holder] or 1) for holder, tokens in want.items()]
        depth, guessed = known.copy(), np.zeros(holders, np.bool_)
        guesses.credit(BASE, np.array(query, np.int32).tobytes(), sizes, depth, guessed)
        assert depth[:, 0].tolist() == [max(pair) for pair in zip(credit, known[:, 0].tolist(), strict=True)]
        assert (depth == depth[:, :1]).all()
        assert guessed.tolist() == (np.array(credit) > known[:, 0]).tolist()
        assert sorted(guess.number for holder in range(holders) for guess in guesses.of(holder)) == sorted(live)
    for number in list(live):
        guesses.withdraw(number)
    assert not guesses._roots and not guesses._by_holder and not len(guesses)
