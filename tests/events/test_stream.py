"""A real stream over loopback sockets: gaps, joining late, bad batches, silence."""

from __future__ import annotations

import logging

import pytest

from events.session import Session
from events.times import StreamTimes
from events.types import Freshness
from radix import Applied, Batch, Index
from tests.events.followed import BLOCK, following, live, send_chain
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.wire import CLEARED, batch, chain, removed, stored


@pytest.mark.parametrize("old_replies", [False, True])
async def test_a_gap_is_replayed_once_and_in_order(old_replies: bool) -> None:
    """FC-01: 5 and 6 are withheld, 7 reveals it; one replay from 5 fills the hole, and the view says so meanwhile."""
    async with FakePublisher(old_replies=old_replies) as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(5))
        await until(followed.has_batches(5))
        await send_chain(publisher, (5, 6), live=False)
        followed.states.clear()
        await send_chain(publisher, (7,))
        await until(followed.has_batches(8))
        await until(followed.is_(Freshness.LIVE))
        counts = followed.stream.counts
        assert (counts.batches, counts.gaps, counts.orphans) == (8, 1, 0)
        assert publisher.questions == [0, 5]
        assert followed.states == [Freshness.GAP, Freshness.LIVE]
        assert followed.depth() == 8


async def test_live_batches_already_replayed_count_once() -> None:
    """FC-09: a batch number applied before never counts a second time, live or replayed."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        first = batch(chain(3, BLOCK))
        for _ in range(5):
            await publisher.send(0, first)
        await until(lambda: followed.stream.counts.duplicates == 4)
        await publisher.send(1, batch(chain(3, BLOCK)))
        await publisher.send(2, batch(removed(3), removed(2), removed(1)))
        await until(followed.has_batches(3))
        assert followed.depth() == 3  # FC-08: two copies were stored, one is gone
        await publisher.send(3, batch(removed(3, 2, 1)))
        await until(followed.has_batches(4))
        assert followed.depth() == followed.blocks == 0
        assert followed.stream.counts.restarts == 0


async def test_joining_late_with_everything_buffered_gives_a_trusted_view() -> None:
    """FC-02, case 1."""
    async with FakePublisher() as publisher:
        await send_chain(publisher, range(41), live=False)
        async with following(publisher) as followed:
            await until(followed.is_(Freshness.LIVE))
            assert followed.depth() == 41


async def test_joining_late_with_a_short_buffer_gives_a_partial_view() -> None:
    """FC-02, case 2: what is known is true, and removals of what is not known do nothing."""
    async with FakePublisher() as publisher:
        for n in range(20, 41):
            await publisher.send(n, batch(chain(1, BLOCK, salt=1000 * n)), live=False)
        async with following(publisher) as followed:
            await live(publisher, followed)
            assert followed.stream.freshness is Freshness.PARTIAL
            assert followed.blocks == 21
            await publisher.send(41, batch(removed(77)))
            await until(followed.has_batches(22))
            assert followed.stream.counts.unknown_removes == 1
            assert followed.blocks == 21


async def test_joining_late_without_replay_starts_empty_and_partial() -> None:
    """FC-02, case 3: live events are applied all the same."""
    async with FakePublisher(replay=False) as publisher, following(publisher) as followed:
        await live(publisher, followed)
        assert followed.stream.freshness is Freshness.PARTIAL
        await publisher.send(41, batch(chain(2, BLOCK)))
        await until(followed.has_batches(1))
        assert followed.stream.freshness is Freshness.PARTIAL
        assert followed.depth() == 2


async def test_a_gap_the_buffer_no_longer_has_drops_the_view() -> None:
    """FC-01, edge cases 4, 7: what cannot be healed is not believed; the stream goes on as partial."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(3))
        await until(followed.has_batches(3))
        publisher.kept.clear()
        await publisher.send(5, batch(chain(2, BLOCK, salt=7)))
        await until(lambda: followed.depth(salt=7) == 2)
        assert followed.blocks == 2
        assert followed.stream.freshness is Freshness.PARTIAL
        await publisher.send(6, batch(chain(1, BLOCK, salt=9000)))
        await until(lambda: followed.depth(salt=9000) == 1)
        assert followed.stream.counts.gaps == 1


