"""Request bodies under their limits."""

from __future__ import annotations

import sys

import pytest

from gateway.errors import Refusal
from gateway.http1.intake import BodyBudget, BodyIntake


def test_a_counted_body_ends_where_its_length_says() -> None:
    budget = BodyBudget(1000)
    intake = BodyIntake(5, 100, budget)
    assert budget.held == 0
    assert intake.feed(b"he") is None
    assert budget.held == 2
    assert intake.feed(b"lloGET") == b"hello"
    assert intake.rest == b"GET"
    assert budget.held == 5
    intake.release()
    intake.release()
    assert budget.held == 0


def test_a_chunked_body_is_decoded() -> None:
    intake = BodyIntake(None, 100, BodyBudget(1000))
    assert intake.feed(b"5\r\nhel") is None
    assert intake.feed(b"lo\r\n1\r\n!\r\n0\r\n\r\nGET") == b"hello!"
    assert intake.rest == b"GET"


@pytest.mark.parametrize("length", [None, 101])
def test_a_body_above_the_limit_is_refused_before_it_comes(length: int | None) -> None:
    """FC-39: the announced size decides, for chunks as well."""
    budget = BodyBudget(1000)
    with pytest.raises(Refusal) as caught:
        BodyIntake(length, 100, budget).feed(b"65\r\n")
    assert caught.value.status == 413
    assert "101" in caught.value.message
    assert "100" in caught.value.message


def test_all_bodies_together_are_bounded_by_what_came() -> None:
    budget = BodyBudget(150)
    first, second = BodyIntake(100, 100, budget), BodyIntake(100, 100, budget)
    assert first.feed(b"x" * 90) is None
    assert second.feed(b"x" * 60) is None
    for act in (lambda: second.feed(b"x"), lambda: BodyIntake(1, 100, budget)):
        with pytest.raises(Refusal) as caught:
            act()
        assert (caught.value.status, caught.value.retry_after_s) == (503, 1.0)
    second.release()
    assert first.feed(b"x" * 10) == b"x" * 100
    assert budget.held == 100


def test_a_single_body_may_be_larger_than_the_sum() -> None:
    intake = BodyIntake(100, 100, BodyBudget(50))
    assert intake.feed(b"x" * 60) is None
    assert intake.feed(b"x" * 40) == b"x" * 100


def test_small_pieces_are_held_in_little_more_than_their_bytes() -> None:
    for length, step in ((20_000, b"x"), (None, b"1\r\nx\r\n")):
        intake = BodyIntake(length, 100_000, BodyBudget(1_000_000))
        for _ in range(10_000):
            assert intake.feed(step) is None
        assert sum(map(sys.getsizeof, intake._pieces)) < 13_000
        assert len(intake._pieces) == 1


@pytest.mark.parametrize("sizes", [[1] * 5, [20_000, 1, 1, 30_000, 1], [1, 20_000]])
def test_pieces_of_all_sizes_give_the_body(sizes: list[int]) -> None:
    intake = BodyIntake(sum(sizes), 100_000, BodyBudget(1_000_000))
    pieces = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    assert [intake.feed(piece) for piece in pieces] == [None] * (len(pieces) - 1) + [b"".join(pieces)]


def test_chunks_have_to_be_worth_their_framing() -> None:
    intake = BodyIntake(None, 10_000_000, BodyBudget(100_000_000))
    for _ in range(1000):
        assert intake.feed(b"40\r\n" + b"x" * 64 + b"\r\n") is None  # as many as one likes of these
    for _ in range(14):
        _feed_all(intake, b"2\r\nxx\r\n" * 1000)
    with pytest.raises(Refusal) as caught:
        _feed_all(intake, b"2\r\nxx\r\n" * 1000)
    assert (caught.value.status, caught.value.close) == (400, True)


def _feed_all(intake: BodyIntake, data: bytes) -> None:
    intake.feed(data)
    while intake.more:
        intake.feed(b"")


def test_one_call_reads_a_bounded_number_of_chunks() -> None:
    intake = BodyIntake(None, 100_000, BodyBudget(1_000_000))
    body = intake.feed(b"1\r\nx\r\n" * 5000 + b"0\r\n\r\nGET")
    calls = 1
    while body is None:
        assert intake.more
        body = intake.feed(b"")
        calls += 1
    assert (body, intake.rest, calls) == (b"x" * 5000, b"GET", 10)
