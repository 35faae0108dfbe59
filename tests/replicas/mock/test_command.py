"""The command: many engines in one process, wrong use, and an end in order."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gateway.tokenize.prompt import Tokenizer
from replicas.mock.cli import app
from replicas.mock.rank import Rank
from replicas.mock.tokens import ByteCodec, answer_text, write_tokenizer
from tests.fakes.mock_engines import FAST, Engines, OpenStream, call, ids


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--count", "0"], ("--count", "'0'")),
        (["--dialect", "odd"], ("--dialect", "'odd'", "sglang")),
        (["--events", "ipc://x"], ("--events", "'ipc://x'")),
        (["--replay", "tcp://*:5558"], ("--replay", "needs --events")),
        (["--event-form", "odd"], ("--event-form", "'odd'")),
        (["--groups", "full,odd"], ("'odd'",)),
        (["--groups", "full,state", "--dialect", "sglang"], ("sglang",)),
        (["--fault", "odd:3"], ("'odd:3'", "slow_health")),
        (["--fault", "error:200"], ("error", "200")),
        (["--prefill-rate", "0"], ("--prefill-rate", "'0'")),
        (["--adapter", "mock"], ("mock",)),
        (["--tokenizer", "/nothing/there"], ("--tokenizer /nothing/there",)),
        (["--ranks", "2", "--events", "tcp://127.0.0.1:65535"], ("65535",)),
    ],
)
def test_wrong_use_exits_with_2_and_is_named(arguments: list[str], said: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["--host", "127.0.0.1", "--port", "0", *arguments])
    assert result.exit_code == 2
    for words in said:
        assert words in result.output


def test_a_process_whose_engine_died_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(rank: Rank) -> None:
        raise ZeroDivisionError("told to")

    monkeypatch.setattr(Rank, "run", run)
    result = CliRunner().invoke(app, ["--host", "127.0.0.1", "--port", "0"])
    assert (result.exit_code, "ZeroDivisionError" in result.output) == (1, True)


def test_a_taken_port_is_named(vllm: Engines) -> None:
    port = str(vllm.engines[0]["port"])
    result = CliRunner().invoke(app, ["--host", "127.0.0.1", "--port", port])
    assert (result.exit_code, port in result.output) == (2, True)


def port_behind_free_ones(count: int) -> socket.socket:
    """A listening socket with so many free ports below its own."""
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        try:
            for below in range(port - count, port):
                socket.create_server(("127.0.0.1", below)).close()
        except OSError:
            taken.close()
        else:
            return taken


def test_engines_and_ranks_have_their_ports_in_a_row() -> None:
    """The port that engine 1's rank 1 would have is taken: it is named, so it was asked for."""
    with port_behind_free_ones(3) as taken:
        first = taken.getsockname()[1] - 3
        arguments = ["--count", "2", "--ranks", "2", "--events", f"tcp://127.0.0.1:{first}"]
        result = CliRunner().invoke(app, ["--host", "127.0.0.1", "--port", "0", *arguments])
    assert result.exit_code == 2
    assert f"the events of engine 1 at tcp://127.0.0.1:{first}" in result.output


def test_twenty_engines_in_one_process_and_a_clean_end(tmp_path: Path) -> None:
    engines = Engines(tmp_path / "log", "--count", "20", "--no-cached-tokens", *FAST).ready()
    try:
        assert len({engine["port"] for engine in engines.engines}) == 20
        assert len({engine["events"][0] for engine in engines.engines}) == 20

        def ask(number: int) -> dict[str, object]:
            return dict(engines.complete(ids(40, first=number), number, max_tokens=13).json())

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(20)))
        for number, answer in enumerate(answers):
            assert answer["choices"][0]["text"] == answer_text("mock", ids(40, first=number), 2)  # type: ignore[index]
            assert answer["usage"]["prompt_tokens_details"] is None  # type: ignore[index]
            assert engines.rank(number)["counts"]["prompt_tokens"] == 40
        body: dict[str, object] = {"prompt": "to the end", "max_tokens": 300, "ignore_eos": True}
        with OpenStream(engines.url(3), body) as stream:
            assert stream.first_event()
            os.kill(engines.process.pid, signal.SIGTERM)
            lines = list(stream.lines())
        assert b"data: [DONE]" in lines  # it had time to finish
        assert engines.process.wait(5) == 0
    finally:
        engines.stop()


def test_an_answer_that_takes_too_long_is_cut_at_the_end(tmp_path: Path) -> None:
    engines = Engines(tmp_path / "log", "--dialect", "trunkline", "--drain", "0.1", *FAST, events=False).ready()
    try:
        assert call(f"{engines.url()}/kv_event_sources").json() == {}
        told = call(f"{engines.url()}/server_info").json()
        assert (told["dialect"], told["block_tokens"], told["kv_events_port"]) == ("trunkline", 16, None)
        with OpenStream(engines.url(), {"prompt": "x", "max_tokens": 50_000, "ignore_eos": True}) as stream:
            assert stream.first_event()
            asked_at = time.monotonic()
            os.kill(engines.process.pid, signal.SIGTERM)
            assert b"data: [DONE]" not in list(stream.lines())
        assert engines.process.wait(5) == 0
        assert time.monotonic() - asked_at < 3
    finally:
        engines.stop()


def test_the_tokenizer_it_writes_says_what_it_says(tmp_path: Path) -> None:
    """FC-22."""
    result = CliRunner().invoke(app, ["--write-tokenizer", str(tmp_path / "folder")])
    assert result.exit_code == 0
    tokenizer, codec = Tokenizer.load(tmp_path / "folder"), ByteCodec()
    text = "".join(map(chr, range(0x20, 0x180))) + "\n\t\0 <|im_start|>user <|im_end|> 漢字 🙂 é"
    assert np.array_equal(tokenizer.text(text), codec.text(text))
    messages = [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": None}]
    assert np.array_equal(tokenizer.chat({"messages": messages}), codec.chat({"messages": messages}))
    assert codec.decode(codec.text("grüße 漢").tolist()) == "grüße 漢"


def test_a_models_own_tokenizer_can_be_used(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "folder")
    engines = Engines(tmp_path / "log", "--tokenizer", str(tmp_path / "folder"), "--fault", "error:429x1", *FAST, events=False)
    engines.ready()
    try:
        assert engines.complete("ab").status == 429
        reply = engines.complete("ab", max_tokens=6).json()
        assert reply["choices"][0]["text"] == answer_text("mock", ByteCodec().text("ab").tolist(), 1)
        assert engines.complete([300]).status == 400
        assert json.loads(call(f"{engines.url()}/tokenize", {"prompt": "ab"}).body)["count"] == 2
    finally:
        engines.stop()
