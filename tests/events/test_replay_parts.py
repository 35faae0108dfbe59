"""Replays are applied while they come in, a few at a time: what is held does not grow with what engines remember."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest
import zmq.asyncio

from events.replay import AT_ONCE, Frames, read_replay
from events.session import Session
from events.types import Freshness
from events.zmq_source import Link
from radix import Applied, Batch, Index
from tests.events.followed import BLOCK as FOLLOWED_BLOCK
from tests.events.followed import TIMES, following, live
from tests.events.lossy import BLOCK, Engine, Follower
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.wire import batch, chain
from tests.radix.trees import KINDS

pytestmark = pytest.mark.xdist_group("compiled")
_END = b"\xff" * 8
Read = Callable[..., AsyncGenerator[list[Frames], None]]


def follow(monkeypatch: pytest.MonkeyPatch, read: Read, tree: str = "plain") -> Follower:
    monkeypatch.setattr("events.session.read_replay", read)
    return Follower(replay=True, tree=tree)


@pytest.fixture
def engine() -> Engine:
    return Engine(1000)


@pytest.fixture
def follower(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Follower:
    def read(context: object, endpoint: str, start: int, *, timeout_s: float) -> AsyncGenerator[list[Frames], None]:
        return engine.replay(start)

    return follow(monkeypatch, read)


class Counted(bytes):
    """A payload that is counted as long as anybody holds it."""

    held = most = 0

    def __init__(self, _: bytes) -> None:
        Counted.held += 1
        Counted.most = max(Counted.most, Counted.held)

    def __del__(self) -> None:
        Counted.held -= 1


@pytest.mark.parametrize("tree", KINDS)
async def test_a_replay_is_applied_while_it_comes_in(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-02: of 4,200 batches no more than a part or two is held; a hole still voids what came before it."""
    Counted.held = Counted.most = 0

    async def read(context: object, endpoint: str, start: int, *, timeout_s: float) -> AsyncGenerator[list[Frames], None]:
        for first in range(0, 4200, 60):
            numbers = [n for n in range(first, first + 60) if n != 3210]
            yield [Frames(n, Counted(batch(chain(1, BLOCK, first=n % 50, salt=n // 50 * 1000)))) for n in numbers]

    follower = follow(monkeypatch, read, tree)
    await follower.reconnect(Link.UP)
    assert Counted.most <= 2 * 60 + 1
    assert (follower.session._since, follower.freshness) == (3211, Freshness.PARTIAL)
    assert follower.session._replay_due is not None
    assert {block.hash // 1000 for block in follower.index.dump(follower.holder)} <= set(range(64, 84))
    assert follower.index.stats().blocks + follower.index.stats().orphans == 4200 - 3211


async def test_what_came_of_a_replay_that_broke_off_is_kept_and_the_rest_asked_for(engine: Engine, follower: Follower) -> None:
    """FC-02: known to be true, not known to be all."""
    for n in range(7):
        engine.publish("store", n)
    engine.cut = 4
    await follower.reconnect(Link.UP)
    assert (follower.applier.counts.batches, follower.freshness) == (4, Freshness.PARTIAL)
    await follower.handle(engine.publish("store", 7))
    assert follower.applier.counts.batches == 8
    await follower.ask_again()
    assert (follower.applier.counts.batches, follower.freshness) == (8, Freshness.LIVE)
    assert follower.index.digest(follower.holder) == engine.index.digest(engine.holder)


async def test_a_gap_whose_replay_breaks_off_costs_the_view(engine: Engine, follower: Follower) -> None:
    """FC-01: what is behind it cannot be applied."""
    await follower.reconnect(Link.UP)
    await follower.handle(engine.publish("store", 0))
    for n in range(1, 8):
        engine.publish("store", n)
    engine.cut = 4
    await follower.handle(engine.publish("clear", 8))
    assert (follower.session._since, follower.freshness) == (8, Freshness.PARTIAL)
    await follower.ask_again()
    assert follower.freshness is Freshness.LIVE


async def test_a_batch_of_a_replay_that_cannot_be_applied_has_it_asked_for_again(
    engine: Engine, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-04: at once, and once."""
    apply, failures = Index.apply, [RuntimeError("bad day")]

    def failing(self: Index, holder: int, change: Batch) -> Applied:
        if self is follower.index and change.seq == 2 and failures:
            raise failures.pop()
        return apply(self, holder, change)

    for n in range(5):
        engine.publish("store", n)
    monkeypatch.setattr(Index, "apply", failing)
    await follower.reconnect(Link.UP)
    assert (follower.freshness, follower.session._since) == (Freshness.PARTIAL, 3)
    await follower.ask_again()
    assert (follower.freshness, follower.applier.counts.apply_errors) == (Freshness.LIVE, 1)


@pytest.mark.parametrize("lost_again", [0, 1, 2])
async def test_a_beginning_that_is_lost_is_asked_for_again(engine: Engine, follower: Follower, lost_again: int) -> None:
    """FC-02: a replay that begins at 3 may have lost 0 to 2; as long as earlier ones come it is worth asking."""
    for n in range(6):
        engine.publish("store", n)
    engine.headless = 3
    await follower.reconnect(Link.UP)
    assert (follower.session._since, follower.freshness) == (3, Freshness.PARTIAL)
    engine.headless = lost_again
    await follower.ask_again()
    assert follower.session._since == lost_again
    await follower.ask_again()
    assert follower.freshness is Freshness.LIVE
    assert follower.applier.counts.replays == (2 if lost_again == 0 else 3)
    assert follower.session._replay_due is None


async def test_a_beginning_the_engine_no_longer_has_is_asked_for_once_more_only(engine: Engine, follower: Follower) -> None:
    """FC-02: also while its buffer moves on."""
    engine.buffer = 4
    for n in range(9):
        engine.publish("store", n)
    await follower.reconnect(Link.UP)
    assert (follower.session._since, follower.applier.counts.replays) == (5, 1)
    await follower.handle(engine.publish("store", 9))
    for _ in range(3):
        await follower.ask_again()
    assert (follower.session._since, follower.applier.counts.replays) == (5, 2)
    assert (follower.freshness, follower.session._replay_due) == (Freshness.PARTIAL, None)


async def test_the_beginning_of_a_gap_that_is_lost_is_asked_for_again(engine: Engine, follower: Follower) -> None:
    """FC-01: the view is dropped, but what the engine still has makes it whole again."""
    await follower.reconnect(Link.UP)
    await follower.handle(engine.publish("store", 0))
    for n in range(1, 4):
        engine.publish("store", n)
    engine.headless = 1
    await follower.handle(engine.publish("store", 4))
    assert follower.freshness is Freshness.PARTIAL
    await follower.ask_again()
    assert follower.freshness is Freshness.LIVE


class Slow:
    """A replay socket that answers one batch to each question, and ends an answer when told to."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self.router = context.socket(zmq.ROUTER)
        self.router.bind("tcp://127.0.0.1:0")
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.asked: list[bytes] = []

    async def serve(self) -> None:
        while True:
            asker, _, _ = await self.router.recv_multipart()
            self.asked.append(asker)
            await self.router.send_multipart([asker, b"", bytes(8), b"payload"])

    async def end(self, asker: bytes) -> None:
        await self.router.send_multipart([asker, b"", _END, b""])


async def test_few_replays_run_at_a_time() -> None:
    """FC-02: a gateway that starts beside 64 ranks does not hold the past of all of them."""
    with zmq.asyncio.Context() as engines, zmq.asyncio.Context() as context:
        slow = Slow(engines)
        serving = asyncio.get_running_loop().create_task(slow.serve())
        running = most = 0

        async def read() -> list[Frames]:
            nonlocal running, most
            batches = []
            async with aclosing(read_replay(context, slow.endpoint, 0, timeout_s=20)) as parts:
                async for part in parts:
                    running += not batches
                    most = max(most, running)
                    batches += part
            running -= 1
            return batches

        try:
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                readers = [group.create_task(read()) for _ in range(3 * AT_ONCE)]
                for number in range(len(readers)):
                    await until(lambda number=number: len(slow.asked) >= min(number + AT_ONCE, len(readers)))  # type: ignore[misc]
                    await slow.end(slow.asked[number])
        finally:
            serving.cancel()
            slow.router.close()
        assert most == AT_ONCE
        assert [reader.result() for reader in readers] == [[Frames(0, b"payload")]] * len(readers)


async def test_a_replay_that_is_left_early_or_cancelled_leaves_its_turn_to_others() -> None:
    """FC-14: also when a stream is stopped in the middle of it."""
    async with FakePublisher() as publisher:
        for n in range(3):
            await publisher.send(n, b"%d" % n, live=False)
        assert publisher.replay is not None
        with zmq.asyncio.Context() as context:
            publisher.answering = False
            for _ in range(2 * AT_ONCE):
                reading = asyncio.get_running_loop().create_task(anext(read_replay(context, publisher.replay, 0, timeout_s=20)))
                before = len(publisher.questions)
                await until(lambda before=before: len(publisher.questions) > before)  # type: ignore[misc]
                reading.cancel()
                await asyncio.wait([reading])
            publisher.answering = True
            for _ in range(2 * AT_ONCE):
                async with asyncio.timeout(20), aclosing(read_replay(context, publisher.replay, 0, timeout_s=20)) as parts:
                    async for part in parts:
                        assert part[0] == Frames(0, b"0")
                        break


async def test_engines_that_do_not_answer_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-01: a dead replay socket costs its own stream the time it waits."""
    monkeypatch.setattr("events.replay._PATIENCE_S", 0.05)
    async with FakePublisher() as dead, FakePublisher() as alive:
        dead.answering = False
        await alive.send(0, b"0", live=False)
        assert dead.replay is not None and alive.replay is not None
        with zmq.asyncio.Context() as context:
            waiting = [
                asyncio.get_running_loop().create_task(anext(read_replay(context, dead.replay, 0, timeout_s=60)))
                for _ in range(2 * AT_ONCE)
            ]
            await until(lambda: len(dead.questions) >= AT_ONCE)
            async with asyncio.timeout(20):
                assert await anext(read_replay(context, alive.replay, 0, timeout_s=20)) == [Frames(0, b"0")]
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)


@pytest.mark.parametrize("published", [0, 2])
async def test_what_was_sent_while_the_subscription_was_on_its_way_is_asked_for(
    engine: Engine, follower: Follower, published: int
) -> None:
    """FC-01: no later batch shows that it is missing."""
    for n in range(published):
        engine.publish("store", n)
    await follower.reconnect(Link.UP)
    engine.publish("store", 5)
    states: list[Freshness] = []
    follower.applier._on_change = lambda _: states.append(follower.freshness)
    await follower.confirm()
    assert follower.index.digest(follower.holder) == engine.index.digest(engine.holder)
    assert (states, follower.applier.counts.gaps, follower.session._since) == ([], 0, 0)
    await follower.confirm()
    assert follower.applier.counts.replays == 2


async def test_it_is_not_asked_for_once_anything_came(engine: Engine, follower: Follower) -> None:
    """FC-01: then the next batch tells."""
    await follower.reconnect(Link.UP)
    await follower.handle(engine.publish("store", 0))
    await follower.confirm()
    assert follower.applier.counts.replays == 1


@pytest.mark.parametrize("answers", [False, True])
async def test_a_question_for_what_was_missed_costs_nothing_when_the_answer_does_not_help(
    engine: Engine, follower: Follower, answers: bool
) -> None:
    """FC-01: a replay socket that died, or forgot what comes next."""
    engine.publish("store", 0)
    await follower.reconnect(Link.UP)
    known = follower.blocks()
    engine.buffer = 1
    engine.publish("clear", 1)
    engine.publish("store", 2)
    engine.answers = answers
    await follower.confirm()
    assert (follower.blocks(), follower.freshness, follower.session._replay_due) == (known, Freshness.LIVE, None)


async def test_a_quiet_stream_asks_for_what_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-01: by itself, over sockets."""
    confirm = Session._confirm

    async def late(self: Session) -> None:
        await publisher.send(0, batch(chain(1, FOLLOWED_BLOCK)), live=False)
        await confirm(self)

    monkeypatch.setattr(Session, "_confirm", late)
    times = replace(TIMES, confirm_s=0.05)
    async with FakePublisher() as publisher, following(publisher, times=times) as followed:
        await live(publisher, followed)
        await until(lambda: followed.depth() == 1)
        assert (publisher.questions, followed.stream.freshness) == ([0, 0], Freshness.LIVE)
