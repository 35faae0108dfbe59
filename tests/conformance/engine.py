"""An engine that keeps every byte it gets, reads it strictly, and answers with whatever bytes it is told.

It runs on threads and blocking sockets, so that what it sees is what stood on the wire. Health checks, which the gateway makes
with another client, are answered and not recorded.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.conformance.wire import Message, NotHttp, Source, read_request_body, read_request_head, request_length

SENTINEL = b"the one behind the case"
PATIENCE_S = 20.0
_OK = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{"ok":true}'
_MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_LOOK_S = 0.005


class Do(Enum):
    """What an engine does between pieces of its answer."""

    EARLY = auto()  # only as the first: answer as soon as the head is there
    HOLD = auto()  # until the client releases it, or the gateway leaves
    PAUSE = auto()  # long enough for a read of its own
    CLOSE = auto()  # FIN
    RESET = auto()  # RST


@dataclass(frozen=True, slots=True)
class Drip:
    """Bytes written one by one."""

    data: bytes


Act = bytes | Do | Drip


@dataclass(slots=True)
class Record:
    """What the engine saw during one case."""

    acts: tuple[Act, ...] = (_OK,)
    later: tuple[Act, ...] | None = None  # from the second request on, where that is answered otherwise
    requests: list[Message] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)  # of each request
    wrong: list[str] = field(default_factory=list)  # bytes that are no well-formed request
    release: threading.Event = field(default_factory=threading.Event)
    holding: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)  # the gateway went away while the engine held


class RecordingEngine:
    """Use as a context manager."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._server.getsockname()[1])
        self.record = Record()
        self._opened = 0
        self._closing = False
        threading.Thread(target=self._accept, name="engine", daemon=True).start()

    def begin(self, acts: Sequence[Act], later: Sequence[Act] | None = None) -> Record:
        """Forget what was seen, and answer like this from now on; with nothing to say, by a plain answer."""
        self.record = Record(tuple(acts) or (_OK,), None if later is None else tuple(later))
        return self.record

    def __enter__(self) -> RecordingEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing = True
        self.record.release.set()
        self._server.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self._opened += 1
            threading.Thread(target=self._serve, args=(sock, self._opened), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        source = Source(lambda: _received(sock))
        with sock:
            try:
                while self._one(sock, source, number):
                    pass
            except NotHttp as error:
                self.record.wrong.append(str(error))
            except OSError:
                pass  # the gateway has left

    def _one(self, sock: socket.socket, source: Source, number: int) -> bool:
        """Serve one request; False where the connection is over."""
        head = read_request_head(source)
        if head is None:
            return False
        if b"aiohttp" in b"".join(head.values(b"user-agent")):
            sock.sendall(_health_answer(head.start[1]))
            return True
        record = self.record
        early = record.acts[0] is Do.EARLY and not record.requests
        if early:
            request_length(head)
        request = head if early else read_request_body(source, head)
        record.requests.append(request)
        record.connections.append(number)
        acts = record.acts if record.later is None or len(record.requests) == 1 else record.later
        if SENTINEL in request.body:
            acts = (_OK,)
        return all(_does(sock, record, act) for act in acts) and not early


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except ConnectionError:
        return b""


def _health_answer(target: bytes) -> bytes:
    body = _MODELS if target == b"/v1/models" else b"{}"
    status = b"200 OK" if target in (b"/health", b"/v1/models") else b"404 Not Found"
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def _does(sock: socket.socket, record: Record, act: Act) -> bool:
    if isinstance(act, bytes):
        sock.sendall(act)
    elif isinstance(act, Drip):
        for place in range(len(act.data)):
            sock.sendall(act.data[place : place + 1])
    elif act is Do.PAUSE:
        time.sleep(0.02)
    elif act is Do.HOLD:
        return _hold(sock, record)
    elif act is Do.CLOSE:
        return False
    elif act is Do.RESET:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False
    return True


def _hold(sock: socket.socket, record: Record) -> bool:
    record.holding.set()
    deadline = time.monotonic() + PATIENCE_S
    while not record.release.wait(_LOOK_S) and time.monotonic() < deadline:
        readable, _, _ = select.select([sock], [], [], 0)
        try:
            if readable and not sock.recv(1, socket.MSG_PEEK):
                record.left.set()
                return False
        except ConnectionError:
            record.left.set()
            return False
    return True
