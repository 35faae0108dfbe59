"""The sending side: a replica's cache changes on a PUB socket, with a ROUTER socket that repeats the recent ones.

Both sockets belong to one background thread, since ZMQ sockets are not for several; the engine only appends to a queue and
writes one byte to wake it. Subscribers that cannot keep up lose batches and ask for them, they never slow the engine.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import zmq

from events.encode import encode
from events.endpoints import rank_endpoint
from events.errors import EndpointError
from events.types import EventsError
from radix.changes import Event

_SEND_HWM = 100_000  # batches kept per slow subscriber before it loses some
_END = b"\xff" * 8
_LINGER_MS = 200


class Publisher:
    """Sends batches numbered from 0 until `close`. May be used from any thread.

    endpoint, replay_endpoint: to bind, e.g. `tcp://*:5557`; those of rank 0, the rank is added to the port. buffer_steps: batches
    kept for replays.
    """

    def __init__(
        self, endpoint: str, replay_endpoint: str | None = None, *, topic: str = "", rank: int = 0, buffer_steps: int = 10_000
    ) -> None:
        self._topic = topic.encode()
        self._rank = rank
        self._lock = threading.Lock()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._next = 0
        self._closing = False
        self._context = zmq.Context()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        try:
            self._pub = self._bind(zmq.PUB, rank_endpoint(endpoint, rank), _SEND_HWM)
            self._router = None
            if replay_endpoint is not None:
                # A replay must fit whole into the send buffer: a ROUTER drops what does not.
                self._router = self._bind(zmq.ROUTER, rank_endpoint(replay_endpoint, rank), 2 * (buffer_steps + 1))
        except EventsError:
            self._release()
            raise
        self.bound_endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.bound_replay = self._router.getsockopt_string(zmq.LAST_ENDPOINT) if self._router is not None else None
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def publish(self, events: Sequence[Event]) -> int:
        """Queue one batch and return its number; no events send nothing and return the number before. Never waits for readers."""
        if not events:
            return self._next - 1
        with self._lock:  # the number is taken after encoding: a batch that cannot be encoded leaves no hole
            payload = encode(events, ts=time.time(), rank=self._rank)
            if self._closing:
                raise EventsError("publish after close")
            seq = self._next
            self._next += 1
            self._queue.append((seq, payload))
        self._nudge()
        return seq

    def close(self) -> None:
        """Send what is queued, end the thread and free the ports; may be called twice."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._nudge()
        self._thread.join()
        self._release()

    def _nudge(self) -> None:
        try:
            self._wake.send(b"\0")
        except BlockingIOError:
            pass  # the thread has not read the earlier ones yet: it will wake

    def _bind(self, kind: int, endpoint: str, send_hwm: int) -> zmq.Socket[bytes]:
        bound: zmq.Socket[bytes] = self._context.socket(kind)
        bound.setsockopt(zmq.SNDHWM, send_hwm)
        bound.setsockopt(zmq.LINGER, _LINGER_MS)
        try:
            bound.bind(endpoint)
        except zmq.ZMQError as error:
            bound.close()
            raise EndpointError(f"cannot bind {endpoint}: {error}") from error
        return bound

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        while not self._closing:
            for ready, _ in poller.poll():
                if ready is self._router:
                    self._serve_replay()
                else:
                    self._woken.recv(4096)
            self._send_queued()
        self._send_queued()

    def _send_queued(self) -> None:
        while self._queue:
            seq, payload = self._queue.popleft()
            self._pub.send_multipart((self._topic, seq.to_bytes(8, "big"), payload), copy=False)
            self._buffer.append((seq, payload))

    def _serve_replay(self) -> None:
        router = self._router
        assert router is not None
        self._send_queued()  # so that the batch after the end mark is the next live one
        frames = router.recv_multipart()
        if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
            return  # not a question; engines leave it unanswered too
        identity, start = frames[0], int.from_bytes(frames[2], "big")
        for seq, payload in self._buffer:
            if seq >= start:
                router.send_multipart((identity, b"", self._topic, seq.to_bytes(8, "big"), payload), copy=False)
        router.send_multipart((identity, b"", b"", _END, b""))

    def _release(self) -> None:
        self._wake.close()
        self._woken.close()
        self._context.destroy(linger=_LINGER_MS)
