"""Replicas that do far worse than their like."""

from __future__ import annotations

import pytest

from gateway.outliers import BUCKETS, OVERHEAD_TOKENS, Bounds, Sums, Window, how_many_more, outliers

BOUNDS = Bounds(least_requests=20, share=0.5, times=10.0)


def served(failures: int = 0, s_per_token: float = 0.001, requests: int = 100) -> Sums:
    tokens = requests * 1000
    return Sums(requests, failures, requests - failures, tokens * s_per_token, tokens)


@pytest.mark.parametrize(
    ("worst", "cause"),
    [
        (served(), None),
        (served(failures=60), "failures"),
        (served(failures=40), None),
        (served(s_per_token=0.02), "slow"),
        (served(s_per_token=0.009), None),
        (served(failures=15, s_per_token=1.0, requests=19), None),
    ],
)
def test_far_worse_is_told_and_a_little_worse_is_not(worst: Sums, cause: str | None) -> None:
    found = outliers({"a": served(), "b": served(failures=2), "worst": worst}, BOUNDS)
    assert found == ({} if cause is None else {"worst": cause})


def test_where_all_do_badly_nobody_is_an_outlier() -> None:
    assert outliers({name: served(failures=70, s_per_token=5.0) for name in "abc"}, BOUNDS) == {}


def test_one_alone_has_nobody_to_be_compared_with() -> None:
    assert outliers({"a": served(failures=100)}, BOUNDS) == {}


def test_a_replica_is_not_slow_for_having_short_prompts() -> None:
    short = Window()
    for _ in range(50):
        short.requests += 1
        short.first_byte(0.05, 1)
    long = Sums(50, 0, 50, 50 * 0.5, 50 * (10_000 + OVERHEAD_TOKENS))
    assert outliers({"short": short.total(), "a": long, "b": long}, BOUNDS) == {}


def test_a_window_forgets() -> None:
    window = Window()
    window.requests = window.failures = 10
    for _ in range(BUCKETS - 1):
        window.turn()
        window.requests += 1
    assert window.total()[:2] == (15, 10)
    window.turn()
    assert window.total()[:2] == (5, 0)


@pytest.mark.parametrize(
    ("replicas", "ejected", "more"), [(1, 0, 0), (2, 0, 1), (2, 1, 0), (3, 0, 1), (10, 0, 3), (10, 3, 0), (10, 5, 0)]
)
def test_at_most_a_share_goes_at_least_one_never_the_last(replicas: int, ejected: int, more: int) -> None:
    assert how_many_more(replicas, ejected, 0.34) == more
