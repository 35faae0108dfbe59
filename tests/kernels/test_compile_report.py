"""The compile gate: what ships compiles for Hopper without spills and on its matrix unit; no GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.compile_report import SHARED_LIMIT_BYTES, main

ROOT = Path(__file__).parents[2]

Row = dict[str, int | str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """The report of a process of its own, which compiles where the tests interpret; from an empty compiler cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "-W", "error", "-m", "kernels.compile_report", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == ""
    assert done.returncode == 0
    return {row["name"]: row for row in json.loads(done.stdout)["kernels"]}


def test_every_kernel_is_in_the_report(report: dict[str, Row]) -> None:
    kinds = {"store_kv", "decode bf16", "decode fp16", "decode fp32", "decode merge", "prefill bf16", "prefill fp32"}
    assert {kind for kind in kinds if any(name.startswith(kind) for name in report)} == kinds


def test_no_shipped_configuration_spills_registers(report: dict[str, Row]) -> None:
    assert {name: row["stack_bytes"] for name, row in report.items() if row["stack_bytes"] != 0} == {}


def test_shared_memory_stays_under_the_limit(report: dict[str, Row]) -> None:
    assert all(0 <= int(row["shared_bytes"]) <= SHARED_LIMIT_BYTES for row in report.values())
    assert int(report["prefill bf16 D128 G4"]["shared_bytes"]) > 64 * 128 * 2  # at least one tile of keys: it is being read


def test_prefill_runs_on_the_warp_group_matrix_unit(report: dict[str, Row]) -> None:
    prefills = {name: row for name, row in report.items() if name.startswith("prefill bf16")}
    assert prefills
    assert all(row["wgmma"] for row in prefills.values())


def test_decode_loads_asynchronously_and_multiplies_on_the_matrix_unit(report: dict[str, Row]) -> None:
    decodes = {name: row for name, row in report.items() if name.startswith(("decode bf16", "decode fp16"))}
    assert decodes
    assert all(row["mma"] and row["async_copies"] for row in decodes.values())


def test_decode_leaves_registers_for_four_programs_on_a_multiprocessor(report: dict[str, Row]) -> None:
    assert all(int(row["registers"]) <= 128 for name, row in report.items() if name.startswith("decode"))


def test_the_command_says_why_it_can_not_compile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main([]) == 2
    assert "TRITON_INTERPRET" in capsys.readouterr().err
