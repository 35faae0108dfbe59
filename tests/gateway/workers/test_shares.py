"""A worker's part of limits that are meant for all."""

from __future__ import annotations

from gateway.config import Admission, Resilience
from gateway.workers.shares import share_of_line, share_of_retries


def test_the_line_is_divided_and_what_a_rank_takes_is_not() -> None:
    """FC-52: all workers together hold what one process would, and a rank's load is told among them."""
    part = share_of_line(Admission(waiting_requests=10, waiting_tokens=1000), 4)
    assert (part.waiting_requests, part.waiting_tokens) == (3, 250)
    assert (part.rank_requests, part.rank_tokens) == (Admission().rank_requests, Admission().rank_tokens)
    assert share_of_line(Admission(), 1) == Admission()


def test_the_floor_of_retries_is_divided_and_their_share_is_not() -> None:
    part = share_of_retries(Resilience(), 4).retries
    assert (part.floor_per_s, part.share) == (2.5, 0.2)
