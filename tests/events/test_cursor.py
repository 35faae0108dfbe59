"""What batch numbers mean, without sockets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from events.cursor import DUPLICATE, NEXT, RESTART, Cursor, Gap


def test_numbers_in_order_are_next() -> None:
    cursor = Cursor(0)
    assert [cursor.step(seq) for seq in range(3)] == [NEXT] * 3
    assert cursor.last == 2


def test_a_new_cursor_takes_what_comes_first() -> None:
    """FC-02: joining at 40 without a replay."""
    cursor = Cursor()
    assert cursor.last is None
    assert cursor.step(40) == NEXT
    assert cursor.step(42) == Gap(41, 41)


def test_a_gap_names_what_is_missing_and_stays_until_filled() -> None:
    """FC-01: 5 and 6 are missing before 7."""
    cursor = Cursor(5)
    assert cursor.step(7) == Gap(5, 6)
    assert [cursor.replayed(seq) for seq in (5, 6, 7)] == [NEXT] * 3
    assert cursor.step(7) == DUPLICATE
    assert cursor.step(8) == NEXT


def test_the_same_live_number_again_is_a_duplicate() -> None:
    """FC-08: five times the same number."""
    cursor = Cursor(0)
    assert [cursor.step(0) for _ in range(5)] == [NEXT] + [DUPLICATE] * 4


def test_live_numbers_a_replay_has_covered_are_duplicates() -> None:
    """FC-09: they arrived while the replay ran."""
    cursor = Cursor(0)
    for seq in range(10):
        cursor.replayed(seq)
    assert [cursor.step(seq) for seq in (7, 8, 9, 10)] == [DUPLICATE] * 3 + [NEXT]


def test_a_replayed_number_never_counts_twice() -> None:
    """FC-09: batch 11 is replayed after 13 was applied."""
    cursor = Cursor(10)
    assert [cursor.step(seq) for seq in (10, 11, 12, 13)] == [NEXT] * 4
    assert cursor.replayed(11) == DUPLICATE
    assert cursor.step(14) == NEXT


def test_going_back_below_the_newest_live_number_is_a_restart() -> None:
    """FC-03: 0-100, then 0; the number counts for the new process."""
    cursor = Cursor(0)
    for seq in range(101):
        cursor.step(seq)
    assert cursor.step(0) == RESTART
    assert cursor.expected == 0
    assert cursor.step(0) == NEXT


def test_a_hole_inside_a_replay_is_seen() -> None:
    cursor = Cursor(3)
    assert cursor.replayed(3) == NEXT
    assert cursor.replayed(6) == Gap(4, 5)


@given(st.lists(st.integers(0, 20), max_size=60))
def test_within_one_life_no_number_is_next_twice(numbers: list[int]) -> None:
    """FC-09: whatever comes, between restarts applied numbers only rise, by one."""
    cursor = Cursor(0)
    applied: list[int] = []
    for seq in numbers:
        step = cursor.step(seq)
        if step == RESTART:
            applied = []
            step = cursor.step(seq)
        if step == NEXT:
            applied.append(seq)
        assert applied == list(range(len(applied)))
