"""HTTP/1.1 over raw sockets against `trunkline serve`, in front of an engine that records every byte.

FC-34 to FC-41, FC-45, FC-61: each case says what is sent, what must come back and what the engine may have seen: nothing, or
well-formed requests, exactly those. Most are sent in one piece, cut within line ends, and byte by byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from benchmarks.demo.processes import Process, trunkline
from tests.conformance import cases_answers, cases_bodies, cases_connections, cases_heads
from tests.conformance.case import OK_BODY, Case, Reply, answer_head, get, post
from tests.conformance.engine import Act, Do, Drip, RecordingEngine
from tests.conformance.play import Client, Cut, play, wait_until_ready

pytestmark = pytest.mark.xdist_group("conformance")

CASES: list[Case] = [case for module in (cases_heads, cases_bodies, cases_connections, cases_answers) for case in module.CASES]
_BYTES_AT_MOST = 2500  # a write for each


@dataclass(frozen=True)
class Served:
    """Two gateways in front of one engine: as they are by default, and one with keys and short limits."""

    engine: RecordingEngine
    plain: int
    guarded: int
    controls: tuple[int, int]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("conformance")
    keys = folder / "keys"
    keys.write_text(f"client:{hashlib.sha256(b'good').hexdigest()}\n")
    short = {"head_s": 1.5, "body_stall_s": 1.5, "keep_alive_s": 1.5}  # a starved machine must not miss them
    with RecordingEngine() as engine:
        plain = _gateway(folder, "plain", engine.port, limits={"body_bytes": 1_000_000})
        guarded = _gateway(folder, "guarded", engine.port, limits=short, api_keys_file=str(keys))
        with plain, guarded:
            ports = [json.loads(gateway.wait_ready(60)) for gateway in (plain, guarded)]
            controls = ports[0]["control_port"], ports[1]["control_port"]
            for control in controls:
                wait_until_ready(control)
            yield Served(engine, ports[0]["data_port"], ports[1]["data_port"], controls)
        for gateway in (plain, guarded):
            log = gateway.log.read_text()
            assert "ERROR" not in log and "Traceback" not in log, log[-3000:]


def _gateway(folder: Path, name: str, engine_port: int, **settings: object) -> Process:
    config = {
        "listen": {"host": "127.0.0.1", "port": 0, "control_port": 0},
        "replicas": [{"name": "r1", "url": f"http://127.0.0.1:{engine_port}", "dialect": "openai"}],
        "health": {"failures": 1_000_000},  # cases break the engine's connections on purpose
        **settings,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return Process(name, trunkline("serve", "--config", str(path), "--json"), folder / f"{name}.log")


def _cuts(case: Case) -> list[Cut]:
    size = sum(len(step) for step in case.send if isinstance(step, bytes))
    if not case.cuts:
        return [Cut.WHOLE]
    return list(Cut) if size <= _BYTES_AT_MOST else [Cut.WHOLE, Cut.JOINTS]


PLAYED = [(case, cut) for case in CASES for cut in _cuts(case)]


@pytest.mark.parametrize(("case", "cut"), PLAYED, ids=[f"{case.name}-{cut.value}" for case, cut in PLAYED])
def test_case(case: Case, cut: Cut, served: Served) -> None:
    port = served.guarded if case.guarded else served.plain
    assert play(case, cut, port, served.engine) == []


def test_there_are_many_cases_and_each_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 80


def test_an_answer_that_ends_with_its_connection_is_never_counted_as_cut(served: Served) -> None:
    """However head, body and end of the connection fall together."""
    shapes: list[tuple[Act, ...]] = [
        (answer_head() + OK_BODY, Do.CLOSE),
        (answer_head(), Do.PAUSE, OK_BODY, Do.CLOSE),
        (answer_head(), OK_BODY, Do.PAUSE, Do.CLOSE),
        (Drip(answer_head() + OK_BODY), Do.CLOSE),
        (answer_head(version=b"HTTP/1.0") + OK_BODY * 50_000, Do.CLOSE),
    ]
    for number in range(60):
        served.engine.begin(shapes[number % len(shapes)])
        with Client(served.plain) as client:
            client.write(post())
            assert client.answer(Reply(200)).whole
    with Client(served.controls[0]) as client:
        client.write(get(b"/receipts?limit=60", b"Connection: close"))
        receipts = json.loads(client.answer(Reply(200)).body)["receipts"]
    assert [receipt["outcome"] for receipt in receipts] == ["ok"] * 60


def test_nothing_of_this_was_an_error_inside(served: Served) -> None:
    """Runs last: the barrier of the data plane was never needed, and nothing is left open."""
    for control in served.controls:
        with Client(control) as client:
            client.write(get(b"/metrics", b"Connection: close"))
            page = client.answer(Reply(200)).body.decode()
        samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        assert float(samples["trunkline_internal_errors_total"]) == 0
        assert float(samples['trunkline_in_flight{rank="0",replica="r1"}']) == 0
