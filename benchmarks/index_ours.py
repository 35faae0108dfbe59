"""Our compiled tree under the index benchmark: the same calls as `index_peer` answers, in this process."""

from __future__ import annotations

import gc
import json
import sys
import time

import numpy as np

from benchmarks import index_workload as work
from benchmarks.index_peer import resident_bytes
from radix.core.compiled import CompiledTree
from radix.match import Int32Array

_WIDTH = work.BLOCK_TOKENS


class Ours:
    """One tree and the prepared inputs of the cell at hand."""

    def __init__(self, *, huge_pages: bool = True) -> None:
        self.huge_pages = huge_pages

    def prepare(self, seed: int, workers: int, size: int, blocks: int, shared: bool) -> None:
        """Build a cell's inputs."""
        chance = np.random.default_rng(seed)
        self.prefixes = [np.array(prefix, np.uint64) for prefix in work.prefixes(seed)]
        self.prefix_tokens = [_tokens(chance, work.PREFIX_BLOCKS) for _ in self.prefixes]
        self.events = work.events(seed, workers, size, blocks, shared=shared)
        self.workers = workers
        self.hashes = [np.array(event.hashes, np.uint64) for event in self.events]
        self.tokens = [_tokens(chance, size) for _ in self.events]

    def start(self, shared: bool) -> None:
        """A new tree in fresh memory, with the prefixes in it."""
        self.tree: CompiledTree | None = None
        gc.collect()
        tree = CompiledTree(holders=self.workers, huge_pages=self.huge_pages)
        self.tree = tree
        self.root = tree.root(b"benchmark", _WIDTH)
        tree.matcher.set_load(np.zeros(-(-self.workers // 64) * 64, np.int64))  # on equal depth it decides
        self.ledgers = [tree.open(worker) for worker in range(self.workers)]
        if shared:
            for hashes, tokens in zip(self.prefixes, self.prefix_tokens, strict=True):
                for ledger in self.ledgers:
                    tree.store(ledger, self.root, _WIDTH, hashes, tokens)
        self.stores = []
        for event, hashes, tokens in zip(self.events, self.hashes, self.tokens, strict=True):
            ledger = self.ledgers[event.worker]
            parent = (ledger, int(self.prefixes[event.prefix][-1])) if event.prefix is not None else None
            self.stores.append((ledger, hashes, tokens, parent))
        self.removals = [(ledger, hashes[::-1].copy()) for ledger, hashes, _, _ in self.stores]

    def apply(self, which: str) -> float:
        """CPU seconds of all stores or all removals."""
        assert self.tree is not None
        store, remove, root = self.tree.store, self.tree.remove, self.root
        before = time.process_time()
        if which == "store":
            for ledger, hashes, tokens, parent in self.stores:
                store(ledger, root, _WIDTH, hashes, tokens, parent)
        else:
            for ledger, hashes in self.removals:
                remove(ledger, hashes)
        return time.process_time() - before

    def match(self, form: str, depth: int, rounds: int) -> float:
        """CPU seconds per match."""
        assert self.tree is not None
        asked = []
        for number, prefix, more in work.queries(self.events, depth):
            both = np.concatenate([self.prefix_tokens[prefix][: depth * _WIDTH], self.tokens[number][: more * _WIDTH]])
            asked.append(np.ascontiguousarray(both))
        matcher = self.tree.matcher
        find = {"best": matcher.best, "dict": matcher.holders, "masks": matcher.raw}[form]
        root = self.root
        before = time.process_time()
        for _ in range(rounds):
            for query in asked:
                find(root, _WIDTH, query)
        return (time.process_time() - before) / (rounds * len(asked))

    def grow(self) -> float:
        """Bytes of memory that the stores take."""
        self.start(False)
        assert self.tree is not None
        gc.collect()
        before = resident_bytes()
        self.apply("store")
        return float(resident_bytes() - before)


def _tokens(chance: np.random.Generator, blocks: int) -> Int32Array:
    return chance.integers(0, 128_000, blocks * _WIDTH).astype(np.int32)


def main() -> int:
    """Memory in a process of its own: seed, workers, size, blocks as one JSON line in, bytes out."""
    ours = Ours(huge_pages=False)
    seed, workers, size, blocks = json.loads(sys.stdin.readline())
    ours.prepare(seed, workers, size, blocks, False)
    print(json.dumps(ours.grow()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
