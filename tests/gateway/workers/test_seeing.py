"""What is to be seen of a gateway of several processes: one trace, one log, and answers of whichever worker is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from tests.gateway.workers.fleet import Fleet, until

pytestmark = [pytest.mark.xdist_group("workers"), pytest.mark.slow]

TEXT = "The same words for every worker, some of them twice, some of them twice. "


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text("an older one\n")
    return path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, trace: Path) -> Iterator[Fleet]:
    more = {"record": {"file": str(trace), "block_tokens": 4}, "request_log": "-"}
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), more=more)
    try:
        until(fleet.is_live, "everything to be live")
        yield fleet
    finally:
        fleet.close()


def test_all_workers_write_one_trace_under_one_key_and_one_log(fleet: Fleet, trace: Path) -> None:
    answers = fleet.by_worker(TEXT)
    logged = [json.loads(fleet.line())]
    while {row["request_id"].partition("-")[0] for row in logged} != set(answers):
        logged.append(json.loads(fleet.line()))
    assert {row["outcome"] for row in logged} == {"ok"}
    rows: list[dict[str, Any]] = []

    def written() -> bool:
        rows[:] = [json.loads(line) for line in trace.read_text().splitlines()]
        return len(rows) >= len(logged)

    until(written, "the trace to be written")
    full = {tuple(row["hash_ids"][: row["input_length"] // 4]) for row in rows}
    assert len(full) == 1  # both workers call the same blocks by the same ids
    assert trace.with_name("trace.jsonl.1").read_text() == "an older one\n"
    samples = fleet.metrics()
    assert samples['trunkline_lines_written_total{file="record"}'] >= len(logged)


def test_a_worker_explains_and_examines_for_all(fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{fleet.control_port}"
    home = fleet.chat(TEXT).replica
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": TEXT}]}))

    def explained() -> Any:
        assert main(["explain", str(body), "--gateway", url, "--json"]) == 0
        row = json.loads(capsys.readouterr().out)
        return row if row["decision"]["predicted_cached_tokens"] else None

    row = until(explained, "the blocks to be announced")
    assert (row["decision"]["replica"], row["decision"]["reason"]) == (home, "credit")
    status = main(["doctor", "--gateway", url, "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [one for one in findings if one["severity"] != "note"] == []
    assert status == 0
    assert main(["top", "--gateway", url, "--once"]) == 0
    assert "r0" in capsys.readouterr().out
