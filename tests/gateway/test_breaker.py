"""One breaker: when it opens, for how long, and what closes it."""

from __future__ import annotations

from gateway.breaker import Breaker, State


def opened(breaker: Breaker, now: float = 0.0) -> Breaker:
    while not breaker.failed(now):
        pass
    return breaker


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not() -> None:
    breaker = Breaker(3, 1.0, 60.0)
    assert [breaker.failed(0.0), breaker.failed(0.0), breaker.succeeded(), breaker.failed(0.0), breaker.failed(0.0)] == [
        False
    ] * 5
    assert breaker.failed(0.0)
    assert breaker.state is State.OPEN


def test_a_trial_is_offered_after_its_time_and_a_success_closes_it() -> None:
    breaker = opened(Breaker(1, 2.0, 60.0))
    assert not breaker.look(1.9)
    assert breaker.look(2.0)
    assert (breaker.look(2.1), breaker.state) == (False, State.HALF_OPEN)
    breaker.try_out()
    assert breaker.succeeded()
    assert (breaker.state, breaker.opened) == (State.CLOSED, 0)


def test_each_failed_trial_doubles_the_time_up_to_a_bound() -> None:
    breaker, now, waits = opened(Breaker(1, 1.0, 5.0)), 0.0, []
    for _ in range(5):
        waits.append(breaker.until - now)
        now = breaker.until
        assert breaker.look(now)
        breaker.try_out()
        assert breaker.failed(now)
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_trial_without_a_verdict_is_made_again_and_an_old_answer_closes_nothing() -> None:
    breaker = opened(Breaker(1, 1.0, 5.0))
    assert not breaker.succeeded()
    assert breaker.until == 1.0
    assert breaker.look(1.0)
    assert not breaker.undecided()
    breaker.try_out()
    assert breaker.undecided()
    assert breaker.state is State.HALF_OPEN


def test_failures_while_it_is_open_do_not_lengthen_it() -> None:
    breaker = opened(Breaker(2, 1.0, 60.0))
    assert not any(breaker.failed(0.5) for _ in range(10))
    assert breaker.until == 1.0
