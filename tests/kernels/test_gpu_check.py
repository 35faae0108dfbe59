"""The GPU check, run on the CPU with small shapes and a stopped clock: its code is right before a GPU ever sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels import gpu_check, roofs
from kernels.gpu_check import Accuracy, Shape, Timing

CPU = torch.device("cpu")


def one_millisecond(run: Callable[[], object]) -> float:
    run()
    return 1.0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and roofs that a CPU can do."""
    monkeypatch.setattr(roofs, "COPY_ELEMENTS", 1_000_000)
    monkeypatch.setattr(roofs, "MATMUL_SIDE", 100)
    monkeypatch.setattr(gpu_check, "CORRECTNESS", [Shape(2, 40, 1, 6, 2, 64), Shape(1, 5, 9, 4, 2, 64, torch.float32)])
    monkeypatch.setattr(gpu_check, "DECODES", [Shape(2, 19, 1, 6, 2, 64)])
    monkeypatch.setattr(gpu_check, "PREFILLS", [Shape(1, 0, 20, 4, 2, 64), Shape(1, 16, 4, 4, 2, 64)])
    monkeypatch.setattr(gpu_check, "STORES", [Shape(1, 0, 40, 4, 2, 64)])


@pytest.mark.usefixtures("small")
def test_the_whole_check_runs(capsys: pytest.CaptureFixture[str]) -> None:
    result = gpu_check.check(CPU, one_millisecond, limit_s=1e9)
    assert result["ok"] is True
    assert result["roofs"] == {"copy_gb_s": 4.0, "matmul_tflop_s": 0.002}
    timings = json.loads(json.dumps(result))["timings"]
    assert [(row["name"].split()[0], row["roof"]) for row in timings] == [
        ("store_kv", "copy"),
        ("decode", "copy"),
        ("prefill", "matmul"),
        ("prefill", "matmul"),
    ]
    assert timings[1]["faster_than"] == {"flash": 1.0, "cudnn": None}
    assert timings[3]["faster_than"] == {}
    printed = capsys.readouterr()
    assert printed.out.count("ok  ") == 3
    assert "cudnn does not run" in printed.err


@pytest.mark.usefixtures("small")
def test_a_wrong_kernel_fails_the_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = gpu_check.decode
    monkeypatch.setattr(gpu_check, "decode", lambda *args: tuple(t + 0.1 for t in right(*args)))
    monkeypatch.setattr(gpu_check, "store_kv", lambda *args: None)
    assert gpu_check.check(CPU, one_millisecond, limit_s=1e9)["ok"] is False
    assert capsys.readouterr().out.count("FAIL") == 2


@pytest.mark.usefixtures("small")
def test_no_timing_starts_after_the_limit() -> None:
    result = gpu_check.check(CPU, one_millisecond, limit_s=-1.0)
    assert (result["timings"], result["timings_skipped"]) == ([], 4)


def test_bytes_and_operations_are_counted_by_hand() -> None:
    decode = Shape(2, 9, 1, 4, 2, 64)
    assert decode.bytes_moved == 2 * (10 * 2 * 64 * 2 * 2) + 2 * 4 * (2 * 64 * 2 + 4)
    prefill = Shape(1, 5, 3, 4, 2, 64)
    assert prefill.flop == 4 * 64 * 4 * (6 + 7 + 8)


def test_a_result_that_is_not_a_number_is_not_ok() -> None:
    assert Accuracy("x", 0.01, 0.02).ok
    assert not Accuracy("x", float("nan"), 0.02).ok


def test_lines_leave_out_backends_that_did_not_run() -> None:
    line = gpu_check.to_line(Timing("decode x", 0.05, "copy", 0.815, {"flash": 1.5, "cudnn": None}))
    assert line.strip() == "decode x: 50.0 us, 82% of copy, 1.50x as fast as torch flash"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is about a machine without a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--out", str(tmp_path / "out.json")]) == 1
    assert "sees no CUDA device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
