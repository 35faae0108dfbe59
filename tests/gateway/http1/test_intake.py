"""Request bodies under their limits."""

from __future__ import annotations

import pytest

from gateway.errors import Refusal
from gateway.http1.intake import BodyBudget, BodyIntake


def test_a_counted_body_ends_where_its_length_says() -> None:
    budget = BodyBudget(100, 1000)
    intake = BodyIntake(5, budget)
    assert intake.feed(b"he") is None
    assert intake.feed(b"lloGET") == b"hello"
    assert intake.rest == b"GET"
    assert budget.held == 5
    intake.release()
    intake.release()
    assert budget.held == 0


def test_a_chunked_body_is_decoded() -> None:
    intake = BodyIntake(None, BodyBudget(100, 1000))
    assert intake.feed(b"5\r\nhel") is None
    assert intake.feed(b"lo\r\n1\r\n!\r\n0\r\n\r\nGET") == b"hello!"
    assert intake.rest == b"GET"


@pytest.mark.parametrize("length", [None, 101])
def test_a_body_above_the_limit_is_refused_before_it_comes(length: int | None) -> None:
    """FC-39: the announced size decides, for chunks as well."""
    budget = BodyBudget(100, 1000)
    with pytest.raises(Refusal) as caught:
        BodyIntake(length, budget).feed(b"65\r\n")
    assert caught.value.status == 413
    assert "101" in caught.value.message
    assert "100" in caught.value.message


def test_all_bodies_together_are_bounded() -> None:
    budget = BodyBudget(100, 150)
    first = BodyIntake(100, budget)
    with pytest.raises(Refusal) as caught:
        BodyIntake(100, budget)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1.0)
    first.release()
    BodyIntake(100, budget)
    assert budget.held == 100
