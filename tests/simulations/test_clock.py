"""Simulated time: a total order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulations.clock import Clock, Kind


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Kind), st.integers(0, 3)), unique=True).flatmap(st.permutations))
def test_order_is_time_then_kind_then_number(entries: list[tuple[int, Kind, int]]) -> None:
    """FC-66: the order does not depend on the order of scheduling."""
    clock = Clock()
    for at, kind, number in entries:
        clock.schedule(float(at), kind, number)
    seen = []
    while (happened := clock.advance()) is not None:
        seen.append((int(clock.now_s), *happened[:2]))
    assert seen == sorted(entries)


def test_a_step_ends_before_its_events_show_before_a_request_of_that_instant() -> None:
    clock = Clock()
    for kind in (Kind.ARRIVAL, Kind.EVENTS_VISIBLE, Kind.STEP_END):
        clock.schedule(1.0, kind, 0, stamp=5)
    assert [clock.advance() for _ in range(4)] == [
        (Kind.STEP_END, 0, 5),
        (Kind.EVENTS_VISIBLE, 0, 5),
        (Kind.ARRIVAL, 0, 5),
        None,
    ]
