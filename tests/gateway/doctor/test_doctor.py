"""The doctor in front of engines that are each set up wrongly in one way: it names that way, and the fix, and nothing else."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import main
from replicas.mock.tokens import write_tokenizer
from tests.fakes.mock_engines import FAST, Engines, Gateway, call, ids, wait_for

pytestmark = [pytest.mark.xdist_group("mock_engines"), pytest.mark.slow]

COMMON = ("--model", "m", "--adapter", "sql", *FAST)
# name -> options of its engine; 'mute' publishes nothing
WRONG = {
    "fine": COMMON,
    "setting": COMMON,
    "pages": (*COMMON, "--tell-block-size", "64"),
    "port": COMMON,
    "mute": COMMON,
    "template": (*COMMON, "--chat-form", "plain"),
    "uncounted": (*COMMON, "--no-cached-tokens"),
    "uncached": (*COMMON, "--no-prefix-caching"),
    "reborn": COMMON,
    "bare": ("--model", "m", *FAST),
    "skewed": (*COMMON, "--clock-skew", "-90"),
    "topic": (*COMMON, "--topic", "kv"),
    "sglang": ("--dialect", "sglang", "--no-cached-tokens", *COMMON),
}
Row = dict[str, Any]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Ward:
    """Engines by name, and a gateway in front of all of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        write_tokenizer(folder / "tokenizer")
        self.engines = {name: Engines(folder / f"{name}.log", *options, events=name != "mute") for name, options in WRONG.items()}
        for engines in self.engines.values():
            stack.callback(engines.stop)
        for engines in self.engines.values():
            engines.ready()
        self.dead_port = free_port()
        self.replicas = [self.described(name) for name in WRONG]
        self.gateway = Gateway(folder, folder / "tokenizer", [], self.replicas)
        stack.callback(self.gateway.process.stop)
        self.gateway.listening()
        wait_for(self._settled, "all replicas to be known")

    def described(self, name: str) -> Row:
        told = self.engines[name].engines[0]
        row: Row = {"name": name, "url": self.engines[name].url()}
        if name == "setting":
            row["block_tokens"] = 32
        elif name == "port":
            row["events"] = f"tcp://127.0.0.1:{self.dead_port}"
        elif name == "topic":
            row |= {"events": told["events"][0], "replay": told["replay"][0], "topic": "kv@other"}
        return row

    def _settled(self) -> bool:
        status = call(f"{self.gateway.control}/status").json()
        return status["tokenizer"] == "ready" and all(replica["healthy"] for replica in status["replicas"])

    def examine(self, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[Row]]:
        status = main(["doctor", "--gateway", self.gateway.control, "--json", *options])
        return status, json.loads(capsys.readouterr().out)["findings"]


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    with ExitStack() as stack:
        yield Ward(tmp_path_factory.mktemp("ward"), stack)


@pytest.fixture(scope="module")
def found(ward: Ward) -> dict[str | None, list[Row]]:
    """What one examination found, by replica. Before it one engine got a new life that nothing told of."""
    reborn = ward.engines["reborn"]
    for first in range(3):
        reborn.complete(ids(64, first=first), model="m")
    wait_for(lambda: call(f"{ward.gateway.control}/index/stats").json()["blocks"] >= 12, "its blocks to be known")
    reborn.restart(reconnect=False)
    assert ward.gateway.replica("reborn")["ranks"][0]["freshness"] in ("live", "partial")
    answer = call(f"{ward.gateway.control}/doctor?probe=1", {})
    assert answer.status == 200, answer.body
    by_replica: dict[str | None, list[Row]] = {name: [] for name in WRONG}
    for finding in answer.json()["findings"]:
        by_replica.setdefault(finding["replica"], []).append(finding)
    return by_replica


