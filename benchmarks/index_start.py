"""How long the compiled index takes to be there: `python -m benchmarks.index_start`, about a minute.

Cold, from a warm cache, and from a cache that was baked for CPUs it has not seen, as an image does it: NUMBA_CPU_NAME and
NUMBA_CPU_FEATURES fixed, `python -m radix.core.bake` once, and then a process that takes its machine for another one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

FIXED = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2"}
UNSEEN = "skylake-avx512"
MAX_WARM_S = 1.0

_PROGRAM = """
import json, sys, time
began = time.perf_counter()
import llvmlite.binding as host
import numba
from numba.core import event
imported = time.perf_counter()
if len(sys.argv) > 1:
    features = type(host.get_host_cpu_features())({"sse2": True})
    host.get_host_cpu_name, host.get_host_cpu_features = lambda: sys.argv[1], lambda: features
from radix.core.compiled import CompiledTree
from radix.core.entries import load
with event.install_recorder("numba:compile") as recorder:
    load()
loaded = time.perf_counter()
CompiledTree(huge_pages=False)
ready = time.perf_counter()
compiled = sum(each.is_start for _, each in recorder.buffer)
print(json.dumps({"numba_s": imported - began, "load_s": loaded - imported, "tree_s": ready - loaded, "compiled": compiled}))
"""


def start(cache: Path, environment: dict[str, str], host: str | None = None) -> dict[str, float]:
    """One process; seconds, and how many functions it had to compile."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *([host] if host else [])],
        cwd=Path(__file__).parents[1],
        env={**kept, "TRUNKLINE_CACHE": str(cache), **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def bake(cache: Path, environment: dict[str, str]) -> None:
    """What an image's build runs."""
    command = [sys.executable, "-m", "radix.core.bake"]
    where = {**os.environ, "TRUNKLINE_CACHE": str(cache), **environment}
    subprocess.run(command, cwd=Path(__file__).parents[1], env=where, check=True, stderr=subprocess.DEVNULL)


def middle(cache: Path, environment: dict[str, str], rounds: int, host: str | None = None) -> dict[str, float]:
    """Medians over some processes; of `compiled` the largest."""
    found = [start(cache, environment, host) for _ in range(rounds)]
    figures = {name: round(median(each[name] for each in found), 3) for name in ("numba_s", "load_s", "tree_s")}
    return {**figures, "compiled": max(each["compiled"] for each in found)}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 1 when a warm start takes too long or compiles anything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index_start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="warm starts of each kind (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        own, image = Path(folder) / "own", Path(folder) / "image"
        rows = {"cold": start(own, {}), "warm": middle(own, {}, args.rounds)}
        bake(image, FIXED)
        rows["baked"] = middle(image, FIXED, args.rounds)
        rows["baked, unseen CPU"] = middle(image, FIXED, args.rounds, UNSEEN)
        rows["not fixed, unseen CPU"] = start(own, {}, UNSEEN)
    warm = [rows[name] for name in ("warm", "baked", "baked, unseen CPU")]
    met = all(row["numba_s"] + row["load_s"] + row["tree_s"] < MAX_WARM_S and not row["compiled"] for row in warm)
    if args.json:
        print(json.dumps({"rows": rows, "met": met}))
    else:
        for name, row in rows.items():
            print(f"{name:22}" + "   ".join(f"{key} {value:8.3f}" for key, value in row.items()))
        print(f"warm within {MAX_WARM_S:g} s and nothing compiled: {'yes' if met else 'no'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
