"""A recorded run of fake engines, replayed: the modelled fleet finds as much cached as the live one did."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replicas.mock.tokens import write_tokenizer
from simulations.cli import main
from simulations.cost import EngineSpec
from simulations.run import FleetSpec, replay
from simulations.traces.mooncake import read_mooncake
from tests.fakes.mock_engines import FAST, Engines, Gateway, call, wait_for

pytestmark = pytest.mark.xdist_group("mock_engines")

BLOCKS = 400  # of 16 tokens a replica: too few for everything the chats say, so that blocks are evicted
# Steps as the fake engines take them with FAST: a millisecond, or a microsecond a token.
ENGINE = EngineSpec(
    name="fake engine",
    params=1e9,
    flops=2e15,
    mfu=1.0,
    layers=1,
    heads=1,
    kv_heads=1,
    head_dim=1,
    bandwidth=1e18,
    fixed_step_s=1e-3,
    kv_tokens=BLOCKS * 16,
    chunk_tokens=2048,
    max_sequences=64,
)
SYSTEMS = [f"You are assistant number {number}. " + "Be kind, be brief, and never guess. " * (3 + number) for number in range(4)]


def chat(gateway: Gateway, number: int) -> None:
    """One chat of several turns, each of which brings back the answers before it."""
    source = random.Random(number)
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEMS[source.randrange(4)]}]
    for turn in range(source.randrange(2, 6)):
        messages.append({"role": "user", "content": f"Chat {number}, question {turn}: " + "why? " * source.randrange(4, 30)})
        body = {"model": "m", "messages": messages, "max_tokens": source.randrange(20, 120), "ignore_eos": True, "stream": False}
        headers = {"x-trunkline-session": f"chat-{number}"} if number % 2 else {}
        reply = call(f"{gateway.base}/v1/chat/completions", body, headers=headers)
        assert reply.status == 200, reply.body
        messages.append({"role": "assistant", "content": reply.json()["choices"][0]["message"]["content"]})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The trace of 60 chats, six at a time, over two engines; and its rows."""
    folder = tmp_path_factory.mktemp("recorded")
    write_tokenizer(folder / "tokenizer")
    engines = Engines(folder / "engines.log", "--count", "2", "--model", "m", "--num-blocks", str(BLOCKS), *FAST)
    try:
        replicas = [(name, engines.ready().url(number)) for number, name in enumerate("ab")]
        trace = folder / "trace.jsonl"
        gateway = Gateway(folder, folder / "tokenizer", replicas, policy="cost", record={"file": str(trace)})
        try:
            gateway.ready()
            with ThreadPoolExecutor(6) as pool:
                list(pool.map(lambda number: chat(gateway, number), range(60)))
            requests = gateway.metric("trunkline_decisions_total")
            wait_for(lambda: gateway.metric("trunkline_lines_written_total", file="record") == requests, "all lines")
        finally:
            gateway.process.stop()
        yield trace, [json.loads(line) for line in trace.read_text().splitlines()]
    finally:
        engines.stop()


def test_a_replay_finds_the_live_share_of_cached_tokens_within_two_points(
    recorded: tuple[Path, list[dict[str, Any]]],
) -> None:
    path, rows = recorded
    trace = read_mooncake(path)
    live = sum(row["cached_tokens"] for row in rows) / sum(row["input_length"] for row in rows)
    run = replay(trace, "cost", FleetSpec(engine=ENGINE, replicas=2))
    modelled = float(run.hit_tokens.sum() / run.input_tokens.sum())
    assert 0.3 < live < 0.95  # there is something to get wrong
    assert abs(modelled - live) < 0.02, (modelled, live)


def test_without_the_answers_a_replay_would_find_less(recorded: tuple[Path, list[dict[str, Any]]]) -> None:
    """The blocks that engines keep of what they generate are part of what follow-ups find."""
    trace = read_mooncake(recorded[0])
    assert trace.answer_blocks is not None
    assert np.count_nonzero(trace.answer_blocks) > 0.4 * len(trace)


def test_the_session_policy_has_sessions(recorded: tuple[Path, list[dict[str, Any]]]) -> None:
    path, rows = recorded
    named = {row["session_id"] for row in rows} - {None}
    assert len(named) == 30
    trace = read_mooncake(path)
    run = replay(trace, "session", FleetSpec(engine=ENGINE, replicas=2))
    assert trace.sessions is not None
    homes = {number: {int(one) for one in run.replica[trace.sessions == number]} for number in range(30)}
    assert all(len(where) == 1 for where in homes.values())
    assert set.union(*homes.values()) == {0, 1}


def test_the_command_reads_it(recorded: tuple[Path, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", str(recorded[0]), "--replicas", "2", "--kv-tokens", str(BLOCKS * 16), "--policies", "cost", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["trace"]["requests"] == len(recorded[1])


def test_nothing_of_the_chats_is_in_the_file(recorded: tuple[Path, list[dict[str, Any]]]) -> None:
    """FC-59: no text, no session's name, and no name by which an engine would know a block."""
    text = recorded[0].read_text()
    for secret in ("assistant", "kind", "question", "chat-1", "why?"):
        assert secret not in text