@pytest.mark.parametrize("replay", [True, False])
async def test_a_gap_nobody_can_fill_drops_the_view(replay: bool) -> None:
    """FC-01, edge case 9: no replay socket, or one that never answers."""
    async with FakePublisher(replay=replay) as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(3))
        await until(followed.has_batches(3))
        publisher.answering = False
        await publisher.send(5, batch(chain(2, BLOCK, salt=7)))
        await until(lambda: followed.depth(salt=7) == 2)
        assert followed.blocks == 2
        assert followed.stream.freshness is Freshness.PARTIAL
        publisher.answering = True  # asked again later, it makes the view whole
        if replay:
            publisher.kept.insert(3, (3, batch(chain(1, BLOCK, first=3))))
            publisher.kept.insert(4, (4, batch(chain(1, BLOCK, first=4))))
            await until(followed.is_(Freshness.LIVE))
            assert followed.depth() == 5


async def test_a_batch_that_cannot_be_applied_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-04: applying one batch raises once: one line with replica and number, one count, and the view heals."""
    apply, failures = Index.apply, [RuntimeError("bad day")]

    def failing(self: Index, holder: int, change: Batch) -> Applied:
        if change.seq == 2 and failures:
            raise failures.pop()
        return apply(self, holder, change)

    monkeypatch.setattr(Index, "apply", failing)
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(5))
        await until(lambda: followed.depth() == 5)
        await until(followed.is_(Freshness.LIVE))
        assert followed.stream.counts.apply_errors == 1
        assert Freshness.PARTIAL in followed.states
    lines = [record.getMessage() for record in caplog.records if "bad day" in record.getMessage()]
    assert len(lines) == 1
    assert "replica=r rank=0 seq=2" in lines[0]


async def test_a_batch_that_never_applies_degrades_the_view_and_nothing_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-04: asked for again once; then what came after it is the view."""
    apply = Index.apply

    def failing(self: Index, holder: int, change: Batch) -> Applied:
        if change.seq == 2:
            raise RuntimeError("bad for good")
        return apply(self, holder, change)

    monkeypatch.setattr(Index, "apply", failing)
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        for n in range(5):
            await publisher.send(n, batch(chain(1, BLOCK, salt=1000 * n)))
        await until(lambda: followed.stream.counts.apply_errors == 2 and followed.blocks == 2)
        await publisher.send(5, batch(chain(1, BLOCK, salt=9000)))
        await until(lambda: followed.blocks == 3)
        assert followed.stream.freshness is Freshness.PARTIAL
        assert publisher.questions == [0, 0]


async def test_a_dead_task_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-04: with back-off, down meanwhile, no unobserved exception; the view is checked and goes on."""
    handle, failures = Session.handle, [RuntimeError("dead")]

    async def failing(self: Session, *args: object) -> None:
        if self._cursor.last == 1 and failures:
            raise failures.pop()
        await handle(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "handle", failing)
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await send_chain(publisher, range(2))
        await until(followed.has_batches(2))
        await send_chain(publisher, (2,))
        await until(lambda: followed.stream.counts.crashes == 1)
        assert not followed.stream.connected
        assert followed.stream.freshness is Freshness.GAP
        await until(followed.is_(Freshness.LIVE))
        assert followed.depth() == 3


async def test_broken_messages_are_counted_and_the_stream_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """FC-07, edge cases 34, 35: random bytes, unknown tags and fields, two frames instead of three."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        strange = {"type": "BlockMoved", "to": 3}
        await publisher.send(0, batch(chain(1, BLOCK)))
        for _ in range(3):
            await publisher.send_raw(b"kv", b"\0" * 8)
        await publisher.send(1, batch(chain(1, BLOCK, first=1) | {"new_field": [1]}, strange, ["BlockHeld", 1], 7, removed(2)))
        await until(followed.has_batches(2))
        assert followed.depth() == 1
        await publisher.send(2, b"\xc1 no msgpack")
        await publisher.send(3, batch(chain(2, BLOCK, salt=7)))
        await until(followed.has_batches(3))
        counts = followed.stream.counts
        assert (counts.broken_messages, counts.decode_errors, counts.skipped, counts.crashes) == (3, 1, 3, 0)
        assert followed.blocks == 2  # what the unreadable batch said is lost, so the earlier blocks cannot be believed
        assert followed.stream.freshness is Freshness.PARTIAL
    assert sum("broken" in record.getMessage() for record in caplog.records) == 1


