"""The proof of the cursor: whatever a network and an engine do, a healed view is the engine's own, or says that it is not whole.

Two followers with networks of their own listen to one engine. Messages are lost, repeated, swapped and held up; connections
break; the engine restarts, forgets old batches, stops answering replays or loses part of an answer. Then all is well again and
one more batch comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from events import session as session_module
from events.replay import Frames
from events.types import Freshness
from events.zmq_source import Link
from tests.events.lossy import CHANGES, Engine, Follower, copies_in
from tests.radix.trees import KINDS

pytestmark = pytest.mark.xdist_group("compiled")


class Machine(RuleBasedStateMachine):
    """One engine, two followers."""

    @initialize(replay=st.booleans(), buffer=st.sampled_from([2, 5, 1000]))
    def begin(self, replay: bool, buffer: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.patch = pytest.MonkeyPatch()
        self.engine = Engine(buffer)
        self.has_replay = replay

        def read(context: object, endpoint: str, start: int, *, timeout_s: float) -> AsyncGenerator[list[Frames], None]:
            return self.engine.replay(start)

        self.patch.setattr(session_module, "read_replay", read)
        self.followers = [
            Follower(replay=replay, tree=tree) for tree in KINDS
        ]  # the compiled tree takes many batches in one call
        for follower in self.followers:
            self.loop.run_until_complete(follower.reconnect(Link.UP))

    @rule(change=st.sampled_from(sorted(CHANGES)), n=st.integers(0, 20), lost=st.sets(st.sampled_from([0, 1])))
    def publish(self, change: str, n: int, lost: set[int]) -> None:
        frames = self.engine.publish(change, n)
        for number, follower in enumerate(self.followers):
            if number not in lost:
                follower.pending.append(frames)

    @rule(which=st.sampled_from([0, 1]), count=st.integers(1, 4))
    def deliver(self, which: int, count: int) -> None:
        self.loop.run_until_complete(self.followers[which].deliver(count))

    @rule(which=st.sampled_from([0, 1]), at=st.integers(0, 3))
    def swap(self, which: int, at: int) -> None:
        pending = self.followers[which].pending
        if at + 1 < len(pending):
            pending[at], pending[at + 1] = pending[at + 1], pending[at]

    @rule(which=st.sampled_from([0, 1]), back=st.integers(1, 6), at=st.integers(0, 3))
    def repeat(self, which: int, back: int, at: int) -> None:
        follower = self.followers[which]
        if back <= len(follower.past):
            follower.pending.insert(at, follower.past[-back])

    @rule(which=st.sampled_from([0, 1]))
    def blink(self, which: int) -> None:
        self.loop.run_until_complete(self.followers[which].reconnect(Link.DOWN, Link.UP))

    @rule(which=st.sampled_from([0, 1]))
    def quiet(self, which: int) -> None:
        """Nothing comes for a while."""
        self.loop.run_until_complete(self.followers[which].confirm())

    @rule(count=st.integers(0, 8))
    def restart(self, count: int) -> None:
        """The new process has published some batches before the connections are back."""
        self.engine.start()
        for n in range(count):
            self.engine.publish("store", n)
        for follower in self.followers:
            self.loop.run_until_complete(follower.reconnect(Link.DOWN, Link.UP))

    @rule(
        answers=st.booleans(),
        torn=st.sets(st.integers(0, 12), max_size=2),
        headless=st.sampled_from([0, 0, 0, 1, 3]),
        cut=st.none() | st.integers(1, 6),
    )
    def trouble(self, answers: bool, torn: set[int], headless: int, cut: int | None) -> None:
        self.engine.answers = answers
        self.engine.torn = torn
        self.engine.headless = headless
        self.engine.cut = cut

    @rule(n=st.integers(0, 20))
    def heal(self, n: int) -> None:
        """FC-01, FC-02, FC-03: from now on nothing goes wrong, and one more batch comes."""
        self.engine.answers, self.engine.torn, self.engine.headless, self.engine.cut = True, set(), 0, None
        for follower in self.followers:
            self.loop.run_until_complete(follower.deliver(len(follower.pending)))
        frames = self.engine.publish("store", n)
        for follower in self.followers:
            follower.pending.append(frames)
            self.loop.run_until_complete(follower.deliver(1))
            self.loop.run_until_complete(follower.ask_again())
            self.check(follower)
        whole = [follower.index.digest(follower.holder) for follower in self.followers if follower.freshness is Freshness.LIVE]
        assert len(set(whole)) < 2, "two whole views of one engine differ"

    def check(self, follower: Follower) -> None:
        engine, truth = self.engine, copies_in(self.engine.index, self.engine.holder)
        view = follower.blocks()
        assert follower.freshness in (Freshness.LIVE, Freshness.PARTIAL)
        if follower.freshness is Freshness.LIVE:
            assert follower.index.digest(follower.holder) == engine.index.digest(engine.holder)
        assert all(copies <= truth.get(block, 0) for block, copies in view.items()), "known, but not there"
        if self.has_replay and len(engine.kept) == engine.next:
            assert follower.freshness is Freshness.LIVE, "everything could be had"

    @invariant()
    def nothing_is_lost_by_applying(self) -> None:
        for follower in getattr(self, "followers", ()):
            assert (follower.applier.counts.apply_errors, follower.applier.counts.decode_errors) == (0, 0)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.patch.undo()
            self.loop.close()


TestStream = Machine.TestCase
TestStream.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
