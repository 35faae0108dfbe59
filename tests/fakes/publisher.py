"""An engine's event sockets under a test's control: it can withhold batches, forget, blink, restart, and stop answering."""

from __future__ import annotations

import asyncio
import socket

import zmq
import zmq.asyncio

_END = b"\xff" * 8


class FakePublisher:
    """PUB and ROUTER on loopback; `restart` and `blink` come back on the same ports.

    old_replies: replay replies without a topic frame, as older engines send them. connects: it connects to whoever listens.
    """

    def __init__(self, *, topic: str = "kv", replay: bool = True, old_replies: bool = False, connects: bool = False) -> None:
        self.topic = topic.encode()
        self.kept: list[tuple[int, bytes]] = []  # what a replay gives
        self.questions: list[int] = []  # where the replays asked for began
        self.answering = True
        self._old_replies = old_replies
        self._context: zmq.asyncio.Context
        self._pub: zmq.asyncio.Socket
        self._router: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self.endpoint = f"bind+tcp://127.0.0.1:{_free_port()}" if connects else "tcp://127.0.0.1:0"
        self.replay: str | None = "tcp://127.0.0.1:0" if replay else None
        self._open()

    async def __aenter__(self) -> FakePublisher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the process, so to speak."""
        await self._shut()

    async def subscribed(self) -> None:
        """Wait until a subscriber's wish, one not yet waited for, has reached this process."""
        async with asyncio.timeout(20):
            while (await self._pub.recv())[:1] != b"\x01":
                pass

    async def send(self, seq: int, payload: bytes, *, live: bool = True, keep: bool = True) -> None:
        """One batch; live=False loses it on the way, keep=False has it pushed out of the replay buffer."""
        if keep:
            self.kept.append((seq, payload))
        if live:
            await self.send_raw(self.topic, seq.to_bytes(8, "big"), payload)

    async def send_raw(self, *frames: bytes) -> None:
        """Any frames at all."""
        await self._pub.send_multipart(list(frames))

    async def down(self) -> None:
        """Vanish, connections and all; what was kept is forgotten with the process."""
        await self._shut()
        self.kept.clear()

    def up(self) -> None:
        """Come back on the same ports."""
        self._open()

    async def restart(self) -> None:
        """A new process on the same ports."""
        await self.down()
        self.up()

    async def blink(self) -> None:
        """Lose all connections, as a network does, and go on as the same process."""
        await self._shut()
        self._open()

    def _open(self) -> None:
        self._context = zmq.asyncio.Context()
        # XPUB, so that a test can wait for the subscription instead of sleeping.
        if self.endpoint.startswith("bind+"):
            self._pub = self._context.socket(zmq.XPUB)
            self._pub.setsockopt(zmq.LINGER, 0)
            self._pub.connect(self.endpoint.removeprefix("bind+"))
        else:
            self._pub, self.endpoint = self._bound(zmq.XPUB, self.endpoint)
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)  # each subscriber is told of, not only the first
        if self.replay is not None:
            self._router, self.replay = self._bound(zmq.ROUTER, self.replay)
            self._task = asyncio.get_running_loop().create_task(self._answer(self._router))

    def _bound(self, kind: int, endpoint: str) -> tuple[zmq.asyncio.Socket, str]:
        bound = self._context.socket(kind)
        bound.setsockopt(zmq.LINGER, 0)
        bound.bind(endpoint)
        return bound, bound.getsockopt_string(zmq.LAST_ENDPOINT)

    async def _shut(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        # Ending the context waits until the ports are free, which closing a socket does not.
        self._context.destroy(linger=0)

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or frames[1]:
                continue  # without the empty delimiter real engines do not answer either
            start = int.from_bytes(frames[2], "big")
            self.questions.append(start)
            if not self.answering:
                continue
            head = [frames[0], b""]
            for seq, payload in list(self.kept):
                if seq >= start:
                    topic = [] if self._old_replies else [self.topic]
                    await router.send_multipart([*head, *topic, seq.to_bytes(8, "big"), payload])
            await router.send_multipart([*head, *([] if self._old_replies else [b""]), _END, b""])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(condition: object, timeout_s: float = 20.0) -> None:
    """Wait for a condition, given as a callable, to become true; fails with its name when it does not."""
    assert callable(condition)
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not reached within {timeout_s} s") from None