async def test_only_the_exact_topic_is_heard() -> None:
    """FC-07, edge case 36: ZMQ passes every topic that begins with ours."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await publisher.send_raw(b"kv2", b"\0" * 8, batch(chain(9, BLOCK, salt=7)))
        await publisher.send(0, batch(chain(1, BLOCK)))
        await until(lambda: followed.depth() == 1)
        assert (followed.blocks, followed.stream.counts.batches, followed.stream.counts.restarts) == (1, 1, 0)


async def test_a_clear_in_the_stream_takes_all_credit() -> None:
    """FC-11, case 1, edge case 20: the next lookup gives nothing; what follows in the same batch counts."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        await publisher.send(0, batch(chain(4, BLOCK)))
        await publisher.send(1, batch(CLEARED, CLEARED, stored([77], None, [5] * BLOCK, BLOCK)))
        await until(followed.has_batches(2))
        assert (followed.blocks, followed.depth()) == (1, 0)


async def test_a_batch_of_another_or_no_rank_belongs_to_its_socket() -> None:
    """FC-21, edge cases 2, 3: the socket decides; a rank that disagrees is counted."""
    async with FakePublisher() as publisher, following(publisher) as followed:
        await live(publisher, followed)
        for n, rank in enumerate((0, None, 3)):
            await publisher.send(n, batch(chain(1, BLOCK, first=n), rank=rank))
        await until(followed.has_batches(3))
        assert followed.depth() == 3
        assert followed.stream.counts.rank_mismatches == 1


async def test_a_silent_engine_is_told_apart_from_an_idle_one(caplog: pytest.LogCaptureFixture) -> None:
    """FC-05, edge case 11: answers that owe blocks and no events: one warning and SILENT; the first event ends it."""
    now = [1000.0]
    times = StreamTimes(settle_s=0.02, silence_grace_s=60)
    async with FakePublisher() as publisher, following(publisher, times=times, clock=lambda: now[0]) as followed:
        await live(publisher, followed)
        now[0] += 3600  # idle for an hour: nothing is owed
        followed.stream.note_answered(3)  # not a block
        now[0] += 61
        followed.stream.note_answered(100)
        assert followed.stream.freshness is Freshness.LIVE
        for _ in range(5):
            now[0] += 30
            followed.stream.note_answered(100)
        assert followed.stream.freshness is Freshness.SILENT
        assert followed.states[-1] is Freshness.SILENT
        await publisher.send(0, batch(chain(1, BLOCK)))
        await until(followed.is_(Freshness.LIVE))
    assert sum("events missing replica=r" in record.getMessage() for record in caplog.records) == 1


async def test_stop_is_final_and_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """FC-14: after `stop` no task and no socket is left, whatever the stream was doing."""
    caplog.set_level(logging.INFO)
    async with FakePublisher() as publisher:
        publisher.answering = False
        async with following(publisher) as followed:
            await until(lambda: publisher.questions == [0])  # in the middle of a replay
        assert not followed.stream.connected
        await followed.stream.stop()
    async with FakePublisher() as publisher, following(publisher) as followed:
        await publisher.down()
        followed.stream.suspect()
    assert not caplog.records or all("crashed" not in record.getMessage() for record in caplog.records)
