"""The live side of one rank's stream: a SUB socket that also tells when its connection came and went.

An engine that restarts looks like a reconnect and nothing else where its numbers do not give it away, so the socket's monitor is
read beside it, and always before the messages that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from events.endpoints import BIND
from events.errors import EndpointError
from events.replay import Frames

_RECEIVE_HWM = 100_000  # messages; as many as engines keep for a slow subscriber
_MAX_MESSAGE_BYTES = 256 * 2**20  # a peer that sends more is cut off; what it may cost to decode is `decode`'s business
_AT_ONCE = 256  # messages taken per wake-up, so that requests get their turn


class Link(Enum):
    """What happened to the connection."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Broken:
    """A message that is not [topic, number, payload]. sizes: of its frames, in bytes."""

    sizes: tuple[int, ...]


Arrival = Frames | Broken | Link


class Source(Protocol):
    """Where messages wait."""

    def discard(self) -> None:
        """Throw away what has arrived."""
        ...


class ZmqSource:
    """Subscribed from construction to `close`.

    topic: compared in full, since ZMQ itself would also pass `topic...`; None takes all.
    """

    def __init__(self, context: zmq.asyncio.Context, endpoint: str, topic: str | None) -> None:
        self._topic = topic.encode() if topic is not None else None
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, _RECEIVE_HWM)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        # A peer that vanished without closing is noticed by unanswered heartbeats.
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._poller = zmq.asyncio.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._messages: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        self._notes: zmq.Socket[bytes] = zmq.Socket.shadow(self._monitor)
        self._socket.setsockopt(zmq.SUBSCRIBE, self._topic or b"")
        try:
            if endpoint.startswith(BIND):
                self._socket.bind(endpoint.removeprefix(BIND))
            else:
                self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(f"cannot subscribe to {endpoint}: {error}") from error

    async def arrivals(self, timeout_s: float | None = None) -> list[Arrival]:
        """What came, at least one thing unless `timeout_s` is over; changes of the connection stand before messages."""
        await self._poller.poll(None if timeout_s is None else max(0, int(timeout_s * 1000)))
        messages: list[Arrival] = []
        while len(messages) < _AT_ONCE and (frames := _receive(self._messages)) is not None:
            if len(frames) != 3 or len(frames[1]) != 8:
                messages.append(Broken(tuple(len(frame) for frame in frames)))
            elif self._topic in (None, frames[0]):
                messages.append(Frames(int.from_bytes(frames[1], "big"), frames[2], frames[0]))
        changes: list[Arrival] = []
        # Read after the messages: whatever connection brought one of them has been announced by now.
        while (note := _receive(self._notes)) is not None:
            up = parse_monitor_message(list(note))["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            changes.append(Link.UP if up else Link.DOWN)
        return changes + messages

    def discard(self) -> None:
        """Throw away what has arrived: a replay asked for from now on covers it."""
        while _receive(self._messages) is not None:
            pass

    def close(self) -> None:
        """Unsubscribe and close; may be called twice."""
        if not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)


def _receive(socket: zmq.Socket[bytes]) -> Sequence[bytes] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
