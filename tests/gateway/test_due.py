"""Things due later: in order, once, and only when their time has come."""

from __future__ import annotations

from gateway.due import DueList
from gateway.histogram import Histogram


def test_runs_what_is_due_in_order_and_only_once() -> None:
    due, seen = DueList(), list[str]()
    for when, name in ((3.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "late")):
        due.add(when, lambda name=name: seen.append(name))  # type: ignore[misc]
    due.run(0.5)
    assert seen == []
    due.run(3.0)
    due.run(3.0)
    assert seen == ["a", "b", "c"]
    assert len(due) == 1


def test_an_action_may_add_another_that_is_due_at_once() -> None:
    due, seen = DueList(), list[str]()
    due.add(1.0, lambda: due.add(1.0, lambda: seen.append("inner")))
    due.run(1.0)
    assert seen == ["inner"]


def test_histogram_buckets_are_cumulative_and_closed_above() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("0.1", 2.0), ("1.0", 3.0), ("+Inf", 4.0)]
    assert histogram.total == 7.65
