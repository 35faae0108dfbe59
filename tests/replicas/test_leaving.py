"""Clients that leave, and a server that is told to: over raw sockets, against a process started as production starts it."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.replica_process import TEMPLATE, ReplicaProcess
from tests.fakes.tokenizer_folder import write_tokenizer_folder

STEP_S = 0.01
ALLOWED_S = 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"), template=TEMPLATE)


@pytest.fixture(scope="module")
def replica(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    """Slow steps of 8 tokens, and two sequences at a time."""
    process = ReplicaProcess(
        folder,
        tmp_path_factory.mktemp("log") / "log",
        num_blocks=1000,
        block_tokens=4,
        max_batch_tokens=8,
        max_running=2,
        step_s=STEP_S,
    )
    yield process
    process.kill()


class Client:
    """One request on a raw socket."""

    def __init__(self, replica: ReplicaProcess, body: dict[str, object]) -> None:
        raw = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", replica.port), timeout=10)
        self.socket.sendall(head.encode() + raw)

    def read_events(self, count: int) -> bytes:
        """Everything up to the `count`-th event."""
        got = b""
        while got.count(b"data: ") < count:
            piece = self.socket.recv(65536)
            assert piece, f"the server closed after {got!r}"
            got += piece
        return got

    def read_to_end(self) -> bytes:
        got = b""
        while piece := self.socket.recv(65536):
            got += piece
        return got

    def close(self) -> None:
        """A clean close."""
        self.socket.close()

    def reset(self) -> None:
        """A reset, as from a killed process."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.005)


def idle(replica: ReplicaProcess) -> bool:
    return not (
        replica.metric("requests_running") or replica.metric("requests_waiting") or replica.metric('blocks{state="used"}')
    )


def running(replica: ReplicaProcess, count: int) -> Callable[[], bool]:
    return lambda: replica.metric("requests_running") == count


def long_answer(start: int, **more: object) -> dict[str, object]:
    return {"prompt": [2 + (start + number) % 200 for number in range(12)], "max_tokens": 3000, "ignore_eos": True, **more}


def assert_untroubled(replica: ReplicaProcess) -> None:
    log = replica.log()
    assert not any(word in log for word in ("ERROR", "Traceback", "WARNING")), log


Connect = Callable[[ReplicaProcess, dict[str, object]], Client]


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[Client] = []

    def start(replica: ReplicaProcess, body: dict[str, object]) -> Client:
        made.append(Client(replica, body))
        return made[-1]

    yield start
    for client in made:
        client.close()


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
def test_leaving_a_stream_ends_its_work(replica: ReplicaProcess, connect: Connect, leave: Callable[[Client], None]) -> None:
    """FC-49: after some tokens; the blocks it completed stay hits."""
    body = long_answer(1, stream=True)
    client = connect(replica, body)
    client.read_events(9)
    leave(client)
    wait_until(lambda: idle(replica), ALLOWED_S, "the stream's work to end")
    again = connect(replica, {**body, "max_tokens": 1, "stream": False})
    assert b'"cached_tokens":8' in again.socket.recv(65536)
    again.close()
    assert_untroubled(replica)


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_token_ends_the_prefill(
    replica: ReplicaProcess, connect: Connect, leave: Callable[[Client], None], stream: bool
) -> None:
    """FC-49: in the middle of a prefill of 100 steps; complete blocks of the chunks that ran stay hits."""
    prompt = [2 + (number * 7 + 3 * stream + 5 * (leave is Client.reset)) % 240 for number in range(800)]
    steps = replica.metric("step_seconds_count")
    client = connect(replica, {"prompt": prompt, "max_tokens": 5, "stream": stream})
    wait_until(lambda: replica.metric("step_seconds_count") >= steps + 8, 5, "some chunks to be computed")
    leave(client)
    wait_until(lambda: idle(replica), ALLOWED_S, "the prefill to end")
    assert replica.metric("step_seconds_count") - steps < 80
    connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=10)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt[:60], "max_tokens": 1}))
    cached = json.loads(connection.getresponse().read())["usage"]["prompt_tokens_details"]["cached_tokens"]
    connection.close()
    assert cached == 56
    assert_untroubled(replica)


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
def test_leaving_an_answer_in_one_piece_ends_its_work(
    replica: ReplicaProcess, connect: Connect, leave: Callable[[Client], None]
) -> None:
    """FC-49: nothing is written to this client before the end, so no write can notice that it left."""
    client = connect(replica, long_answer(3))
    wait_until(running(replica, 1), 5, "the request to run")
    leave(client)
    wait_until(lambda: idle(replica), ALLOWED_S, "the request's work to end")
    assert_untroubled(replica)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_the_line_frees_its_place(replica: ReplicaProcess, connect: Connect, stream: bool) -> None:
    """FC-50: while queued; nothing of it is ever computed."""
    busy = [connect(replica, long_answer(10 + number, stream=True)) for number in range(2)]
    for client in busy:
        client.read_events(1)
    queued = connect(replica, long_answer(20, stream=stream))
    wait_until(lambda: replica.metric("requests_waiting") == 1, 5, "the third to wait")
    prompts = replica.metric("prompt_tokens_total")
    queued.close()
    wait_until(lambda: replica.metric("requests_waiting") == 0, ALLOWED_S, "the line to be empty")
    assert replica.metric("requests_running") == 2
    for client in busy:
        client.close()
    wait_until(lambda: idle(replica), ALLOWED_S, "all work to end")
    assert replica.metric("prompt_tokens_total") == prompts
    assert_untroubled(replica)


