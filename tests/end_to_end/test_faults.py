"""Real processes that die, drain and come back."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from benchmarks.demo.http import get_json
from tests.end_to_end.fleet import Fleet, wait_for

LONG = [{"role": "user", "content": "Tell me a story about a lighthouse keeper, and make it as long as you possibly can."}]


@pytest.fixture
def fleet(tmp_path: Path, tokenizer_folder: Path) -> Iterator[Fleet]:
    """A fleet of its own: these tests break it."""
    running = Fleet(tmp_path)
    yield running
    running.close()


def test_a_replica_killed_in_mid_stream(fleet: Fleet) -> None:
    """FC-43, FC-45, FC-56: a well-formed error, others go on, no request to the dead, and back with an empty view."""
    with fleet.client() as client:
        stream = client.chat.completions.create(
            model="m",
            messages=LONG,
            max_tokens=4000,
            stream=True,
            extra_body={"ignore_eos": True},  # type: ignore[call-overload]
        )
        received = [next(stream) for _ in range(4)]
        assert received
        victim = next(n for n in (0, 1) if fleet.state(n)["ranks"][0]["in_flight"])
        survivor = 1 - victim
        held = fleet.metric(fleet.control, "trunkline_index_blocks")
        assert held > 0
        killed_at = time.monotonic()
        fleet.replicas[victim].kill()
        with pytest.raises(openai.APIError) as caught:
            for _ in stream:
                pass
        assert "message" in str(caught.value.body) or caught.value.message
        answers = []
        while time.monotonic() < killed_at + 2.0:
            answers.append(client.chat.completions.create(model="m", messages=LONG, max_tokens=2))
        assert answers
        chosen = {receipt["replica"] for receipt in fleet.receipts(len(answers))}
        assert f"r{survivor + 1}" in chosen
        assert fleet.state(victim)["healthy"] is False
        client.chat.completions.create(model="m", messages=LONG, max_tokens=2)
        assert fleet.receipts(1)[0]["replica"] == f"r{survivor + 1}"

        fleet.replicas[victim] = fleet.start_replica(victim)
        fleet.replicas[victim].wait_ready(120)
        wait_for(lambda: fleet.state(victim)["healthy"] or None, 10, "the replica to be used again")
        wait_for(lambda: fleet.state(victim)["ranks"][0]["freshness"] == "live" or None, 10, "its events to be followed")
        client.chat.completions.create(model="m", messages=LONG, max_tokens=2)
        receipt = fleet.receipts(1)[0]
        credit = {row["replica"]: row["credit_tokens"] for row in receipt["candidates"]}
        assert credit[f"r{victim + 1}"] == 0
        assert credit[f"r{survivor + 1}"] > 0


def test_all_replicas_gone_is_a_503_and_recovery_needs_no_request(fleet: Fleet) -> None:
    """FC-33: 503 with Retry-After; probing alone notices the return."""
    for replica in fleet.replicas:
        replica.kill()
    wait_for(lambda: not any(fleet.state(n)["healthy"] for n in (0, 1)) or None, 5, "both to be noticed")
    with fleet.client() as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="m", messages=LONG, max_tokens=2)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
    fleet.replicas[0] = fleet.start_replica(0)
    wait_for(lambda: _ready(fleet) or None, 60, "readiness")
    with fleet.client() as client:
        assert client.chat.completions.create(model="m", messages=LONG, max_tokens=2).choices


def _refusal(fleet: Fleet) -> int | None:
    """The status a new request is refused with; None while it is still served."""
    with fleet.client() as client:
        try:
            client.chat.completions.create(model="m", messages=LONG, max_tokens=1)
        except openai.APIStatusError as error:
            return error.status_code
    return None


def _ready(fleet: Fleet) -> bool:
    try:
        get_json(f"{fleet.control}/readyz")
    except urllib.error.HTTPError:
        return False
    return True


def test_sigterm_lets_open_streams_finish_and_refuses_new_requests(fleet: Fleet) -> None:
    """FC-57: exit status 0, the stream complete, new requests 503 meanwhile."""
    pieces: list[str] = []
    started = threading.Event()

    def read() -> None:
        with fleet.client() as client:
            stream = client.chat.completions.create(
                model="m",
                messages=LONG,
                max_tokens=400,
                stream=True,
                extra_body={"ignore_eos": True},  # type: ignore[call-overload]
            )
            for chunk in stream:
                pieces.append(chunk.choices[0].finish_reason or "")
                started.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert started.wait(10)
    os.kill(fleet.gateway.pid, signal.SIGTERM)
    assert wait_for(lambda: _refusal(fleet), 5, "new requests to be refused") == 503
    reader.join(30)
    assert pieces[-1] == "length"
    assert fleet.gateway.wait(10) == 0
