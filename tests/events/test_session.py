"""What a session does with repeated, torn and late batches, step by step; `test_stream_machine` does it at random."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from events.cursor import Memory
from events.decode import decode
from events.replay import Frames, parse_reply
from events.types import Freshness
from events.zmq_source import Link
from radix import Batch, Index
from tests.events.lossy import Engine, Follower
from tests.events.recorded import lines
from tests.fakes.wire import batch, chain


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine(1000)
    engine.asked = []  # type: ignore[attr-defined]

    async def read(context: object, endpoint: str, start: int, *, timeout_s: float) -> AsyncGenerator[list[Frames], None]:
        engine.asked.append(start)  # type: ignore[attr-defined]
        async for part in engine.replay(start):
            yield part

    monkeypatch.setattr("events.session.read_replay", read)
    return engine


async def joined(engine: Engine, *, replay: bool = True) -> Follower:
    follower = Follower(replay=replay)
    await follower.reconnect(Link.UP)
    return follower


def whole(engine: Engine, follower: Follower) -> bool:
    same = follower.index.digest(follower.holder) == engine.index.digest(engine.holder)
    return same and follower.freshness is Freshness.LIVE


@pytest.mark.parametrize("replay", [True, False])
async def test_a_batch_that_comes_again_much_later_is_no_restart(engine: Engine, replay: bool) -> None:
    """FC-08, edge case 6: a relay repeats; the number goes back, and the content is known."""
    follower = await joined(engine, replay=replay)
    sent = [engine.publish("store", n) for n in range(5)]
    for frames in [*sent, sent[1], sent[0], sent[3]]:
        await follower.handle(frames)
    counts = follower.applier.counts
    assert (counts.batches, counts.duplicates, counts.restarts) == (5, 3, 0)
    assert whole(engine, follower)


async def test_a_number_that_comes_again_with_other_content_is_a_restart(engine: Engine) -> None:
    """FC-03, edge case 5: also when a replay had covered it and no live batch of that number was seen."""
    for n in range(5):
        engine.publish("store", n)
    follower = await joined(engine)
    engine.start()
    engine.publish("copy", 0)
    await follower.handle(engine.publish("copy", 0))
    assert follower.applier.counts.restarts == 1
    assert whole(engine, follower)


async def test_an_answer_with_a_hole_is_asked_for_again(engine: Engine) -> None:
    """FC-01: the send buffer of the replay socket was full."""
    for n in range(6):
        engine.publish("store", n)
    engine.torn = {2}
    follower = await joined(engine)
    assert follower.freshness is Freshness.PARTIAL
    await follower.ask_again()
    assert whole(engine, follower)
    assert engine.asked == [0, 0]  # type: ignore[attr-defined]
    await follower.ask_again()
    assert len(engine.asked) == 2  # type: ignore[attr-defined]


async def test_what_reaches_further_back_than_the_buffer_is_kept(engine: Engine) -> None:
    """FC-02: asking again later must not cost what was learned live."""
    engine.answers = False
    engine.publish("store", 0)
    follower = await joined(engine)
    engine.buffer = 2
    for n in range(1, 8):
        await follower.handle(engine.publish("store", n))
    known = follower.blocks()
    engine.answers = True
    await follower.ask_again()
    assert follower.blocks() == known
    assert follower.freshness is Freshness.PARTIAL


async def test_a_past_that_could_not_be_had_is_still_owed_after_a_gap_was_filled(engine: Engine) -> None:
    """FC-01, FC-02: the part between two batches is not the whole."""
    follower = await joined(engine)
    engine.answers = False
    engine.publish("store", 0)
    await follower.handle(engine.publish("store", 1))
    engine.answers = True
    engine.publish("store", 2)
    await follower.handle(engine.publish("store", 3))
    assert follower.freshness is Freshness.PARTIAL
    await follower.ask_again()
    assert whole(engine, follower)


@pytest.mark.parametrize("published", [0, 2])
async def test_a_reconnect_that_is_not_answered_leaves_nothing_certain(engine: Engine, published: int) -> None:
    """Edge case 10: nothing had been published, but by whom?"""
    follower = await joined(engine)
    assert follower.freshness is Freshness.LIVE
    engine.answers = False
    engine.start()
    for n in range(published):
        engine.publish("store", n)
    await follower.reconnect(Link.DOWN, Link.UP)
    assert follower.freshness is Freshness.PARTIAL
    await follower.handle(engine.publish("store", 5))
    assert (follower.freshness is Freshness.LIVE) == (published == 0)


def test_the_memory_of_batches_is_bounded() -> None:
    memory = Memory(3)
    for seq in range(5):
        memory.add(seq, b"%d" % seq)
    memory.add(3, b"new")
    assert [memory.same(seq, b"%d" % seq) for seq in range(6)] == [None, None, True, False, True, None]
    memory.add(9, b"9")
    assert memory.same(2, b"2") is None


@pytest.mark.parametrize("line", lines("replay_transcripts.jsonl"), ids=lambda line: line["id"])
async def test_replay_dialogues_of_real_publishers_end_in_the_right_view(line: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-01, FC-02, edge cases 4, 7, 8: behind the buffer, inside it, caught up; each batch removes one of six blocks."""
    start = int(line["request_frames_dealer"][1], 16)
    replies = [parse_reply([bytes.fromhex(frame) for frame in frames]) for frames in line["response_frames_dealer"]]
    answers = {0: [], start: [frames for frames in replies if frames is not None]}
    sent = [Frames(int(seq, 16), bytes.fromhex(payload)) for _, seq, payload in line["live_frames"]]

    async def read(context: object, endpoint: str, first: int, *, timeout_s: float) -> AsyncGenerator[list[Frames], None]:
        yield answers[first]

    monkeypatch.setattr("events.session.read_replay", read)
    follower, truth = Follower(replay=True), Index()
    first = Batch(0, 0, 0.0, decode(batch(chain(6, 2), chain(6, 2) | {"group_idx": 1}), 0).events)
    await follower.reconnect(Link.UP)
    holder = truth.holder("r", 0)
    for index in (follower.index, truth):
        index.apply(holder, first)
    for frames in sent:
        truth.apply(holder, decode(frames.payload, frames.seq))
    for frames in sent[:start]:
        await follower.handle(frames)
    await follower.handle(Frames(line["published"], batch(ts=99.0)))
    if line["published"] - start > line["buffer_steps"]:
        assert (follower.blocks(), follower.freshness) == ({}, Freshness.PARTIAL)
    else:
        assert follower.index.digest(holder) == truth.digest(holder)
        assert (follower.freshness, follower.session._cursor.expected) == (Freshness.LIVE, line["published"] + 1)
