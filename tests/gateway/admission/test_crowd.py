"""Bounds of the waiting line, and who has to go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.crowd import Crowd, Drain, Verdict
from gateway.admission.line import Waiting


def filled(crowd: Crowd, *members: Waiting) -> Crowd:
    for member in members:
        assert crowd.make_room(member) == []
        crowd.join(member)
    return crowd


def test_the_arriving_request_counts_in_requests_and_in_tokens() -> None:
    """FC-52."""
    crowd = filled(Crowd(2, 100), Waiting("", 0, 50))
    assert crowd.make_room(Waiting("", 0, 50)) == []
    too_long = Waiting("", 0, 51)
    assert crowd.make_room(too_long) == [(too_long, Verdict.FULL)]
    filled(crowd, Waiting("", 0, 1))
    third = Waiting("", 0, 1)
    assert crowd.make_room(third) == [(third, Verdict.FULL)]


def test_a_prompt_longer_than_the_line_pushes_nobody_out() -> None:
    crowd = filled(Crowd(10, 100), Waiting("", 0, 50))
    monster = Waiting("", 9, 101)
    assert crowd.make_room(monster) == [(monster, Verdict.FULL)]


def test_a_key_with_less_in_line_pushes_out_the_newest_of_the_one_with_most() -> None:
    hog = [Waiting("hog", 0, 10) for _ in range(4)]
    crowd = filled(Crowd(4, 1000), *hog)
    assert crowd.make_room(Waiting("other", 0, 10)) == [(hog[3], Verdict.OVER_SHARE)]
    again = Waiting("hog", 0, 10)
    assert crowd.make_room(again) == [(again, Verdict.FULL)]  # nobody else waits: the line is full, no more


def test_a_key_over_its_share_is_told_so() -> None:
    members = [Waiting("hog", 0, 10) for _ in range(3)] + [Waiting("other", 0, 10)]
    crowd = filled(Crowd(4, 1000), *members)
    again = Waiting("hog", 0, 10)
    assert crowd.make_room(again) == [(again, Verdict.OVER_SHARE)]


def test_higher_priority_pushes_out_the_lowest_and_newest() -> None:
    low, lower, lower_too = Waiting("", 0, 10), Waiting("", -1, 10), Waiting("", -1, 10)
    crowd = filled(Crowd(3, 1000), low, lower, lower_too)
    assert crowd.make_room(Waiting("", 1, 10)) == [(lower_too, Verdict.FULL)]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(1, 60), st.integers(0, 5)),
        max_size=60,
    )
)
def test_the_line_never_exceeds_its_bounds(arrivals: list[tuple[str, int, int, int]]) -> None:
    """FC-52: whatever comes and goes, and nobody is pushed out for one of lower priority."""
    crowd = Crowd(8, 200)
    members: list[Waiting] = []
    for key, priority, tokens, leaver in arrivals:
        arriving = Waiting(key, priority, tokens)
        out = [waiting for waiting, _ in crowd.make_room(arriving)]
        assert all(waiting.priority <= priority for waiting in out)
        if arriving not in out:
            for waiting in out:
                crowd.leave(waiting)
                members.remove(waiting)
            crowd.join(arriving)
            members.append(arriving)
        else:
            assert out == [arriving]
        if leaver < len(members):
            crowd.leave(members.pop(leaver))
        assert (crowd.requests, crowd.tokens) == (len(members), sum(waiting.tokens for waiting in members))
        assert crowd.requests <= 8
        assert crowd.tokens <= 200


def test_retry_after_follows_how_fast_the_line_drains() -> None:
    drain = Drain()
    assert drain.retry_after_s(0.0, 10, 100, otherwise_s=30.0) == 30.0
    for number in range(11):
        drain.left(number / 2, 100)  # two requests, 200 tokens a second
    assert 4.0 <= drain.retry_after_s(5.0, 10, 100, otherwise_s=30.0) <= 6.0
    assert 9.0 <= drain.retry_after_s(5.0, 1, 2_000, otherwise_s=30.0) <= 11.0
    assert drain.retry_after_s(5.0, 0, 0, otherwise_s=30.0) == 1.0
    assert drain.retry_after_s(5.0, 10_000, 0, otherwise_s=30.0) == 60.0
