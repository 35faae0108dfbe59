"""`trunkline events` as it is typed, in this process."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from gateway.cli import main
from tests.events.recorded import DATA, RECORDED, expected
from tests.fakes.wire import batch, removed

VECTORS = Path(os.environ.get("TRUNKLINE_VECTORS", DATA.parents[1].parent / "shared" / "vectors"))


def rows(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> list[dict]:
    assert main(["events", *args]) == status
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_decode_prints_one_line_for_each(capsys: pytest.CaptureFixture[str], engine: str) -> None:
    """FC-06: every recorded message, in order."""
    wanted = [expected(line) for line in RECORDED if line["engine"] == engine]
    printed = rows(capsys, "decode", str(DATA / f"{engine}_kv_events.jsonl"))
    assert [(row["rank"], row["error"], row["skipped"]) for row in printed] == [(want["dp_rank"], None, 0) for want in wanted]
    hashes = [[event["hashes"] for event in row["events"]] for row in printed]
    assert hashes == [[event.get("_hash64", []) for event in want["events"]] for want in wanted]


def test_decode_says_what_is_wrong_with_a_line_and_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-07: no JSON, no hex, no batch, unknown events; from stdin."""
    good = {"payload_hex": batch(removed(-1), ["BlockPinned"], rank=None).hex(), "seq_hex": "07"}
    lines = [b"{", b'{"payload_hex": "zz"}', b"[]", b'{"payload_hex": "c1"}', b"", json.dumps(good).encode()]

    class Stdin:
        buffer = io.BytesIO(b"\n".join(lines))

    monkeypatch.setattr("sys.stdin", Stdin)
    *bad, last = rows(capsys, "decode", "-")
    assert len(bad) == 4
    assert all(row["error"] and row["events"] == [] for row in bad)
    assert (last["rank"], last["error"], last["skipped"]) == (None, None, 1)
    assert last["events"][0] == {
        **{"type": "removed", "hashes": ["f" * 16], "tier": "device", "group": 0},
        **dict.fromkeys(("parent", "tokens", "block_tokens", "adapter")),
    }


def test_decode_reads_a_polled_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One line for each rank."""
    (row,) = rows(capsys, "decode", "--polled", str(DATA / "trtllm_polled_events.json"))
    told = [(event["type"], event["tier"]) for event in row["events"]]
    assert told == [("stored", "device"), ("stored", "host"), ("removed", "device"), ("cleared", None), ("removed", "device")]
    (tmp_path / "x").write_text("nothing")
    (bad,) = rows(capsys, "decode", "--polled", str(tmp_path / "x"))
    assert "answer is not JSON" in bad["error"]


@pytest.mark.parametrize("command", ["decode", "score"])
def test_a_file_that_is_not_there_is_wrong_use(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main(["events", command, "/nowhere/at/all"]) == 2
    assert "cannot read /nowhere/at/all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is list"),
        ('{"kind": "request", "id": "a", "body": 5}', "line 1 (request) cannot be used"),
    ],
)
def test_a_capture_that_cannot_be_used_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "c").write_text(line)
    assert main(["events", "score", str(tmp_path / "c")]) == 2
    assert why in capsys.readouterr().err


WANTED = {
    "vllm_live_0_32_capture.jsonl": {
        "one request at a time, state known (incl. n=2)": (211, 211, 211),
        "sent together": (32, 41, 41),
        "lists of prompts (last prompt)": (3, 3, 3),
        "after an unrecoverable gap, index dropped": (4, 4, 4),
        "subscriber down": (7, 7, 8),
        "subscriber up, replay not asked yet": (1, 1, 2),
        "first request after a reset of an idle engine": (0, 0, 1),
        "prompt_logprobs / echo with logprobs": (0, 0, 3),
        "scenario 14": (9, 9, 10),
    },
    "vllm_live_0_32_smollm2_capture.jsonl": {
        "one request at a time, state known (incl. n=2)": (117, 118, 118),
        "sent together": (4, 10, 10),
        "lists of prompts (last prompt)": (3, 3, 3),
        "subscriber down": (2, 2, 3),
        "subscriber up, replay not asked yet": (1, 1, 1),
        "first request after a reset of an idle engine": (0, 0, 1),
        "prompt_logprobs / echo with logprobs": (0, 0, 3),
        "scenario 14": (9, 9, 10),
    },
}


@pytest.mark.parametrize("name", WANTED)
def test_events_alone_explain_what_a_live_engine_reported(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """FC-08, FC-09, FC-20, edge cases 32, 33, 40: every request whose state can be known is predicted to the token."""
    if not (VECTORS / name).exists():
        pytest.skip(f"{VECTORS / name} is not there (TRUNKLINE_VECTORS names the folder)")
    (row,) = rows(capsys, "score", str(VECTORS / name), "--json")
    classes = {kind: (tally["exact"], tally["in_range"], tally["total"]) for kind, tally in row["classes"].items()}
    assert classes == WANTED[name]
    assert [row["exact"], row["in_range"], row["total"]] == [sum(column) for column in zip(*classes.values(), strict=True)]
    assert len(row["misses"]) == row["total"] - row["exact"]
    assert {miss["reason"] for miss in row["misses"]} <= classes.keys()
