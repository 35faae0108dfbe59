"""An index of what was sent where."""

from __future__ import annotations

import numpy as np
import pytest

from radix.history import History
from radix.index import Index
from radix.match import Int32Array
from radix.namespace import Namespace
from radix.sent import SentPrompts

pytestmark = pytest.mark.xdist_group("compiled")

MODEL = Namespace("m")


def prompt(*tokens: int) -> Int32Array:
    return np.array(tokens, np.int32)


@pytest.fixture
def sent() -> SentPrompts:
    index = SentPrompts(Index(), History(1 << 20, huge_pages=False))
    for replica in ("a", "b"):
        index.set_model(index.holder(replica, 0), "m")
    return index


def test_a_prompt_is_held_by_whom_it_was_given_to(sent: SentPrompts) -> None:
    guess = sent.guess(1, MODEL, prompt(1, 2, 3, 4), 10.0)
    match = sent.match(MODEL, prompt(1, 2, 3, 9))
    assert [match.tokens(0), match.tokens(1), match.tokens(1, tier=3)] == [0, 3, 3]
    assert match.best() == (1, 3)
    assert match.guessed.tolist() == [False, True]
    sent.withdraw(guess)  # the engine may have it all the same
    assert sent.expire(1e9) == 0
    assert sent.match(MODEL, prompt(1, 2, 3, 9)).tokens(1) == 3
    assert sent.match(Namespace("other"), prompt(1, 2, 3, 9)).best() is None


@pytest.mark.parametrize("how", ["forget", "clear", "drop"])
def test_a_holder_that_lost_its_cache_is_forgotten(sent: SentPrompts, how: str) -> None:
    for holder in (0, 1):
        sent.guess(holder, MODEL, prompt(1, 2, 3), 10.0)
    getattr(sent, how)(1)
    match = sent.match(MODEL, prompt(1, 2, 3))
    assert [match.tokens(0), match.tokens(1)] == [3, 0]


def test_holders_are_those_of_the_index_behind() -> None:
    index = Index()
    sent = SentPrompts(index, None)
    assert (sent.holder("a", 0), sent.holder("a", 1), index.holder("a", 1)) == (0, 1, 1)
    sent.guess(0, MODEL, prompt(1, 2), 1.0)  # nothing is remembered yet
    assert sent.match(MODEL, prompt(1, 2)).best() is None
    assert sent.stats().holders == 2
    sent.drop(1)
    assert sent.stats().holders == 1
