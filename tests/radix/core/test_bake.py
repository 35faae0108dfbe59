"""An image bakes machine code on one CPU and finds it again on others: where the names of the CPU are fixed, and only there."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
FIXED = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2"}
OTHER = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": "+sse4.2"}


def process(folder: Path, environment: dict[str, str], host: str | None = None) -> dict[str, Any]:
    """A new process with these names, on a machine that has, or pretends to have, some CPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.radix.core.baked", str(folder), *([host] if host else [])],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names CPUs of x86-64")
def test_code_baked_under_a_fixed_cpu_name_is_found_on_another_cpu(tmp_path: Path) -> None:
    assert process(tmp_path, FIXED)["whole"] is False
    assert process(tmp_path, FIXED) == {"compiled": 0, "whole": True}
    assert process(tmp_path, FIXED, host="skylake") == {"compiled": 0, "whole": True}
    other = process(tmp_path, OTHER)
    assert other["compiled"] > 0
    assert other["whole"] is False


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names CPUs of x86-64")
def test_code_baked_without_one_is_not(tmp_path: Path) -> None:
    """Why an image has to fix the names: code is kept under the CPU it was compiled for."""
    assert process(tmp_path, {})["compiled"] > 0
    assert process(tmp_path, {}) == {"compiled": 0, "whole": True}
    moved = process(tmp_path, {}, host="skylake")
    assert moved["compiled"] > 0
    assert moved["whole"] is False