def test_a_hundred_clients_leaving_at_random_leave_nothing(replica: ReplicaProcess, connect: Connect) -> None:
    """FC-29: all counts are zero at the end."""
    for number in range(100):
        client = connect(replica, long_answer(number, stream=number % 2 == 0))
        time.sleep((number * 7 % 13) * 0.001)
        (client.reset if number % 3 else client.close)()
    wait_until(lambda: idle(replica), 2 * ALLOWED_S, "all work to end")
    assert_untroubled(replica)


def test_each_event_is_sent_whole_and_at_once(replica: ReplicaProcess, connect: Connect) -> None:
    """Tokens come one step apart: none waits for the next, and none is cut."""
    client = connect(replica, {**long_answer(5), "max_tokens": 12, "stream": True})
    arrivals = []
    while not arrivals or b"[DONE]" not in arrivals[-1][1]:
        piece = client.socket.recv(65536)
        arrivals.append((time.monotonic(), piece))
    client.close()
    bodies = [piece.split(b"\r\n\r\n", 1)[-1] for _, piece in arrivals]
    assert all(b"data: " in body and b"\n\n" in body for body in bodies if b"data" in body)
    assert len(arrivals) >= 6
    assert arrivals[-1][0] - arrivals[0][0] > 5 * STEP_S


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Iterator[Callable[..., ReplicaProcess]]:
    made: list[ReplicaProcess] = []

    def make(**options: object) -> ReplicaProcess:
        made.append(ReplicaProcess(folder, tmp_path / "log", num_blocks=1000, block_tokens=4, **options))
        return made[-1]

    yield make
    for process in made:
        process.kill()


def test_sigterm_lets_open_answers_finish_and_refuses_new_ones(own: Callable[..., ReplicaProcess], connect: Connect) -> None:
    """FC-57: exit status 0, and every byte of the open answers is delivered."""
    replica = own(step_s=0.02)
    stream = connect(replica, {**long_answer(1), "max_tokens": 40, "stream": True})
    whole = connect(replica, {**long_answer(2), "max_tokens": 40})
    stream.read_events(2)
    replica.terminate()
    wait_until(lambda: "draining" in replica.log(), 2, "the drain to begin")
    refused = connect(replica, long_answer(3))
    answer = refused.read_to_end()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in answer.lower()
    assert b'"type":"server_error"' in answer
    assert stream.read_to_end().endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b'"completion_tokens":40' in whole.read_to_end()
    assert replica.wait() == 0
    assert_untroubled(replica)


@pytest.mark.parametrize("second_signal", [False, True])
def test_what_outlasts_the_drain_ends_with_an_error_event(
    own: Callable[..., ReplicaProcess], connect: Connect, second_signal: bool
) -> None:
    """FC-57: at the limit, or at once after a second signal; FC-45: the stream ends without its end marks."""
    replica = own(step_s=0.02, drain_s=30 if second_signal else 0.3)
    stream = connect(replica, long_answer(1, stream=True))
    stream.read_events(2)
    replica.terminate()
    wait_until(lambda: "draining" in replica.log(), 2, "the drain to begin")
    if second_signal:
        replica.terminate()
    rest = stream.read_to_end()
    assert b'data: {"error":{"message":"the replica is shutting down","type":"server_error"' in rest
    assert b"[DONE]" not in rest
    assert not rest.endswith(b"0\r\n\r\n")
    assert replica.wait(5) == 0
    assert_untroubled(replica)


def test_a_slow_client_does_not_slow_others(replica: ReplicaProcess, connect: Connect) -> None:
    slow = connect(replica, long_answer(7, stream=True))
    started = time.monotonic()
    done = threading.Event()

    def ask() -> None:
        client = connect(replica, {**long_answer(8), "max_tokens": 10})
        client.socket.recv(65536)
        client.close()
        done.set()

    threading.Thread(target=ask).start()
    assert done.wait(5)
    assert time.monotonic() - started < 2
    slow.close()
    wait_until(lambda: idle(replica), ALLOWED_S, "all work to end")


def test_leaving_a_reset_of_the_cache_does_no_harm(replica: ReplicaProcess, connect: Connect) -> None:
    """FC-49: while a step runs, so that the engine comes to it after the client is gone."""
    working = connect(replica, long_answer(70, stream=True))
    working.read_events(1)
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", replica.port), timeout=10) as client:
            client.sendall(b"POST /reset_prefix_cache HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            time.sleep(STEP_S / 4)  # not a wait for something: the point is to leave in the middle of a step
    working.read_events(3)
    working.close()
    wait_until(lambda: idle(replica), ALLOWED_S, "the request that was left is over")
    assert_untroubled(replica)


def test_when_the_engine_dies_clients_are_told_and_the_process_ends_with_an_error(folder: Path, tmp_path: Path) -> None:
    """FC-65: one answer streams, one waits in line; the exit status asks a supervisor for a new life."""
    process = ReplicaProcess(folder, tmp_path / "log", num_blocks=1000, max_running=1, step_s=STEP_S, die_at_step=8)
    streaming, waiting = (Client(process, long_answer(start, stream=True)) for start in (1, 2))
    try:
        begun = time.monotonic()
        cut, refused = streaming.read_to_end(), waiting.read_to_end()
        assert b"the engine is not running" in cut
        assert b"[DONE]" not in cut
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert process.wait() == 1
        assert time.monotonic() - begun < 5
        assert "the engine thread died" in process.log()
    finally:
        process.kill()
        for client in (streaming, waiting):
            client.close()
