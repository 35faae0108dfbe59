"""The event sockets of one rank: PUB and ROUTER as engines have them, on a network that can lose, delay and tear."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import zmq
import zmq.asyncio

_END = b"\xff" * 8


@dataclass(slots=True)
class Trouble:
    """How likely each fault is, per batch or per question."""

    lost: float = 0.0  # a live batch; a replay has it
    forgotten: float = 0.0  # a live batch that no replay has either
    slow: float = 0.0  # a replay takes up to a second
    unanswered: float = 0.0  # a replay
    torn: float = 0.0  # a replay loses a batch on the way


class RankSockets:
    """Numbered batches out, questions answered. `down` and `up` are the process ending and another one at the same ports."""

    def __init__(self, context: zmq.asyncio.Context, random: Random, *, buffer: int, topic: str) -> None:
        self._context = context
        self._random = random
        self._topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._gone = 0  # batches of this life that a replay lacks
        self._answering: asyncio.Task[None] | None = None
        self._pub: Any = None
        self._router: Any = None
        self.trouble = Trouble()
        self.next = 0
        self.events, self.replay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"

    @property
    def whole(self) -> bool:
        """A replay has every batch of this life."""
        return len(self._kept) == self.next

    async def up(self) -> None:
        """Bind, at the ports of before if there were some."""
        await self._open_pub()
        self._router, self.replay = await self._bound(zmq.ROUTER, self.replay, 0)
        self._answering = asyncio.get_running_loop().create_task(self._answer(), name="replay")

    async def down(self) -> None:
        """Close everything and forget what was published."""
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait([self._answering])
        self._router.close(linger=0)
        self._pub.close(linger=0)
        self._kept.clear()
        self.next = 0

    async def blink(self) -> None:
        """Lose the live connections and go on as the same process."""
        self._pub.close(linger=0)
        await self._open_pub()

    async def send(self, payload: bytes) -> bool:
        """One batch; False when it got lost on the way."""
        chance = self._random.random()
        seq, self.next = self.next, self.next + 1
        if chance >= self.trouble.forgotten:
            self._kept.append((seq, payload))
        if chance < self.trouble.forgotten + self.trouble.lost:
            return False
        await self._pub.send_multipart([self._topic, seq.to_bytes(8, "big"), payload])
        return True

    def keep(self, payload: bytes) -> None:
        """One batch of the past, when nobody listened."""
        self._kept.append((self.next, payload))
        self.next += 1

    async def _open_pub(self) -> None:
        self._pub, self.events = await self._bound(zmq.PUB, self.events, 100_000)

    async def _bound(self, kind: int, endpoint: str, send_hwm: int) -> tuple[Any, str]:
        bound = self._context.socket(kind)
        bound.setsockopt(zmq.LINGER, 0)
        bound.setsockopt(zmq.SNDHWM, send_hwm)
        while True:
            with suppress(zmq.ZMQError):  # the port of a socket just closed is free a moment later
                bound.bind(endpoint)
                return bound, bound.getsockopt_string(zmq.LAST_ENDPOINT)
            await asyncio.sleep(0.01)

    async def _answer(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) == 3 and not frames[1] and self._random.random() >= self.trouble.unanswered:
                await self._replay(frames[0], int.from_bytes(frames[2], "big"))

    async def _replay(self, identity: bytes, start: int) -> None:
        if self._random.random() < self.trouble.slow:
            await asyncio.sleep(self._random.uniform(0.1, 1.0))
        batches: Sequence[tuple[int, bytes]] = [kept for kept in self._kept if kept[0] >= start]
        torn = -1
        if len(batches) > 1 and self._random.random() < self.trouble.torn:
            torn = self._random.randrange(1, len(batches))  # a full send buffer lets the first ones pass
        for place, (seq, payload) in enumerate(batches):
            if place != torn:
                await self._router.send_multipart([identity, b"", self._topic, seq.to_bytes(8, "big"), payload])
        await self._router.send_multipart([identity, b"", b"", _END, b""])
