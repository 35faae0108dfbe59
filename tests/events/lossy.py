"""An engine and its followers without sockets: every message is delivered, lost or repeated by the test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator

from events.apply import Applier
from events.decode import decode
from events.errors import ReplayError
from events.replay import Frames
from events.session import Session
from events.times import StreamTimes
from events.types import Freshness
from events.zmq_source import Arrival, Link
from radix import Index
from tests.fakes.wire import CLEARED, batch, chain, removed
from tests.radix.trees import new_index

BLOCK = 2
TIMES = StreamTimes(settle_s=0.0, retry_replay_s=0.0)
CHANGES = {
    "store": lambda n: [chain(2, BLOCK, first=n % 7)],
    "copy": lambda n: [chain(3, BLOCK)],
    "remove": lambda n: [removed(n % 9 + 1), removed(n % 5 + 1)],
    "clear": lambda n: [CLEARED, chain(1, BLOCK, salt=100 * (n % 3))],
}


class Engine:
    """The publisher, and the truth. kept: what a replay gives."""

    def __init__(self, buffer: int) -> None:
        self.buffer = buffer
        self.clock = itertools.count()
        self.answers = True
        self.torn: set[int] = set()  # numbers that get lost on the way of the next answer
        self.headless = 0  # so many batches get lost at the beginning of the next answer
        self.cut: int | None = None  # so many batches of the next answer come, and no end
        self.start()

    def start(self) -> None:
        """A new process."""
        self.index = Index()
        self.holder = self.index.holder("r", 0)
        self.next = 0
        self.kept: list[Frames] = []

    def publish(self, change: str, n: int) -> Frames:
        frames = Frames(self.next, batch(*CHANGES[change](n), ts=float(next(self.clock))))
        self.next += 1
        self.kept = [*self.kept, frames][-self.buffer :]
        self.index.apply(self.holder, decode(frames.payload, frames.seq))
        return frames

    async def replay(self, start: int) -> AsyncGenerator[list[Frames], None]:
        if not self.answers:
            raise ReplayError("no answer")
        torn, self.torn = self.torn, set()
        cut, self.cut = self.cut, None
        answer = [frames for frames in self.kept if frames.seq >= start]
        # A full send buffer lets the first ones pass.
        left = [frames for frames in answer if frames is answer[0] or frames.seq not in torn][self.headless :]
        self.headless = 0
        for at in range(0, len(left), 2):
            if cut is not None and at >= cut:
                raise ReplayError("no more of it")
            yield left[at : at + 2]


class Follower:
    """A session, its view, and what is on the way to it."""

    def __init__(self, *, replay: bool, tree: str = "plain") -> None:
        self.index = new_index(tree)
        self.holder = self.index.holder("r", 0)
        self.applier = Applier(self.index, self.holder, grace_s=60, clock=lambda: 0.0)
        self.session = Session(self.applier, "tcp://nowhere:1", "tcp://nowhere:2" if replay else None, "", TIMES)
        self.session._context = None  # type: ignore[assignment]
        self.pending: list[Frames] = []
        self.past: list[Frames] = []  # delivered over the present connection

    def discard(self) -> None:
        self.pending.clear()

    async def handle(self, *arrivals: Arrival) -> None:
        await self.session.handle(self, arrivals)

    async def deliver(self, count: int) -> None:
        """So many messages, at one wake-up."""
        arrived, self.pending = self.pending[:count], self.pending[count:]
        self.past += arrived
        await self.handle(*arrived)

    async def reconnect(self, *arrivals: Link) -> None:
        self.pending.clear()
        self.past.clear()
        for arrival in arrivals:
            await self.handle(arrival)

    async def ask_again(self) -> None:
        """What the session's own loop does when a replay is due."""
        if self.session._replay_due is not None and self.session.connected:
            await self.session._bootstrap()

    async def confirm(self) -> None:
        """Nothing came for a while."""
        if self.session._confirm_due is not None:
            self.session._confirm_due = 0.0
            await self.session._ask_what_is_due()

    @property
    def freshness(self) -> Freshness:
        return self.applier.freshness

    def blocks(self) -> dict[object, int]:
        return copies_in(self.index, self.holder)


def copies_in(index: Index, holder: int) -> dict[object, int]:
    return {(block.tier, block.hash, block.path): block.copies for block in index.dump(holder)}
