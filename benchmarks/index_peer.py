"""Dynamo's RadixTree under the index benchmark: a child process that does one named piece of work per line of input.

Runs in an environment of its own that has `ai-dynamo-runtime`; needs nothing else of this project than `index_workload`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import index_workload as work


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Peer:
    """One tree and the prepared inputs of the cell at hand."""

    def __init__(self) -> None:
        from dynamo._core import RadixTree  # type: ignore[import-not-found]  # only the peer's environment has it

        self.make = RadixTree
        self.tree: Any = None
        self.number = 0

    def _stored(self, parent: int | None, hashes: list[int]) -> bytes:
        self.number += 1
        blocks = [{"block_hash": block, "tokens_hash": block} for block in hashes]
        return json.dumps({"event_id": self.number, "data": {"stored": {"parent_hash": parent, "blocks": blocks}}}).encode()

    def prepare(self, seed: int, workers: int, size: int, blocks: int, shared: bool) -> None:
        """Build a cell's inputs."""
        self.prefixes = work.prefixes(seed)
        self.events = work.events(seed, workers, size, blocks, shared=shared)
        self.workers = workers
        self.stores = []
        self.removals = []
        for event in self.events:
            parent = self.prefixes[event.prefix][-1] if event.prefix is not None else None
            self.stores.append((event.worker, self._stored(parent, event.hashes)))
            data = {"event_id": self.number, "data": {"removed": {"block_hashes": event.hashes[::-1]}}}
            self.removals.append((event.worker, json.dumps(data).encode()))

    def start(self, shared: bool) -> None:
        """A new tree, with the prefixes in it."""
        self.tree = None
        gc.collect()
        self.tree = self.make()
        if shared:
            for prefix in self.prefixes:
                data = self._stored(None, prefix)
                for worker in range(self.workers):
                    self.tree.apply_event(worker, data)
        self.tree.find_matches([1])  # its thread has caught up

    def apply(self, which: str) -> float:
        """CPU seconds of all stores or all removals."""
        apply_event = self.tree.apply_event
        inputs = self.stores if which == "store" else self.removals
        before = time.process_time()
        for worker, data in inputs:
            apply_event(worker, data)
        self.tree.find_matches([1])
        return time.process_time() - before

    def match(self, form: str, depth: int, rounds: int) -> float:
        """CPU seconds per match."""
        asked = []
        for number, prefix, more in work.queries(self.events, depth):
            asked.append(self.prefixes[prefix][:depth] + self.events[number].hashes[:more])
        find = self.tree.find_matches
        before = time.process_time()
        for _ in range(rounds):
            for query in asked:
                found = find(query)
                if form == "best":
                    max(found.scores.items(), key=_score)
                elif form == "dict":
                    dict(found.scores)
        return (time.process_time() - before) / (rounds * len(asked))

    def grow(self) -> float:
        """Bytes of memory that the stores take."""
        self.start(False)
        gc.collect()
        before = resident_bytes()
        self.apply("store")
        return float(resident_bytes() - before)


def _score(item: tuple[Any, int]) -> int:
    return item[1]


def main() -> int:
    """Read calls as JSON lines, write their results as JSON lines."""
    peer = Peer()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(peer, name)(*arguments)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
