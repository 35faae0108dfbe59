"""The command: wrong use is named, and a replica started by it serves, announces and stops."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import zmq
from typer.testing import CliRunner

from gateway.tokenize.folder import model_folder
from gateway.tokenize.prompt import Tokenizer
from replicas.cli import app, memory_bytes
from replicas.errors import EngineDied, ReplicaError
from replicas.serve import ServeSettings, block_count, serve
from tests.fakes.replica_process import TEMPLATE
from tests.fakes.runner import FakeRunner
from tests.fakes.tokenizer_folder import write_tokenizer_folder


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "abc"], ("--port", "'abc'")),
        (["--port", "65536"], ("--port", "'65536'", "65535")),
        (["--num-blocks", "0"], ("--num-blocks", "'0'")),
        (["--block-size", "-4"], ("--block-size", "'-4'")),
        (["--kv-memory", "lots"], ("--kv-memory", "'lots'")),
        (["--events", "localhost:5557"], ("--events", "'localhost:5557'")),
        (["--events", "tcp://*:5557", "--replay", "udp://x"], ("--replay", "'udp://x'")),
        (["--replay", "tcp://*:5558"], ("--replay", "needs --events")),
        (["--log-level", "loud"], ("--log-level", "'loud'")),
        (["--drain", "-1"], ("--drain", "'-1'")),
        (["--nonsense"], ("--nonsense",)),
        (["--kv-memory", "100TiB"], ("--kv-memory", "'100TiB'", "this machine")),
        (["--kv-memory", "999999999999999TiB"], ("--kv-memory", "'999999999999999TiB'")),
        (["--kv-memory", "9" * 400], ("--kv-memory", "'999")),
        (["--threads", "99999999999"], ("--threads", "'99999999999'", "1024")),
        (["--port", "9" * 5000], ("--port", "'999")),
        (["--max-running", "9" * 5000], ("--max-running", "'999")),
        (["--drain", "9" * 400], ("--drain", "'999")),
    ],
)
def test_wrong_use_exits_with_2_and_names_option_and_value(arguments: list[str], said: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    for words in said:
        assert words in result.output


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--model", str(tmp_path / "nothing"), "--port", "0"])
    assert result.exit_code == 2
    assert str(tmp_path / "nothing") in result.output


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"num_blocks": 99_999_999_999_999}, ("--num-blocks 99999999999999:",)),
        ({"num_blocks": 10**18 - 1, "block_tokens": 10**18 - 1}, ("--num-blocks 999999999999999999:",)),
        ({"block_tokens": 10**9}, ("--kv-memory 1073741824", "--block-size 1000000000")),
    ],
)
def test_blocks_that_do_not_fit_are_refused_by_option_and_value(sizes: dict[str, int], said: tuple[str, ...]) -> None:
    with pytest.raises(ReplicaError) as caught:
        block_count(ServeSettings(model_name="fake", **sizes), FakeRunner())  # type: ignore[arg-type]
    for words in said:
        assert words in str(caught.value)


def test_an_engine_that_cannot_have_its_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine has it, the process may not."""
    runner = FakeRunner()
    monkeypatch.setattr(runner, "allocate", Mock(side_effect=MemoryError))
    tokenizer = Tokenizer.load(write_tokenizer_folder(tmp_path, template=TEMPLATE))
    with pytest.raises(ReplicaError, match="64 KV blocks"):
        serve(ServeSettings(model_name="fake", host="127.0.0.1", port=0, num_blocks=64), runner, tokenizer, lambda ready: None)


def test_an_engine_that_died_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with 2: nothing was wrong with the options, and a supervisor should try again."""
    monkeypatch.setattr("replicas.runner.load_runner", lambda *_, **__: FakeRunner())
    monkeypatch.setattr("replicas.serve.load_tokenizer", lambda *_: None)
    monkeypatch.setattr("replicas.serve.serve", Mock(side_effect=EngineDied("the engine died")))
    result = CliRunner().invoke(app, ["--port", "0"])
    assert result.exit_code == 1
    assert "the engine died" in result.output


@pytest.mark.parametrize(
    ("text", "size"), [("1GiB", 1 << 30), ("512MiB", 512 << 20), ("1.5G", 3 << 29), ("64k", 64 << 10), ("4096", 4096)]
)
def test_sizes_are_read_in_binary_units(text: str, size: int) -> None:
    assert memory_bytes(text) == size


class Running:
    """A tiny replica started by the command."""

    def __init__(self, log: Path) -> None:
        arguments = ["--model", "tiny", "--host", "127.0.0.1", "--port", "0", "--num-blocks", "64", "--json"]
        arguments += ["--events", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*", "--served-model-name", "m"]
        with log.open("wb") as stream:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "replicas.cli", *arguments],
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, log.read_text()
        self.ready = json.loads(line)

    def call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.ready["port"], timeout=20)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def stop(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        status = self.child.wait(10)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return status


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Running]:
    if not model_folder("smollm2").is_dir():
        pytest.skip("the tiny model speaks SmolLM2's tokenizer: run `trunkline model fetch smollm2`")
    process = Running(tmp_path / "log")
    yield process
    if process.child.poll() is None:
        process.child.kill()
        process.child.wait()


def replayed(endpoint: str) -> list[Any]:
    """Every event the replica ever announced, decoded."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        events: list[Any] = []
        while dealer.poll(5_000):
            frames = dealer.recv_multipart()
            if frames[-2] == b"\xff" * 8:
                return events
            events += msgspec.msgpack.decode(frames[-1])[1]
    raise AssertionError("the replay had no end")


@pytest.mark.model
def test_a_replica_serves_announces_and_stops(tiny: Running) -> None:
    """FC-16: the announced tokens are those that the next request finds cached."""
    source = tiny.call("GET", "/kv_event_sources")["0"]
    assert (source["endpoint"], source["replay_endpoint"]) == (tiny.ready["events"], tiny.ready["replay"])
    info = tiny.call("GET", "/server_info")
    assert info["kv_events_port"] == int(source["endpoint"].rpartition(":")[2])
    assert replayed(source["replay_endpoint"]) == [{"type": "AllBlocksCleared"}]

    chat = {"messages": [{"role": "user", "content": "Tell me about rivers, please."}], "max_tokens": 20, "temperature": 0}
    first = tiny.call("POST", "/v1/chat/completions", chat)
    prompt = tiny.call("POST", "/tokenize", chat)["tokens"]
    written = first["usage"]["total_tokens"] - 1
    stored = [event for event in replayed(source["replay_endpoint"]) if event["type"] == "BlockStored"]
    announced = [token for event in stored for token in event["token_ids"]]
    assert announced[: len(prompt)] == prompt[: len(announced)]
    assert len(announced) == written // 16 * 16
    assert stored[0]["parent_block_hash"] is None
    assert all(event["block_size"] == 16 for event in stored)

    second = tiny.call("POST", "/v1/chat/completions", chat)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(prompt) - 1) // 16 * 16
    assert second["choices"] == first["choices"]
    assert tiny.stop() == 0
