"""The order of the waiting line."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.line import QUANTUM_TOKENS, Line, Waiting


def drained(line: Line) -> list[Waiting]:
    return [line.pop() for _ in range(len(line))]


def test_higher_priorities_go_first_and_equals_in_the_order_of_arrival() -> None:
    line = Line()
    given_ = [Waiting("", priority, 10) for priority in (0, 5, 0, -1, 5)]
    for waiting in given_:
        line.push(waiting)
    assert [given_.index(waiting) for waiting in drained(line)] == [1, 4, 0, 2, 3]


def test_keys_share_by_tokens_not_by_requests() -> None:
    """One key has prompts ten times as long: while both wait, both get the same tokens."""
    line = Line()
    for _ in range(200):
        line.push(Waiting("short", 0, 1_000))
        line.push(Waiting("long", 0, 10_000))
    got: Counter[str] = Counter()
    for waiting in drained(line)[:110]:
        got[waiting.key] += waiting.tokens
    assert abs(got["short"] - got["long"]) <= 10_000 + QUANTUM_TOKENS


def test_a_key_with_many_requests_does_not_hold_up_one_with_few() -> None:
    line = Line()
    for _ in range(500):
        line.push(Waiting("many", 0, QUANTUM_TOKENS))
    line.push(Waiting("few", 0, 100))
    assert "few" in [line.pop().key for _ in range(3)]


def test_who_leaves_is_not_called() -> None:
    line = Line()
    first, second = Waiting("a", 0, 1), Waiting("a", 0, 1)
    line.push(first)
    line.push(second)
    line.remove(first)
    assert (drained(line), len(line)) == ([second], 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(1, 100_000), st.booleans()), max_size=40))
def test_all_who_stay_are_called_once_by_priority(arrivals: list[tuple[str, int, int, bool]]) -> None:
    line, stay = Line(), []
    for key, priority, tokens, leaves in arrivals:
        waiting = Waiting(key, priority, tokens)
        line.push(waiting)
        if leaves:
            line.remove(waiting)
        else:
            stay.append(waiting)
    called = drained(line)
    assert set(map(id, called)) == set(map(id, stay))
    assert len(called) == len(stay)
    assert [waiting.priority for waiting in called] == sorted((waiting.priority for waiting in stay), reverse=True)
    for key in "abc":
        for priority in (-1, 0, 1):
            mine = [waiting for waiting in called if (waiting.key, waiting.priority) == (key, priority)]
            assert mine == [waiting for waiting in stay if (waiting.key, waiting.priority) == (key, priority)]
