"""Engines that announce nothing, behind a gateway that remembers what it sent them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicas.mock.tokens import write_tokenizer
from tests.fakes.mock_engines import FAST, Engines, Gateway, call, ids, wait_for


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    started = Engines(tmp_path / "engines.log", "--count", "2", "--model", "m", "--num-blocks", "512", *FAST, events=False)
    yield started.ready()
    started.stop()


@pytest.fixture
def gateway(engines: Engines, tmp_path: Path) -> Iterator[Gateway]:
    write_tokenizer(tmp_path / "tokenizer")
    replicas = [("a", engines.url(0)), ("b", engines.url(1))]
    running = Gateway(tmp_path, tmp_path / "tokenizer", replicas, policy="approximate")
    yield running.ready(followed=False)
    running.process.kill()
    running.process.stop()


def test_what_was_sent_is_found_again_and_forgotten_with_the_process(engines: Engines, gateway: Gateway) -> None:
    """FC-63: the reason and the predicted tokens of the choice, and the engine's own count."""
    prompts = [ids(100, first=number) for number in range(6)]
    wait_for(lambda: gateway.complete(prompts[0], model="m").predicted == 96, "the history")
    first = [gateway.complete(prompt, model="m") for prompt in prompts[1:]]
    assert {reply.predicted for reply in first} == {0}
    assert {reply.replica for reply in first} == {"a", "b"}
    for prompt, before in zip(prompts[1:], first, strict=True):
        again = gateway.complete(prompt, model="m")
        assert (again.replica, again.headers["x-trunkline-reason"]) == (before.replica, "credit")
        assert again.cached_tokens == again.predicted == 96
    assert all(rank["freshness"] == "cold" for rank in gateway.replica("a")["ranks"])
    assert call(f"{gateway.control}/index/stats").json()["blocks"] == 0
    for number in (0, 1):
        engines.fault(number, sick={"value": 503})
    wait_for(lambda: not any(gateway.replica(name)["healthy"] for name in "ab"), "the replicas to be given up")
    for number in (0, 1):
        engines.restart(number)
        engines.calm()
    wait_for(lambda: all(gateway.replica(name)["healthy"] for name in "ab"), "the replicas to be back")
    reply = gateway.complete(prompts[1], model="m")
    assert (reply.predicted, reply.cached_tokens) == (0, 0)
