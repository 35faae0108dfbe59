"""The retry budget."""

from __future__ import annotations

import pytest

from gateway.retries import RetryBudget


def taken(budget: RetryBudget, now: float, tries: int = 1000) -> int:
    return sum(budget.take(now) for _ in range(tries))


def test_a_floor_is_there_without_any_traffic_and_is_kept_for_ten_seconds() -> None:
    budget = RetryBudget(0.2, 5.0, 100.0)
    assert taken(budget, 100.0) == 50
    assert taken(budget, 102.0) == 10
    assert taken(budget, 1000.0) == 50
    assert (budget.taken, budget.denied) == (110, 3000 - 110)


def test_requests_earn_their_share() -> None:
    budget = RetryBudget(0.25, 0.0, 0.0)
    assert taken(budget, 0.0) == 1  # it holds at least one
    for _ in range(4):
        budget.request()
    assert taken(budget, 0.0) == 1


@pytest.mark.parametrize("requests", [1_000, 100_000])
def test_a_fleet_in_trouble_gets_no_more_than_share_and_floor(requests: int) -> None:
    """Every request fails and wants two retries: a storm that the budget holds to a fifth."""
    budget, sent = RetryBudget(0.2, 10.0, 0.0), 0
    for number in range(requests):
        now = number / 1000
        budget.request()
        sent += budget.take(now) + budget.take(now)
    assert sent <= 100 + 0.2 * requests + 10 * requests / 1000 + 1
    assert sent >= 0.2 * requests


def test_what_found_no_replica_is_given_back() -> None:
    budget = RetryBudget(0.2, 0.1, 0.0)
    assert budget.take(0.0)
    budget.give_back()
    assert (budget.take(0.0), budget.take(0.0)) == (True, False)
