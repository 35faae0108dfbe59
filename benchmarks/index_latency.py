"""How long a match takes: from the moment it is due, beside a writer on the same event loop; and by itself, in large fleets.

`python -m benchmarks.index_latency`. The writer applies engine payloads the way a gateway does, 100,000 stored blocks a second
and as many removed ones; a match is due every 250 us, and half of that time the loop is busy with something else. Idle and beside
the writer are measured in turns in one run, at 64 holders and prompts of 64 blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import uvloop

from benchmarks.index_fill import BLOCK_TOKENS, FEATURES, MODEL, Chain, chains, filled
from events.apply import Applier
from events.encode import encode
from events.replay import Frames
from radix import Index, Namespace, Removed, Stored
from radix.match import Int32Array

HOLDERS, DEPTH_BLOCKS, PREFIXES = 64, 64, 32
FLEETS = (64, 256, 1024)
EVENT_BLOCKS, EVENTS, WINDOW = 64, 1024, 512  # blocks of an event; events prepared; how many of them are stored at a time
_SLICE_S = 0.002  # as `events.session` gives the loop back
_NAMESPACE = Namespace(MODEL)


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles in milliseconds. blocks_per_s: what the writer stored meanwhile."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    blocks_per_s: float = 0.0


class Writer:
    """Payloads of 64 engines, applied when they are due."""

    def __init__(self, index: Index, shared: Sequence[Chain], seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.stored_blocks = 0
        self._appliers = [Applier(index, holder, grace_s=60.0, clock=time.time) for holder in range(HOLDERS)]
        self._events: list[tuple[Applier, Frames, Frames]] = []
        for number, chain in enumerate(chains(chance, EVENTS, EVENT_BLOCKS)):
            parent = shared[number % len(shared)].hashes[-1]
            store = Stored(chain.hashes, parent, chain.tokens, BLOCK_TOKENS)
            payloads = [encode([event], ts=time.time(), rank=0) for event in (store, Removed(chain.hashes[::-1]))]
            frames = [Frames(number, payload) for payload in payloads]
            self._events.append((self._appliers[int(chance.integers(HOLDERS))], frames[0], frames[1]))
        self._at = 0

    async def write(self, blocks_per_s: float, seconds: float) -> None:
        """Keep to the rate as well as it goes."""
        start, first = time.perf_counter(), self.stored_blocks
        while (now := time.perf_counter()) < start + seconds:
            slice_end = now + _SLICE_S
            due = first + (now - start) * blocks_per_s
            while self.stored_blocks < due and time.perf_counter() < slice_end:
                self._step()
            await asyncio.sleep(0)

    def _step(self) -> None:
        applier, store, _ = self._events[self._at % EVENTS]
        applier.apply((store,))
        if self._at >= WINDOW:
            applier, _, remove = self._events[(self._at - WINDOW) % EVENTS]
            applier.apply((remove,))
        self._at += 1
        self.stored_blocks += EVENT_BLOCKS


async def from_due_time(
    index: Index, queries: Sequence[Int32Array], seconds: float, period_s: float, busy_s: float
) -> list[float]:
    """Seconds from due to answered, of a match every `period_s`, each followed by `busy_s` of other work."""
    taken: list[float] = []
    start = time.perf_counter()
    for number in range(int(seconds / period_s)):
        due = start + number * period_s
        while time.perf_counter() < due:  # noqa: ASYNC110 - a timer would be late by up to a millisecond
            await asyncio.sleep(0)
        index.match(_NAMESPACE, queries[number % len(queries)])
        done = time.perf_counter()
        taken.append(done - due)
        while time.perf_counter() < done + busy_s:
            pass
        await asyncio.sleep(0)
    return taken


def check(index: Index, queries: Sequence[Int32Array]) -> None:
    """What is measured is an answer: every holder has every prompt whole."""
    for query in queries:
        match = index.match(_NAMESPACE, query)
        assert match.known
        assert (match.depth == len(query)).all(), match.depth


def back_to_back(index: Index, queries: Sequence[Int32Array], count: int) -> list[float]:
    """Seconds of each of so many calls."""
    taken: list[float] = []
    for number in range(count):
        query = queries[number % len(queries)]
        before = time.perf_counter()
        index.match(_NAMESPACE, query)
        taken.append(time.perf_counter() - before)
    return taken


def latency(taken: Sequence[float], blocks_per_s: float = 0.0) -> Latency:
    """Percentiles of times in seconds."""
    p50, p99 = np.percentile(taken, (50, 99)) * 1e3
    return Latency(float(p50), float(p99), max(taken) * 1e3, blocks_per_s)


class Bench:
    """All measurements of one run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        chance = np.random.default_rng(args.seed)
        self._shared = chains(chance, PREFIXES, DEPTH_BLOCKS)
        self._queries = [chain.tokens for chain in self._shared]

    def beside_a_writer(self) -> dict[str, object]:
        """Idle and beside the writer, in turns; the medians of the rounds and whether the goal is met."""
        args = self._args
        index = filled(args.tree, HOLDERS, self._shared)
        check(index, self._queries)
        writer = Writer(index, self._shared, args.seed)
        gc.collect()
        gc.freeze()
        rounds: dict[str, list[Latency]] = {"idle": [], "writer": []}
        calls = latency(back_to_back(index, self._queries, 20_000))

        async def measure(rate: float) -> Latency:
            matches = from_due_time(index, self._queries, args.seconds, args.period_us * 1e-6, args.busy_us * 1e-6)
            if not rate:
                return latency(await matches)
            before, start = writer.stored_blocks, time.perf_counter()
            taken, _ = await asyncio.gather(matches, writer.write(rate, args.seconds))
            return latency(taken, (writer.stored_blocks - before) / (time.perf_counter() - start))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for _ in range(args.rounds):
                rounds["idle"].append(runner.run(measure(0.0)))
                rounds["writer"].append(runner.run(measure(args.rate)))
        gc.unfreeze()
        medians = {name: _middle(values) for name, values in rounds.items()}
        bound_ms = 2 * medians["idle"].p99_ms + 5
        return {
            "calls": asdict(calls),
            **{name: asdict(value) for name, value in medians.items()},
            "bound_ms": bound_ms,
            "met": medians["writer"].p99_ms <= bound_ms,
        }

    def fleets(self) -> list[dict[str, object]]:
        """The cost of one call by number of holders and what is in use."""
        shared, rows = self._shared[:8], []
        for feature in FEATURES:
            for holders in FLEETS:
                index = filled(self._args.tree, holders, shared, feature)
                check(index, self._queries[:8])
                gc.collect()
                count = 2_000
                back_to_back(index, self._queries[:8], count // 10)
                taken = latency(back_to_back(index, self._queries[:8], count))
                rows.append({"feature": feature, "holders": holders, "p50_us": taken.p50_ms * 1e3, "p99_us": taken.p99_ms * 1e3})
                self._report(
                    f"{feature:12} {holders:5} holders   p50 {taken.p50_ms * 1e3:9.1f} us   p99 {taken.p99_ms * 1e3:9.1f} us"
                )
        return rows

    def run(self) -> dict[str, object]:
        """Everything; tells as it goes."""
        due = self.beside_a_writer()
        for name in ("calls", "idle", "writer"):
            row = due[name]
            assert isinstance(row, dict)
            figures = "   ".join(f"{key[:-3]} {row[key]:8.3f} ms" for key in ("p50_ms", "p99_ms", "max_ms"))
            rate = f"   {row['blocks_per_s']:9,.0f} blocks/s" if name == "writer" else ""
            self._report(f"{name:8} {figures}{rate}")
        self._report(f"p99 beside the writer within 2x idle + 5 ms = {due['bound_ms']:.2f} ms: {'yes' if due['met'] else 'no'}")
        return {"tree": self._args.tree, "due": due, "fleets": self.fleets() if not self._args.no_fleets else []}

    def _report(self, line: str) -> None:
        print(line, file=sys.stderr if self._args.json else sys.stdout, flush=True)


def _middle(rounds: Sequence[Latency]) -> Latency:
    columns = zip(*(tuple(asdict(each).values()) for each in rounds), strict=True)
    return Latency(*(median(column) for column in columns))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m benchmarks.index_latency`; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.index_latency", description=__doc__, epilog="example: --seconds 10 --json"
    )
    parser.add_argument("--tree", choices=("compiled", "plain"), default="compiled")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round (default 5)")
    parser.add_argument("--rounds", type=int, default=3, help="idle and beside the writer (default 3)")
    parser.add_argument("--rate", type=float, default=100_000, help="blocks stored per second (default 100,000)")
    parser.add_argument("--period-us", type=float, default=250, help="between two matches (default 250)")
    parser.add_argument("--busy-us", type=float, default=125, help="of other work after each match (default 125)")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--core", type=int, help="pin to this core")
    parser.add_argument("--no-fleets", action="store_true", help="leave the table of fleets out")
    parser.add_argument("--json", action="store_true", help="last line of stdout: one JSON object")
    args = parser.parse_args(argv)
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    result = Bench(args).run()
    if args.json:
        print(json.dumps(result))
    due = result["due"]
    assert isinstance(due, dict)
    return 0 if due["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
