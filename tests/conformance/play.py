"""Play one case against a gateway and say what was wrong; plain sockets, no event loop."""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Iterator
from enum import Enum

from tests.conformance.case import Await, Case, Reply, Seen, Step, get, post
from tests.conformance.engine import PATIENCE_S, SENTINEL, Record, RecordingEngine
from tests.conformance.wire import Message, NotHttp, Source, read_answer

_STEP_S = 0.05


class Cut(Enum):
    """How the bytes of a case are cut into writes."""

    WHOLE = "whole"
    JOINTS = "joints"  # in the middle of every line end, and behind it
    BYTES = "bytes"


class Client:
    """One connection, which writes anything and reads strictly."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.source = Source(self._received)
        self._slow = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self._sock.close()

    def play(self, case: Case, cut: Cut, record: Record) -> None:
        """Send everything; a gateway that has closed meanwhile is no error here."""
        for step in case.send:
            match step:
                case bytes():
                    if not self.write(step, cut):
                        return
                case Await():
                    while step.data not in self.source.seen and self.source.more():
                        pass
                case Step.HELD:
                    record.holding.wait(PATIENCE_S)
                case Step.RELEASE:
                    record.release.set()
                case Step.HALF_CLOSE:
                    self._sock.shutdown(socket.SHUT_WR)
                case Step.SLOW:
                    self._slow = True

    def answer(self, reply: Reply) -> Message:
        """The next final answer; raises NotHttp."""
        while (message := read_answer(self.source, head_only=reply.head_only)).start[0].startswith(b"1"):
            pass
        return message

    def closed(self) -> bool:
        """Whether the connection ends here, with nothing behind the answers."""
        return not self.source.rest and not self.source.more()

    def write(self, data: bytes, cut: Cut = Cut.WHOLE) -> bool:
        """Send it all; False where the gateway has closed or, sent slowly, has answered."""
        try:
            for piece in _pieces(data, Cut.BYTES if self._slow else cut):
                if self._slow and select.select([self._sock], [], [], _STEP_S)[0]:
                    return False  # it has answered
                self._sock.sendall(piece)
        except ConnectionError:
            return False
        return True

    def _received(self) -> bytes:
        try:
            return self._sock.recv(65536)
        except ConnectionError:
            return b""


def _pieces(data: bytes, cut: Cut) -> Iterator[bytes]:
    if cut is Cut.WHOLE:
        yield data
    elif cut is Cut.BYTES:
        yield from (data[place : place + 1] for place in range(len(data)))
    else:
        for line in data.splitlines(keepends=True):
            yield line[:-1]
            yield line[-1:]


def play(case: Case, cut: Cut, port: int, engine: RecordingEngine) -> list[str]:
    """What was wrong; nothing where the case holds."""
    record = engine.begin(case.engine, case.later)
    wrong: list[str] = []
    with Client(port) as client:
        client.play(case, cut, record)
        try:
            for reply in case.replies:
                wrong += _compare(reply, client.answer(reply))
            wrong += _ends(case, client)
        except (NotHttp, TimeoutError) as error:
            wrong.append(f"{type(error).__name__}: {error}")
        if case.leaves and not record.left.wait(PATIENCE_S):
            wrong.append("the gateway did not leave the engine")
    record.release.set()
    return wrong + _engine_side(case, record, port)


def _ends(case: Case, client: Client) -> list[str]:
    if not case.stays:
        return [] if client.closed() else [f"the connection stays, with {client.source.rest[:80]!r}"]
    if client.source.rest:
        return [f"behind the answers stands {client.source.rest[:80]!r}"]
    client.write(get(b"/livez"))
    return _compare(Reply(200), client.answer(Reply(200)))


def _compare(reply: Reply, got: Message) -> list[str]:
    wrong = []
    if got.start != (b"%d" % reply.status,):
        wrong.append(f"status {got.start}, not {reply.status}: {got.body[:200]!r}")
    if got.whole != reply.whole:
        wrong.append(f"the body is whole: {got.whole}")
    if reply.body is not None and got.body != reply.body:
        wrong.append(f"body {got.body[:200]!r}, not {reply.body[:200]!r}")
    if reply.error_after is not None:
        wrong += _error_event(got.body, reply.error_after)
    if reply.framing is not None and got.framing != reply.framing:
        wrong.append(f"framed by {got.framing}, not {reply.framing}")
    if reply.status >= 400 and reply.body is None and not reply.head_only and b'"error"' not in got.body:
        wrong.append(f"no error in {got.body[:200]!r}")
    return wrong + _fields(reply.fields, reply.absent, got)


def _error_event(body: bytes, before: bytes) -> list[str]:
    event = body.removeprefix(before)
    found = re.fullmatch(rb"data: ([^\n]+)\n\n", event)
    if found is None or not body.startswith(before):
        return [f"not one error event behind {before!r}: {body[:300]!r}"]
    return [] if json.loads(found[1]).keys() == {"error"} else [f"not an error: {event!r}"]


def _fields(wanted: tuple[tuple[bytes, bytes], ...], absent: tuple[bytes, ...], got: Message) -> list[str]:
    names = {name for name, _ in wanted}
    found = [pair for pair in got.fields if pair[0] in names]
    wrong = [f"fields {found}, not {list(wanted)}"] if found != list(wanted) else []
    return wrong + [f"there is {pair}" for pair in got.fields if pair[0] in absent]


def _engine_side(case: Case, record: Record, port: int) -> list[str]:
    """A request behind the case shows that everything before it is through."""
    with Client(port) as client:
        key = (b"Authorization: Bearer good",) if case.guarded else ()
        client.write(post(*key, body=b'{"messages":[],"user":"%s"}' % SENTINEL))
        try:
            last = client.answer(Reply(200))
        except (NotHttp, TimeoutError) as error:
            return [f"the next request: {error}"]
    wrong = list(record.wrong)
    if last.start != (b"200",) or not record.requests or SENTINEL not in record.requests[-1].body:
        wrong.append(f"the next request was answered {last}")
        return wrong
    seen = record.requests[:-1]
    if case.seen is not None:
        wrong += _seen(case.seen, seen)
    elif len(seen) > 1:
        wrong.append(f"the engine saw {seen}")
    if case.pooled is not None and len(set(record.connections[-2:])) != 2 - case.pooled:
        wrong.append(f"engine connections {record.connections}, the last used again should be {case.pooled}")
    return wrong


def _seen(wanted: tuple[Seen, ...], got: list[Message]) -> list[str]:
    if len(wanted) != len(got):
        return [f"the engine saw {len(got)} requests, not {len(wanted)}: {got}"]
    wrong = []
    for each, request in zip(wanted, got, strict=True):
        if request.start != (b"POST", each.target):
            wrong.append(f"the engine saw {request.start}")
        if request.body != each.body:
            wrong.append(f"the engine got the body {request.body[:200]!r}")
        wrong += _fields(each.fields, each.absent, request)
        wrong += [f"the engine got no {name!r}" for name in each.present if not request.values(name)]
    return wrong


def wait_until_ready(control_port: int) -> None:
    """Until the gateway has a replica to send to."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with Client(control_port) as client:
            client.write(get(b"/readyz", b"Connection: close"))
            if client.answer(Reply(200)).start == (b"200",):
                return
        time.sleep(0.02)
    raise AssertionError("the gateway was not ready in time")
