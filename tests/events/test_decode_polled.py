"""Polled answers read event by event: windows, partly filled blocks, ranks, and where the numbers break."""

from __future__ import annotations

import json

import pytest

from events.decode.announced import Announced
from events.decode.polled import Part, PolledReader, split
from events.errors import DecodeError
from events.types import Cleared, Removed, Tier
from tests.fakes.event_queue import BLOCK, MAIN, created, moved, removed, stored

Event = dict[str, object]


def event(number: int, data: Event, *, window: int = MAIN, **more: object) -> Event:
    return {"event_id": number, "data": data, "window_size": window, **more}


def answer(*events: Event) -> bytes:
    return json.dumps(events).encode()


def parts(reader: PolledReader, *events: Event) -> list[Part]:
    return reader.parts(split(answer(*events)))


def words(part: Part) -> list[str]:
    return [type(change).__name__ for change in part.message.events]


def test_it_is_told_where_the_numbers_break() -> None:
    reader = PolledReader(BLOCK)
    (first,) = parts(reader, event(0, created()), event(1, stored(0)))
    assert (first.since, first.gaps, first.restarts, first.message.seq, words(first)) == (0, 0, 0, 1, ["Announced"])
    (on,) = parts(reader, event(2, stored(1)))
    assert (on.since, on.gaps, on.restarts) == (None, 0, 0)
    (hole,) = parts(reader, event(3, stored(2)), event(9, stored(0)), event(10, stored(1)))
    assert (hole.since, hole.gaps, hole.restarts) == (9, 1, 0)
    assert words(hole) == ["Announced", "Cleared", "Announced", "Announced"]
    (again,) = parts(reader, event(0, created()), event(1, stored(0)))
    assert (again.since, again.gaps, again.restarts, words(again)) == (0, 0, 1, ["Cleared", "Announced"])
    (both,) = parts(reader, event(5, removed(0)), event(0, created()))
    assert (both.since, both.gaps, both.restarts) == (0, 1, 1)


def test_a_forgotten_rank_begins_anew_and_still_knows_its_numbers() -> None:
    """FC-03: what was given up is not cleared again, and a new process is told from the old one."""
    reader = PolledReader(BLOCK)
    parts(reader, event(0, created()), event(1, stored(0)))
    reader.forget(0)
    reader.forget(7)
    (on,) = parts(reader, event(2, stored(1)))
    assert (on.since, on.gaps, on.restarts, words(on)) == (2, 0, 0, ["Announced"])
    reader.forget(0)
    (new,) = parts(reader, event(0, created()))
    assert (new.since, new.gaps, new.restarts, words(new)) == (0, 0, 1, [])


def test_what_belonged_to_a_smaller_window_goes_when_a_larger_one_appears() -> None:
    """Joined late, the windows are learned from the stores; removals in the smaller one will not be heard any more."""
    reader = PolledReader(BLOCK)
    (small,) = parts(reader, event(5, stored(0), window=1024))
    assert words(small) == ["Announced"]
    (large,) = parts(reader, event(6, stored(0)), event(7, removed(0), window=1024), event(8, stored(1)))
    assert words(large) == ["Cleared", "Announced", "Announced"]


def test_a_partly_filled_block_is_neither_indexed_nor_removed() -> None:
    """Edge case 24: and what is stored behind it is not either; the size is learned from the largest block."""
    reader = PolledReader()
    (part,) = parts(
        reader, event(0, stored(0)), event(1, stored(1, tokens=BLOCK - 1)), event(2, stored(2)), event(3, removed(1, 0))
    )
    stores = [change for change in part.message.events if isinstance(change, Announced)]
    assert [store.hashes for store in stores] == [(1,)]
    assert part.message.events[-1] == Removed((1,), Tier.DEVICE)


@pytest.mark.parametrize("given", [1, 2 * BLOCK, 0])
def test_blocks_that_others_follow_say_how_large_blocks_are(given: int) -> None:
    """FC-17: whatever was configured; a lone block that is smaller than that may be partly filled."""
    reader = PolledReader(given)
    (lone,) = parts(reader, event(0, stored(0)))
    assert (words(lone), reader.block_tokens) == ([] if given > BLOCK else ["Announced"], max(given, BLOCK))
    (run,) = parts(reader, event(1, stored(0, count=3)), event(2, stored(3, tokens=3 * BLOCK)))
    assert reader.block_tokens == BLOCK
    assert isinstance(run.message.events[0], Announced)
    assert (run.message.events[0].hashes, run.message.events[0].block_tokens) == ((1, 2, 3), BLOCK)


def test_a_removal_is_for_the_level_where_the_block_lies() -> None:
    reader = PolledReader(BLOCK)
    levels = [event(0, stored(0, count=4)), event(1, moved(0, 0, 1)), event(2, moved(1, 0, 2)), event(3, moved(1, 2, 0))]
    (part,) = parts(reader, *levels, event(4, stored(3, level=1, parent=3)), event(5, removed(0, 1, 2, 3)))
    assert part.message.events[-3:] == (
        Removed((1,), Tier.HOST),
        Removed((2, 3), Tier.DEVICE),
        Removed((4,), Tier.HOST),
    )


def test_ranks_are_told_apart_and_unbelievable_ones_are_counted() -> None:
    """FC-21: a rank is a small number; whatever else stands there is no rank, and its event no event."""
    reader = PolledReader(BLOCK)
    told = [event(0, stored(0), attention_dp_rank=rank) for rank in (1, 0, -1, 10**9, "x")]
    zero, one = parts(reader, *told)
    assert (zero.rank, zero.message.rank, zero.message.skipped, words(zero)) == (0, 0, 3, ["Announced"])
    assert (one.rank, one.message.rank, one.message.skipped, words(one)) == (1, 1, 0, ["Announced"])
    assert zero.size > one.size > 50
    (unnamed,) = PolledReader(BLOCK).parts(split(answer(event(0, stored(0)))))
    assert (unnamed.rank, unnamed.message.rank) == (0, None)


def test_an_event_that_cannot_be_read_leaves_a_hole_in_the_numbers() -> None:
    """FC-07: what it said is not known, so nothing before it is sure."""
    reader = PolledReader(BLOCK)
    (part,) = reader.parts(split(b"[%s, 5, %s]" % (answer(event(0, stored(0)))[1:-1], answer(event(2, stored(0)))[1:-1])))
    assert (part.message.skipped, part.since, words(part)) == (1, 2, ["Announced", "Cleared", "Announced"])
    assert isinstance(part.message.events[1], Cleared)


@pytest.mark.parametrize("body", [b"", b"5", b"[1", b'{"event": []}', b'{"events": 5}', b"[" * 100_000, b"<html>", b"[\xff]"])
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    """FC-07."""
    with pytest.raises(DecodeError, match=r"^answer is "):
        split(body)
    assert [bytes(raw) for raw in split(b'{"events": [{"event_id": 1}]}')] == [b'{"event_id": 1}']
