"""Does the index give memory back? 10 million blocks stored and taken away again: `python -m benchmarks.index_churn`.

64 holders store in rounds; each round's blocks leave in one of four ways: oldest first as engines evict, in no order, by a clear,
or with their holder. Resident memory is read before, at the peak and after; the first round, in which tables grow and pools fill
up, is reported by itself.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.index_fill import BLOCK_TOKENS, MODEL, VOCABULARY, apply, new_index
from benchmarks.index_peer import resident_bytes
from radix import Cleared, Index, Removed, Stored
from radix.core.compiled import CompiledTree

HOLDERS = 64
_MIB = 2**20
MAX_RATIO = 1.1  # after the churn, of what was there before it


@dataclass(frozen=True, slots=True)
class Stay:
    """Blocks of one event and who has them."""

    holder: int
    hashes: tuple[int, ...]


class Churn:
    """One index and what goes in and out of it. sizes: of events, in blocks."""

    def __init__(self, index: Index, seed: int, sizes: Sequence[int]) -> None:
        self.index = index
        self.blocks = 0
        self.peak_bytes = 0
        self._chance = np.random.default_rng(seed)
        self._sizes = sizes
        self._holders = [index.holder(f"r{number}", 0, model=MODEL) for number in range(HOLDERS)]
        self._ways: tuple[Callable[[list[Stay]], None], ...] = (
            self._oldest_first,
            self._in_no_order,
            self._by_clear,
            self._by_drop,
        )

    def round(self, number: int, live: int) -> None:
        """Store `live` blocks, read the memory, and take them away in this round's way."""
        stays = self._store(live)
        self.peak_bytes = max(self.peak_bytes, resident_bytes())
        self._ways[number % len(self._ways)](stays)
        left = self.index.stats()
        assert (left.blocks, left.nodes, left.orphans) == (0, 0, 0), left

    def _store(self, live: int) -> list[Stay]:
        """Half of the events go on from one before at the same holder, so that edges are cut and joined."""
        stays: list[Stay] = []
        last: dict[int, int] = {}
        stored = 0
        while stored < live:
            size = min(self._sizes[len(stays) % len(self._sizes)], live - stored)
            at = int(self._chance.integers(HOLDERS))
            hashes = tuple(self._chance.integers(1, 2**63, size).tolist())
            tokens = self._chance.integers(0, VOCABULARY, size * BLOCK_TOKENS).astype(np.int32)
            parent = last.get(at) if self._chance.random() < 0.5 else None
            apply(self.index, self._holders[at], [Stored(hashes, parent, tokens, BLOCK_TOKENS)])
            last[at] = hashes[int(self._chance.integers(size))]
            stays.append(Stay(at, hashes))
            stored += size
        self.blocks += stored
        return stays

    def _oldest_first(self, stays: list[Stay]) -> None:
        for stay in stays:
            apply(self.index, self._holders[stay.holder], [Removed(stay.hashes[::-1])])

    def _in_no_order(self, stays: list[Stay]) -> None:
        for holder in range(HOLDERS):
            hashes = np.array([name for stay in stays if stay.holder == holder for name in stay.hashes], np.uint64)
            self._chance.shuffle(hashes)
            for first, end in pairwise([*range(0, len(hashes), 16), len(hashes)]):
                apply(self.index, self._holders[holder], [Removed(tuple(hashes[first:end].tolist()))])

    def _by_clear(self, stays: list[Stay]) -> None:
        for holder in self._holders:
            apply(self.index, holder, [Cleared()])

    def _by_drop(self, stays: list[Stay]) -> None:
        for number, holder in enumerate(self._holders):
            self.index.drop(holder)
            self._holders[number] = self.index.holder(f"r{number}", 0, model=MODEL)


def settled_bytes(trimmed: Index | None = None) -> int:
    """Resident bytes once garbage is gone; with an index, once it and the C library have given their free memory back."""
    gc.collect()
    if trimmed is not None:
        trimmed.trim()  # as a gateway does now and then
        if sys.platform == "linux":
            ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident_bytes()


def run(args: argparse.Namespace, report: Callable[[str], None]) -> dict[str, object]:
    """All rounds; memory in MiB."""
    index = new_index(args.tree, CompiledTree(huge_pages=not args.small_pages))
    churn = Churn(index, args.seed, args.sizes)
    churn.round(0, HOLDERS * 64)  # what is made on first use
    before = settled_bytes(index)
    started = time.monotonic()
    afters: list[int] = []
    while churn.blocks < args.blocks:
        churn.round(len(afters), min(args.live, args.blocks - churn.blocks))
        afters.append(settled_bytes())
        figures = f"peak {churn.peak_bytes / _MIB:7.1f} MiB   after the round {afters[-1] / _MIB:7.1f} MiB"
        report(f"{churn.blocks / 1e6:6.2f} M blocks   {figures}")
    seconds = time.monotonic() - started
    trimmed = settled_bytes(index)
    return {
        "tree": args.tree,
        "blocks": churn.blocks,
        "seconds": round(seconds, 1),
        "before_mib": round(before / _MIB, 1),
        "peak_mib": round(churn.peak_bytes / _MIB, 1),
        "first_round_mib": round(afters[0] / _MIB, 1),
        "after_mib": round(afters[-1] / _MIB, 1),
        "trimmed_mib": round(trimmed / _MIB, 1),
        "ratio": round(afters[-1] / before, 3),
        "trimmed_ratio": round(trimmed / before, 3),
        "left_of_growth": round((afters[-1] - before) / max(churn.peak_bytes - before, 1), 4),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m benchmarks.index_churn`; 1 when memory is not back at its start."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.index_churn", description=__doc__, epilog="example: --blocks 1000000 --json"
    )
    parser.add_argument("--tree", choices=("compiled", "plain"), default="compiled")
    parser.add_argument("--blocks", type=int, default=10_000_000, help="in all (default 10 M)")
    parser.add_argument("--live", type=int, default=1_000_000, help="at a time (default 1 M)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 64, 1, 200], help="blocks per event, in turns")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--small-pages", action="store_true", help="do not ask for huge pages")
    parser.add_argument("--json", action="store_true", help="last line of stdout: one JSON object")
    args = parser.parse_args(argv)
    if not Path("/proc/self/statm").exists():
        print("error: resident memory is read from /proc/self/statm, which is not there", file=sys.stderr)
        return 2
    result = run(args, lambda line: print(line, file=sys.stderr if args.json else sys.stdout, flush=True))
    print(json.dumps(result) if args.json else "\n".join(f"{name:16} {value}" for name, value in result.items()))
    return 0 if float(str(result["trimmed_ratio"])) <= MAX_RATIO else 1


if __name__ == "__main__":
    raise SystemExit(main())