@pytest.mark.parametrize(
    ("name", "check", "severity", "evidence", "fix"),
    [
        ("setting", "block_size", "error", "`block_tokens` is 32, its events are of 16", "set `block_tokens` to 16"),
        ("pages", "block_size", "error", "pages say 64 tokens a block, its events 16", "--block-size 64"),
        ("port", "event_port", "error", "nobody listens at tcp://127.0.0.1:", "set `events` of this replica to tcp://*:"),
        ("mute", "events", "error", "neither the settings nor the engine", '"enable_kv_cache_events":true'),
        ("template", "template", "error", "a chat: ", "chat_template.jinja"),
        ("uncounted", "cached_tokens", "error", "without usage.prompt_tokens_details", "--enable-prompt-tokens-details"),
        ("uncached", "prefix_caching", "error", "its own pages say so", "--no-enable-prefix-caching"),
        ("reborn", "epoch", "error", "the newest the engine has is none at all", "drop the view now"),
        ("bare", "adapters", "warning", "does not name it", "--lora-modules sql=/adapters/sql"),
        ("skewed", "clock", "warning", "s behind our clock", "NTP"),
        (
            "topic",
            "events",
            "error",
            "`topic` of this replica is 'kv@other', the engine's is 'kv'",
            "set `topic` of this replica to 'kv'",
        ),
        ("sglang", "cached_tokens", "error", "without usage.prompt_tokens_details", "--enable-cache-report"),
    ],
)
def test_each_cause_is_named_with_its_fix_and_no_other(
    found: dict[str | None, list[Row]], name: str, check: str, severity: str, evidence: str, fix: str
) -> None:
    """FC-17 and FC-22 among them."""
    (finding,) = [one for one in found[name] if one["severity"] != "note"]
    assert (finding["check"], finding["severity"]) == (check, severity), finding
    assert evidence in finding["evidence"], finding
    assert fix in finding["fix"], finding


def test_an_engine_that_is_set_up_well_is_left_alone(found: dict[str | None, list[Row]]) -> None:
    assert found["fine"] == []
    assert None not in found


def test_the_fix_of_a_wrong_port_names_the_right_one(ward: Ward, found: dict[str | None, list[Row]]) -> None:
    port = ward.engines["port"].engines[0]["events"][0].rpartition(":")[2]
    (finding,) = found["port"]
    assert f"tcp://127.0.0.1:{ward.dead_port}" in finding["evidence"]
    assert f"set `events` of this replica to tcp://*:{port}" in finding["fix"]


def test_the_command_prints_the_worst_first_and_fails(ward: Ward, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gateway", ward.gateway.control]) == 1
    lines = capsys.readouterr().out.splitlines()
    severities = [line.split()[0] for line in lines if not line.startswith(" ")][:-1]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert "error" in severities
    assert lines[-1].startswith(f"{len(WRONG)} replicas looked at: ")


def test_without_probes_nothing_is_computed(ward: Ward, capsys: pytest.CaptureFixture[str]) -> None:
    before = [engines.rank()["counts"]["prompt_tokens"] for engines in ward.engines.values()]
    status, findings = ward.examine(capsys, "--no-probe")
    assert status == 1
    assert [engines.rank()["counts"]["prompt_tokens"] for engines in ward.engines.values()] == before
    assert not [one for one in findings if one["replica"] == "uncounted"]  # nothing told it yet
    assert [one["check"] for one in findings if one["replica"] == "skewed"] == ["clock"]


def test_a_file_is_examined_without_a_gateway(ward: Ward, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "gateway.yaml"
    rows = [row for row in ward.replicas if row["name"] in ("fine", "template")]
    base = {"tokenizer": str(ward.folder / "tokenizer"), "health": {"interval_s": 0.1}, "listen": {"control_port": 1}}
    config.write_text(yaml.safe_dump({**base, "replicas": rows}))
    assert main(["doctor", "--config", str(config), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["replica"], one["check"]) for one in findings if one["severity"] != "note"] == [("template", "template")]
    config.write_text(yaml.safe_dump({**base, "replicas": rows[:1]}))
    assert main(["doctor", "--config", str(config)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 replicas looked at: nothing found"
    dead = {"name": "dead", "url": f"http://127.0.0.1:{ward.dead_port}"}
    config.write_text(yaml.safe_dump({**base, "replicas": [*rows[:1], dead]}))
    assert main(["doctor", "--config", str(config), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["check"], finding["replica"]) == ("reachable", "dead")
    assert "ClientConnectorError" in finding["evidence"]


def test_wrong_use_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gateway", "http://127.0.0.1:1", "--config", "x"]) == 2
    assert main(["doctor", "--config", str(tmp_path / "missing.yaml")]) == 2
    assert "missing.yaml" in capsys.readouterr().err
    assert main(["doctor", "--gateway", "http://127.0.0.1:1"]) == 1
    assert "cannot ask http://127.0.0.1:1/doctor" in capsys.readouterr().err
