"""`simulate compare`: table, JSON, picture, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.cli import main


def compare(*args: object) -> int:
    return main(["compare", *map(str, args)])


def test_the_table_names_every_policy_and_what_was_done_to_the_trace(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tiny_path, "--replicas", 2) == 0
    out = capsys.readouterr().out
    for text in ("cost", "least_loaded", "round_robin", "goodput", "spread uniformly over steps of 3 s (seed 1)"):
        assert text in out
    assert "…" not in out


def test_json_is_one_object_with_seed_trace_and_settings(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outs = []
    for _ in range(2):
        assert compare(tiny_path, "--json", "--seed", 3, "--policies", "round_robin, cost", "--kv-tokens", 0) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    report = json.loads(outs[0].splitlines()[-1])
    assert list(report["policies"]) == ["round_robin", "cost"]
    assert (report["seed"], report["settings"]["replicas"], report["settings"]["engine"]["kv_tokens"]) == (3, 8, None)
    assert report["trace"]["requests"] == 9 and len(report["trace"]["sha256"]) == 64
    assert report["policies"]["cost"]["hit_tokens"] + report["policies"]["cost"]["computed_tokens"] == 18_149


def test_two_processes_write_the_same_bytes(tiny_path: Path) -> None:
    """FC-66: nothing hangs on the order of a set or the salt of a hash."""
    command = [sys.executable, "-m", "simulations", "compare", str(tiny_path), "--json", "--replicas", "3"]
    outs = [
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": salt}).stdout
        for salt in ("1", "2")
    ]
    assert outs[0] == outs[1] != b""


def test_no_spread_leaves_arrivals_alone(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tiny_path, "--json", "--no-spread", "--requests", 5, "--speed", 2) == 0
    notes = json.loads(capsys.readouterr().out)["trace"]["notes"]
    assert notes == ["first 5 of 9 requests", "arrivals x2 as fast as recorded"]


def test_the_plot_is_a_picture_and_the_same_every_time(tiny_path: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.png", "b.png")]
    for path in paths:
        assert compare(tiny_path, "--json", "--plot", path) == 0
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(b"\x89PNG") and len(first) > 10_000
    assert first == second


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--policies", "cost,best"), "policy 'best' is not one of approximate, cost"),
        (("--replicas", 0), "replicas must be at least 1, got 0"),
        (("--speed", 0), "speed must be a positive number, got 0"),
        (("--kv-tokens", -1), "kv_tokens must be positive, got -1"),
        (("--kv-tokens", 5_000), "request 6 needs 18 KV blocks"),
        (("--requests", 0), "at least 1 request, got 0"),
        (("--plot", "/nowhere/at/all.png"), "there is no folder /nowhere/at"),
        (("--plot", "a.doc"), "--plot writes .png, .pdf or .svg, got a.doc"),
        (("--replicas", "many"), "--replicas"),
    ],
)
def test_wrong_use_is_status_2_and_named(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[object, ...], complaint: str
) -> None:
    assert compare(tiny_path, *args) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.out == ""


def test_without_matplotlib_the_extra_is_named_before_anything_runs(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert compare(tiny_path, "--plot", tmp_path / "a.png") == 2
    assert "trunkline[simulate]" in capsys.readouterr().err


def test_a_missing_trace_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path / "none.jsonl") == 2
    assert "none.jsonl: cannot be read" in capsys.readouterr().err


def test_importing_the_room_brings_no_torch_and_no_matplotlib() -> None:
    code = "import sys, simulations.cli; print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
