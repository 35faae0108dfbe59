"""Views fed from a polled queue, over real HTTP: what is lost, cut, stolen or begins anew leaves no block behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from events.poll_source import PollTimes
from events.types import Freshness
from radix import Tier
from tests.events.polled import polled
from tests.fakes.event_queue import BLOCK, FakeQueue, created, moved, removed, stored
from tests.fakes.publisher import until


async def test_what_the_queue_tells_is_believed_from_the_first_event_on() -> None:
    async with polled(told=2) as house:
        await house.until(Freshness.LIVE, 2)
        house.queue.tell(stored(2, count=3))
        await house.until(Freshness.LIVE, 5)
        house.queue.tell(moved(0, 0, 1))
        await until(lambda: (house.depth(), house.depth(tier=Tier.HOST)) == (0, 5))
        house.queue.tell(moved(0, 1, 0))
        await house.until(Freshness.LIVE, 5)
        house.queue.tell(removed(1))
        await house.until(Freshness.LIVE, 1)
        counts = house.stream.counts
        assert (counts.stored, counts.gaps, counts.restarts, counts.events) == (7, 0, 0, 8)
        assert house.stream.connected
        assert house.queue.headers[0]["authorization"] == "Bearer k"
        assert house.queue.headers[0]["accept-encoding"] == "identity"


async def test_a_store_is_a_fact_and_no_copy() -> None:
    """Edge case 17: the first removal of a block that was named twice empties it."""
    async with polled(told=1) as house:
        house.queue.tell(stored(0))
        house.queue.tell(removed(0))
        await until(lambda: house.stream.counts.removed == 1)
        assert house.blocks == 0


async def test_whoever_joins_late_knows_a_part() -> None:
    """FC-02: the ring no longer has the first events; removals of blocks never seen are no-ops."""
    async with polled() as house:
        await house.until(Freshness.LIVE, 0)
        house.queue.skip()
        house.queue.tell(removed(7))
        house.queue.tell(stored(0))
        await house.until(Freshness.PARTIAL, 1)
        assert house.stream.counts.unknown_removes == 1


async def test_an_empty_queue_proves_nothing() -> None:
    async with polled() as house:
        house.queue.steal()
        await house.until(Freshness.PARTIAL, 0)


@pytest.mark.parametrize("theft", [False, True], ids=["overrun", "another reader"])
async def test_a_hole_in_the_numbers_clears_what_was_known(theft: bool, caplog: pytest.LogCaptureFixture) -> None:
    """FC-01, edge cases 7, 38: the ring ran over, or a second gateway read some; the removal in it is not missed."""
    async with polled(told=3) as house:
        await house.until(Freshness.LIVE, 3)
        if theft:
            house.queue.tell(removed(1))
            house.queue.steal()
        else:
            house.queue.skip()
        house.queue.tell(stored(3))
        await until(lambda: house.stream.counts.gaps == 1)
        await house.until(Freshness.PARTIAL, 0)
        house.queue.tell(stored(0, count=2))
        await house.until(Freshness.PARTIAL, 2)
        assert "event gap replica=r rank=0 since=" in caplog.text


async def test_a_new_process_begins_with_an_empty_view() -> None:
    """FC-03: the numbers begin anew, without a word; the new view is whole again."""
    async with polled(told=3) as house:
        await house.until(Freshness.LIVE, 3)
        await house.queue.restart()
        house.queue.tell(created())
        house.queue.tell(stored(0))
        await house.until(Freshness.LIVE, 1)
        assert (house.stream.counts.restarts, house.stream.counts.gaps, house.blocks) == (1, 0, 1)


async def test_a_process_that_restarted_at_the_number_it_had_is_noticed() -> None:
    """FC-03: the same number twice is a new process, as nothing is told twice."""
    async with polled() as house:
        await house.until(Freshness.LIVE, 0)
        await house.queue.restart()
        house.queue.tell(created())
        await until(lambda: house.stream.counts.restarts == 1)
        await house.until(Freshness.LIVE, 0)


async def test_a_restart_whose_first_events_are_gone_is_a_part() -> None:
    """FC-03: event 1 of a process after its event 3 is a restart, and somebody has seen its event 0."""
    async with polled(told=3) as house:
        await house.until(Freshness.LIVE, 3)
        await house.queue.restart()
        house.queue.skip()
        house.queue.tell(stored(0))
        await house.until(Freshness.PARTIAL, 1)
        assert house.stream.counts.restarts == 1


async def test_a_failed_question_is_forgiven_when_the_numbers_go_on() -> None:
    """FC-04: in doubt until the next event; whoever chooses is told."""
    times = PollTimes(busy_s=0.001, idle_s=0.004, failing_s=0.005, max_failing_s=0.02, doubt_s=0.5)
    async with polled(told=2, times=times) as house:
        await house.until(Freshness.LIVE, 2)
        house.queue.status = 503
        await house.until(Freshness.GAP, 2)
        began = time.monotonic()
        assert not house.stream.connected
        house.queue.status = 200
        await house.asked()
        assert (house.stream.freshness, house.depth(), house.stream.connected) == (Freshness.GAP, 2, True)
        house.queue.tell(stored(2))
        await house.until(Freshness.LIVE, 3)
        await until(lambda: time.monotonic() > began + times.doubt_s)
        await house.asked()
        assert (house.stream.freshness, house.depth()) == (Freshness.LIVE, 3)


async def test_a_doubt_that_nothing_resolves_drops_the_view() -> None:
    """The answer that failed may have told of a removal."""
    async with polled(told=2, times=PollTimes(busy_s=0.001, idle_s=0.004, failing_s=0.005, doubt_s=0.05)) as house:
        await house.until(Freshness.LIVE, 2)
        house.queue.status = 500
        await house.until(Freshness.GAP, 2)
        house.queue.status = 200
        await house.until(Freshness.PARTIAL, 0)
        house.queue.tell(stored(0))
        await house.until(Freshness.PARTIAL, 1)


async def test_an_engine_that_is_gone_for_long_has_nothing() -> None:
    """FC-11: cold, until a process answers; that one is believed from its first event."""
    async with polled(told=2, times=PollTimes(busy_s=0.001, idle_s=0.004, failing_s=0.005, doubt_s=0.05)) as house:
        await house.until(Freshness.LIVE, 2)
        await house.queue.down()
        await house.until(Freshness.COLD, 0)
        await house.queue.up()
        house.queue.tell(created())
        house.queue.tell(stored(0))
        await house.until(Freshness.LIVE, 1)


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"[{", b'{"detail": "no"}', b"[" + b" " * 2**20 + b"]"])
async def test_an_answer_that_cannot_be_read_took_its_events_with_it(body: bytes) -> None:
    """FC-07, edge case 35: no JSON, cut, no list, too large; the view goes and the next events build a part."""
    async with polled(told=2) as house:
        await house.until(Freshness.LIVE, 2)
        house.queue.raw = body
        await house.until(Freshness.PARTIAL, 0)
        assert house.stream.counts.decode_errors == 1
        house.queue.tell(stored(0))
        await house.until(Freshness.PARTIAL, 1)


async def test_an_answer_that_broke_off_took_its_events_with_it() -> None:
    async with polled(told=2) as house:
        await house.until(Freshness.LIVE, 2)
        house.queue.tell(removed(1))
        house.queue.cut = True
        await house.until(Freshness.PARTIAL, 0)
        assert house.stream.counts.decode_errors == 1


async def test_a_question_given_up_still_empties_the_queue() -> None:
    """The engine answers it when it can, to nobody; the next number shows it."""
    async with polled(told=1, timeout_s=0.05) as house:
        await house.until(Freshness.LIVE, 1)
        hung = house.queue.hung = asyncio.Event()
        await house.until(Freshness.GAP, 1)
        house.queue.tell(removed(0))
        house.queue.hung = None
        hung.set()
        await until(lambda: house.queue.left == 0)
        house.queue.tell(stored(0))
        await house.until(Freshness.PARTIAL, 1)
        assert house.stream.counts.gaps == 1


async def test_ranks_have_views_of_their_own() -> None:
    """FC-21: one queue tells of all; a hole in one rank's numbers is that rank's."""
    async with polled(ranks=2) as house:
        house.queue.steal()
        house.queue.skip(-1)
        for rank in (0, 1):
            house.queue.tell(created(), rank=rank)
            house.queue.tell(stored(0, count=2), rank=rank)
        for rank in (0, 1):
            await house.until(Freshness.LIVE, 2, rank)
        house.queue.skip(rank=1)
        house.queue.tell(stored(0), rank=1)
        await house.until(Freshness.PARTIAL, 1, 1)
        assert (house.streams[0].freshness, house.depth(0), house.streams[0].counts.gaps) == (Freshness.LIVE, 2, 0)


async def test_events_of_a_rank_nobody_has_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Edge case 37: the rank is new, or the configuration is wrong; the others go on."""
    async with polled(told=1) as house:
        house.queue.tell(created(), rank=3)
        house.queue.tell(stored(1), rank=3)
        house.queue.tell(stored(1), rank=0)
        await house.until(Freshness.LIVE, 2)
        assert caplog.text.count("unknown rank") == 1
        assert "rank=3" in caplog.text


