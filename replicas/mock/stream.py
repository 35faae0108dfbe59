"""The event stream of one rank: numbered batches on a PUB socket, the recent ones again on a ROUTER, and what can go wrong there.

All streams of a process share one ZMQ context and the event loop's thread, so that hundreds of engines cost sockets and no
threads. A PUB socket never waits: who is slow loses batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from events.types import Event
from replicas.errors import ReplicaError
from replicas.mock.faults import Faults
from replicas.mock.wire import Encode

_SEND_HWM = 100_000  # batches kept per slow subscriber before it loses some, as engines do
_END = b"\xff" * 8
_REBIND_S = 5.0  # how long a port may take to be free again after its socket was closed


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank's sockets are bound. events, replay: tcp endpoints with the port they got; replay None without one."""

    events: str
    replay: str | None


class Sockets:
    """The two sockets of one rank, opened and closed any number of times at one place."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], place: Place, buffer_steps: int) -> None:
        """Binds at once; raises ZMQError. place: port 0 takes any, and keeps it."""
        self._context = context
        self._replay_hwm = 2 * (buffer_steps + 1)  # a replay must fit whole: a ROUTER drops what does not
        self.place = place
        self.router: zmq.Socket[bytes] | None = None
        self.pub: zmq.Socket[bytes] | None = None
        self.open()

    def open(self) -> None:
        """Bind both; raises ZMQError, and then none is open."""
        try:
            self.pub, events = self._bound(zmq.PUB, self.place.events, _SEND_HWM)
            replay = None
            if self.place.replay is not None:
                self.router, replay = self._bound(zmq.ROUTER, self.place.replay, self._replay_hwm)
        except zmq.ZMQError:
            self.close()
            raise
        self.place = Place(events, replay)

    def close(self) -> None:
        """Close both; queued messages are gone."""
        for each in (self.pub, self.router):
            if each is not None:
                each.close(linger=0)
        self.pub = self.router = None

    def _bound(self, kind: int, endpoint: str, send_hwm: int) -> tuple[zmq.Socket[bytes], str]:
        bound = self._context.socket(kind)
        try:
            bound.setsockopt(zmq.LINGER, 0)
            bound.setsockopt(zmq.SNDHWM, send_hwm)
            bound.bind(endpoint)
        except zmq.ZMQError:
            bound.close()
            raise
        return bound, bound.getsockopt_string(zmq.LAST_ENDPOINT)


class EventStream:
    """Sends one rank's events and answers questions for the past; on the loop's thread only."""

    def __init__(
        self,
        sockets: Sockets,
        rank: int,
        encode: Encode,
        faults: Faults,
        *,
        topic: str,
        buffer_steps: int,
        clock_skew_s: float = 0.0,
    ) -> None:
        self._sockets = sockets
        self._rank = rank
        self._encode = encode
        self._faults = faults
        self._clock_skew_s = clock_skew_s
        self._topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._held_back: tuple[int, bytes] | None = None
        self.next_seq = 0
        self._listen()

    @property
    def place(self) -> Place:
        """Where it is bound."""
        return self._sockets.place

    def publish(self, events: Sequence[Event]) -> None:
        """One batch, unless a fault makes less or more of it."""
        if not events or self._faults.hit("silent", self._rank) is not None:
            return
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        if self._faults.hit("skip", self._rank) is not None:
            return
        payload = self._encode(events, time.time() + self._clock_skew_s, self._rank)
        self._kept.append((seq, payload))
        if self._faults.hit("lose", self._rank) is not None:
            return
        if self._held_back is None and self._faults.hit("reorder", self._rank) is not None:
            self._held_back = (seq, payload)
            return
        self._send(seq, payload)
        if self._faults.hit("duplicate", self._rank) is not None:
            self._send(seq, payload)
        if self._held_back is not None:
            late, self._held_back = self._held_back, None
            self._send(*late)

    def forget(self, *, disconnect: bool) -> None:
        """A new life: numbers from 0, nothing kept. disconnect: subscribers lose their connection until `reopen`."""
        self.next_seq = 0
        self._kept.clear()
        self._held_back = None
        if disconnect:
            self.close()

    async def reopen(self) -> None:
        """Listen again where it listened; raises ReplicaError when the port is not to be had."""
        deadline = time.monotonic() + _REBIND_S
        while True:
            try:
                self._sockets.open()
            except zmq.ZMQError as error:  # a closed socket lets go of its port a little later
                if time.monotonic() > deadline:
                    raise ReplicaError(f"cannot bind {self.place} again: {error}") from error
                await asyncio.sleep(0.01)
            else:
                self._listen()
                return

    def close(self) -> None:
        """Close the sockets; what is published now goes nowhere but to the kept batches."""
        if (router := self._sockets.router) is not None:
            asyncio.get_running_loop().remove_reader(router.fileno())
        self._sockets.close()

    def _send(self, seq: int, payload: bytes) -> None:
        if self._sockets.pub is not None:
            self._sockets.pub.send_multipart((self._topic, seq.to_bytes(8, "big"), payload), zmq.NOBLOCK)

    def _listen(self) -> None:
        if (router := self._sockets.router) is not None:
            asyncio.get_running_loop().add_reader(router.fileno(), self._asked)
            self._asked()  # the descriptor tells of changes only

    def _asked(self) -> None:
        """Answer every question that is there: the descriptor does not speak again of one that was left."""
        router = self._sockets.router
        while router is not None and int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            try:
                frames = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
                continue  # not a question; engines leave it unanswered too
            start = int.from_bytes(frames[2], "big")
            for seq, payload in self._kept:
                if seq >= start:
                    router.send_multipart((frames[0], b"", self._topic, seq.to_bytes(8, "big"), payload), zmq.NOBLOCK)
            router.send_multipart((frames[0], b"", b"", _END, b""), zmq.NOBLOCK)
