"""What open streams cost each gateway in memory; a part of the proxy benchmark, with fresh processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.processes import pinned
from benchmarks.proxy_gateways import LOAD_CORE, OURS, SMG, Fleet, Gateway, wait_until_ready

WORKERS = "trunkline, one of two workers"
_COUNTS = (500, 5000)
_QUICK_COUNTS = (100, 500)
_MIB_IN_KIB = 1024


def measure(tokenizer: str, smg: Path, *, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Steps of each gateway: streams that run, those refused, and resident memory with them open."""
    counts = _QUICK_COUNTS if quick else _COUNTS
    result = {}
    starts: list[tuple[str, Callable[[Fleet], Gateway], int]] = [
        (OURS, lambda fleet: fleet.ours(), 1),
        (SMG, lambda fleet: fleet.smg(smg), 1),
        (WORKERS, lambda fleet: fleet.ours("--workers", "2"), 2),
    ]
    for name, start, processes in starts:
        say(f"open streams: {name}")
        with ExitStack() as stack:
            gateway = start(Fleet(stack, tokenizer, events=True))
            wait_until_ready([gateway])
            result[name] = _open(gateway, [count * processes for count in counts])
    return result


def ratios(memory: dict[str, Any]) -> dict[str, float]:
    """Ours over smg's: growth for each open stream, all memory with the most streams open, and that of one worker alone.

    smg refuses streams above a limit of its own: its growth is that of the streams it took, its memory what it had with those.
    """
    ours, theirs, workers = (memory[name]["steps"] for name in (OURS, SMG, WORKERS))
    name = f"rss_{ours[-1]['streams'] + ours[-1]['refused']}"
    found = {name: ours[-1]["rss_mib"] / theirs[-1]["rss_mib"]}
    if growth_kib(theirs) > 0:
        found["rss_per_stream"] = growth_kib(ours) / growth_kib(theirs)
    if workers[-1]["holders_rss_mib"]:
        found[f"{name}_worker"] = mean(workers[-1]["holders_rss_mib"]) / theirs[-1]["rss_mib"]
    return found


def growth_kib(steps: list[dict[str, Any]]) -> float:
    """KiB for each stream between the last two counts, of those that ran."""
    before, after = steps[-2:]
    streams = after["streams"] - before["streams"]
    return float((after["rss_mib"] - before["rss_mib"]) * _MIB_IN_KIB / streams) if streams > 0 else 0.0


def _open(gateway: Gateway, counts: list[int]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.open_streams", "--url", gateway.url, "--pid", str(gateway.pid)]
    command += ["--counts", ",".join(map(str, counts))]
    done = subprocess.run(pinned(command, LOAD_CORE), stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report