async def test_a_wrong_size_of_blocks_is_put_right_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """FC-17: one warning names the setting and the real value."""
    async with polled(block_tokens=16) as house:
        house.queue.tell(stored(0, count=3))
        await house.until(Freshness.LIVE, 3)
        house.queue.tell(stored(3, count=2))
        await house.until(Freshness.LIVE, 5)
        assert caplog.text.count("block size differs") == 1
        assert f"block_tokens=16 told={BLOCK}" in caplog.text
    async with polled(block_tokens=0, told=2) as house:
        await house.until(Freshness.LIVE, 2)
        assert caplog.text.count("block size differs") == 1


async def test_a_bad_batch_costs_its_rank_the_view_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-04: applying raises once; one line, one count, and the view goes on as a part."""
    async with polled(told=2) as house:
        await house.until(Freshness.LIVE, 2)
        apply = house.index.apply

        def once(*args: object) -> object:
            monkeypatch.setattr(house.index, "apply", apply)
            raise ValueError("once")

        monkeypatch.setattr(house.index, "apply", once)
        house.queue.tell(stored(2))
        await house.until(Freshness.PARTIAL, 0)
        assert house.stream.counts.apply_errors == 1
        assert "once" in caplog.text
        house.queue.tell(stored(0))
        await house.until(Freshness.PARTIAL, 1)


async def test_a_crashed_task_comes_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """FC-04: with its traceback in the log; the view is in doubt until the numbers prove it."""
    async with polled(told=2) as house:
        await house.until(Freshness.LIVE, 2)
        monkeypatch.setattr("events.poll_source.split", lambda answer: 1 / 0)
        await until(lambda: house.stream.counts.crashes >= 1)
        assert (house.stream.freshness, house.stream.connected) == (Freshness.GAP, False)
        monkeypatch.undo()
        house.queue.tell(stored(2))
        await until(lambda: house.stream.freshness in (Freshness.LIVE, Freshness.PARTIAL))
        assert "ZeroDivisionError" in caplog.text


async def test_a_dead_engine_has_nothing_and_whoever_answers_next_is_believed_from_there() -> None:
    """FC-11: `suspect` drops the view at once, and gives up the question that is open."""
    async with polled(told=2, timeout_s=60.0) as house:
        await house.until(Freshness.LIVE, 2)
        house.queue.hung = asyncio.Event()
        await house.asked(1)
        house.stream.suspect()
        assert (house.stream.freshness, house.blocks) == (Freshness.COLD, 0)
        house.queue.hung = None
        house.queue.tell(stored(0))
        await house.until(Freshness.PARTIAL, 1)
        await house.queue.restart()
        house.queue.tell(created())
        house.queue.tell(stored(0))
        await house.until(Freshness.LIVE, 1)
        assert house.stream.counts.restarts == 1


async def test_an_idle_queue_is_asked_at_once_when_a_request_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with polled(told=1) as house:
        await house.until(Freshness.LIVE, 1)
        resting = asyncio.Event()

        async def rest(*_: float) -> None:
            resting.set()
            await house.source._wake.wait()

        monkeypatch.setattr(house.source, "_rest", rest)
        await resting.wait()
        house.queue.tell(stored(1))
        house.stream.note_answered(BLOCK)
        await house.until(Freshness.LIVE, 2)


async def test_requests_without_events_make_it_silent(caplog: pytest.LogCaptureFixture) -> None:
    """FC-05: the engine pushes its events elsewhere, or somebody else reads them all; one warning."""
    times = PollTimes(busy_s=0.001, idle_s=0.004, silence_grace_s=0.0)
    async with polled(told=1, times=times) as house:
        await house.until(Freshness.LIVE, 1)
        for _ in range(3):
            house.stream.note_answered(BLOCK)
        assert house.stream.freshness is Freshness.SILENT
        assert caplog.text.count("events missing replica=r rank=0") == 1
        house.queue.tell(stored(1))
        await house.until(Freshness.LIVE, 2)


async def test_the_method_an_engine_knows_is_found() -> None:
    async with polled(methods=("GET",), told=1) as house:
        await house.until(Freshness.LIVE, 1)


async def test_an_engine_without_a_queue_stays_cold(caplog: pytest.LogCaptureFixture) -> None:
    async with polled(methods=()) as house:
        await until(lambda: "event queue not read" in caplog.text)
        assert (house.stream.freshness, house.blocks) == (Freshness.COLD, 0)


async def test_nobody_is_sent_elsewhere() -> None:
    """FC-58: a redirect is a failure."""
    async with polled() as house, FakeQueue() as elsewhere:
        await house.until(Freshness.LIVE, 0)
        house.queue.location, house.queue.status = elsewhere.url, 307
        await house.until(Freshness.GAP, 0)
        assert elsewhere.asked == 0


async def test_the_last_stream_to_stop_ends_the_asking() -> None:
    """FC-14: no task is left behind, and a stream that comes back begins anew."""
    async with polled(ranks=2, told=1) as house:
        await house.until(Freshness.LIVE, 1)
        before = {task.get_name() for task in asyncio.all_tasks()}
        assert any(name.startswith("poll ") for name in before)
        await house.streams[1].stop()
        house.queue.tell(stored(1))
        await house.until(Freshness.LIVE, 2)
        await house.stream.stop()
        assert not any(task.get_name().startswith("poll ") for task in asyncio.all_tasks())
        assert not house.stream.connected
        asked = house.queue.asked
        house.queue.tell(stored(2))
        house.stream.start()
        await until(lambda: house.stream.freshness is Freshness.PARTIAL)
        assert house.queue.asked > asked
