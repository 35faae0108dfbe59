"""`make bench-index`: the compiled tree against Dynamo's RadixTree, both called from Python, pinned to one core, in turns.

CPU time per unit of work, medians; the ratios are ours over theirs in rate (bytes: in size), each the worst cell. Unpinned, the
peer's hop to its own thread crosses cores and flatters us.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.index_ingest import WAKE_UP, Payloads
from benchmarks.index_ours import Ours
from benchmarks.index_text import COUNTED, HOLDERS, PUBLISHED, rates
from benchmarks.index_workload import CELL_BLOCKS

PEER = "ai-dynamo-runtime==1.6.1"
WORKERS = (8, 64, 256)
SIZES = (8, 64, 512, 2000)
DEPTHS = (8, 64, 512, 2000)
FORMS = ("best", "masks", "dict")
SEED = 11
TEXT_KEYS = 40_000


class Child:
    """A process that answers calls, one JSON line each."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the peer."""
        return json.loads(self.say(json.dumps([name, *arguments])))

    def say(self, line: str) -> str:
        """Send one line and wait for one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a benchmark process ended with status {self._process.wait()}")
        return answer

    def end(self) -> None:
        """Let it finish."""
        self._process.communicate()


class Bench:
    """The cells, their medians and the ratios."""

    def __init__(self, peer_python: str, rounds: int, report: Callable[[str], None]) -> None:
        self._peer_python = peer_python
        self._rounds = rounds
        self._report = report
        self.worst: dict[str, float] = {}
        self.cells: list[dict[str, Any]] = []

    def run(self) -> None:
        """All of it."""
        peer = self._start_peer()
        for workers in WORKERS:
            for size in SIZES:
                self._cell(peer, workers, size)
        peer.end()
        for size in SIZES[:3]:
            self._memory(size)
        self._many_holders()
        self.ingest()
        self.text()

    def _start_peer(self) -> Child:
        return Child([self._peer_python, "-m", "benchmarks.index_peer"])

    def _cell(self, peer: Child, workers: int, size: int) -> None:
        sides = {"peer": peer.call, "hp": _caller(Ours(huge_pages=True)), "4k": _caller(Ours(huge_pages=False))}
        for call in sides.values():
            call("prepare", SEED, workers, size, CELL_BLOCKS, True)
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(self._rounds):
            for side, call in sides.items():
                call("start", True)
                times.setdefault((side, "store"), []).append(call("apply", "store"))
                if size == SIZES[-1] and side != "4k":
                    for depth in DEPTHS:
                        for form in FORMS:
                            spent = call("match", form, depth, 8 if depth < 500 else 3)
                            times.setdefault((side, f"{form} {depth}"), []).append(spent)
                times.setdefault((side, "remove"), []).append(call("apply", "remove"))
        medians = {key: median(values) for key, values in times.items()}
        blocks = max(CELL_BLOCKS // size, 1) * size
        for (side, what), spent in medians.items():
            if side == "peer":
                continue
            ratio = medians["peer", what] / spent
            if what in {"store", "remove"}:
                self._note(f"{what}_{side}", ratio, workers, size, blocks / spent / 1e6, "M blocks/s")
            else:
                form, depth = what.split()[0], int(what.split()[1])
                reach = "shallow" if depth <= 64 else "deep"
                name = f"match_{reach}" if form == "best" else f"match_{form}_{reach}"
                self._note(name, ratio, workers, depth, 1e-3 / spent, "k/s")

    def _many_holders(self) -> None:
        """Matches at 1,024 holders against those at 64, ours alone."""
        spent: dict[int, dict[int, list[float]]] = {64: {}, 1024: {}}
        sides = {workers: Ours() for workers in spent}
        for workers, ours in sides.items():
            ours.prepare(SEED, workers, SIZES[-1], CELL_BLOCKS, True)
            ours.start(True)
            ours.apply("store")
        for _ in range(self._rounds):
            for workers, ours in sides.items():
                for depth in DEPTHS:
                    spent[workers].setdefault(depth, []).append(ours.match("best", depth, 8))
        for depth in DEPTHS:
            few, many = median(spent[64][depth]), median(spent[1024][depth])
            self._note("match_1024_to_64", few / many, 1024, depth, 1e-3 / many, "k/s")

    def ingest(self) -> None:
        """Event payloads into the tree against msgspec's decoding alone: with one payload in a call, and by streams, too."""
        for size in SIZES[:3]:
            payloads = Payloads(SEED, 64, size, CELL_BLOCKS)
            times: dict[str, list[float]] = {}
            for _ in range(self._rounds):
                times.setdefault("typed", []).append(payloads.decode(True))
                times.setdefault("untyped", []).append(payloads.decode(False))
                times.setdefault("ingest", []).append(payloads.ingest(WAKE_UP))
                times.setdefault("ingest_single", []).append(payloads.ingest(1))
                times.setdefault("follow", []).append(payloads.follow(WAKE_UP))
                times.setdefault("follow_single", []).append(payloads.follow(1))
            medians = {key: median(values) for key, values in times.items()}
            theirs = min(medians["typed"], medians["untyped"])
            for what in ("ingest", "ingest_single", "follow", "follow_single"):
                name, spent = f"{what}_n{min(size, 64)}", medians[what]
                self._note(name, theirs / spent, 64, size, payloads.blocks / spent / 1e6, "M blocks/s")

    def text(self) -> None:
        """Texts into our own history against a published rate, which was measured on another machine."""
        found = rates(2048, TEXT_KEYS, self._rounds)
        for name in COUNTED:
            self._note("text_insert", found[name] / PUBLISHED, HOLDERS, 2048, found[name] / 1e3, f"k/s {name}")

    def _memory(self, size: int) -> None:
        workers, blocks = 64, 1_000_000
        peer = self._start_peer()
        peer.call("prepare", SEED, workers, size, blocks, False)
        theirs = peer.call("grow") / blocks
        peer.end()
        child = Child([sys.executable, "-m", "benchmarks.index_ours"])
        ours = json.loads(child.say(json.dumps([SEED, workers, size, blocks]))) / blocks
        child.end()
        self._note("bytes_per_block", ours / theirs, workers, size, ours, "bytes/block", worst=max)

    def _note(
        self,
        name: str,
        ratio: float,
        workers: int,
        size: int,
        value: float,
        unit: str,
        worst: Callable[[float, float], float] = min,
    ) -> None:
        self.worst[name] = worst(self.worst.get(name, ratio), ratio)
        self.cells.append({"name": name, "workers": workers, "size": size, "value": value, "unit": unit, "ratio": ratio})
        self._report(f"{name:22} W={workers:<4} N={size:<5} ours {value:10.2f} {unit:12} ratio {ratio:6.2f}")


def _caller(ours: Ours) -> Callable[..., Any]:
    def call(name: str, *arguments: Any) -> Any:
        return getattr(ours, name)(*arguments)

    return call


def install_peer(folder: Path) -> str:
    """Make an environment with the peer in it; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEER], check=True)
    return python


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m benchmarks.index`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.index", description=__doc__, epilog="example: make bench-index ARGS=--json"
    )
    parser.add_argument("--peer-python", help=f"a Python that has {PEER}; else one is made in a temporary folder")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each cell (default 5)")
    parser.add_argument("--core", type=int, default=0, help="the core both sides are pinned to (default 0)")
    parser.add_argument("--json", action="store_true", help="last line of stdout: one JSON object with `ratios` and `cells`")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        peer_python = args.peer_python or install_peer(Path(folder) / "peer")
        os.sched_setaffinity(0, {args.core})
        stream = sys.stderr if args.json else sys.stdout
        bench = Bench(peer_python, args.rounds, lambda line: print(line, file=stream, flush=True))
        bench.run()
    for name, ratio in bench.worst.items():
        print(f"{name:22} worst {ratio:6.2f}", file=stream)
    if args.json:
        print(json.dumps({"ratios": bench.worst, "cells": bench.cells}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
