"""Event payloads into the compiled tree against msgspec's decoding of the same payloads alone: same process, in turns.

`ingest` measures the tree alone; `follow` the whole way of a stream from arrived messages on: cursor, memory of what came,
counters, index. Payloads are vLLM's maps with token ids and one nil of extra keys a block, one store each behind a prefix that
all workers hold, in a shuffled order of wake-ups. Ours is everything from a list of payloads to the changed tree, in memory the
tree has not touched yet; theirs stops at Python objects, with or without types, whichever is faster.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable

import msgspec
import numpy as np

from benchmarks import index_workload as work
from benchmarks.index_fill import new_index
from events.apply import Applier
from events.replay import Frames
from events.session import Session
from events.times import StreamTimes
from radix.core.compiled import CompiledTree
from radix.ingest import Feed, Ingest

_WIDTH = work.BLOCK_TOKENS
WAKE_UP = 16  # payloads of one worker that have arrived when it is looked after


class _Store(msgspec.Struct, tag_field="type", tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None


class _Message(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Store]
    rank: int | None = None


class Payloads:
    """One cell: the same payloads for both sides."""

    def __init__(self, seed: int, workers: int, size: int, blocks: int) -> None:
        chance = np.random.default_rng(seed)
        self.workers = workers
        self.prefixes = [np.array(prefix, np.uint64) for prefix in work.prefixes(seed)]
        self.prefix_tokens = [_tokens(chance, work.PREFIX_BLOCKS) for _ in self.prefixes]
        self.by_worker: list[list[bytes]] = [[] for _ in range(workers)]
        events = work.events(seed, workers, size, blocks)
        self.blocks = len(events) * size
        for event in events:
            assert event.prefix is not None
            parent = int(self.prefixes[event.prefix][-1])
            self.by_worker[event.worker].append(_payload(event.hashes, parent, _tokens(chance, size).tolist()))
        self.decoders = (msgspec.msgpack.Decoder().decode, msgspec.msgpack.Decoder(_Message).decode)

    def decode(self, typed: bool) -> float:
        """CPU seconds of msgspec for all of them."""
        decode: Callable[[bytes], object] = self.decoders[typed]
        gc.collect()
        before = time.process_time()
        for payloads in self.by_worker:
            for payload in payloads:
                decode(payload)
        return time.process_time() - before

    def ingest(self, together: int, *, huge_pages: bool = True) -> float:
        """CPU seconds of the tree for all of them, `together` payloads in a call."""
        tree = CompiledTree(holders=self.workers, huge_pages=huge_pages)
        root = tree.root(b"benchmark", _WIDTH)
        ledgers = [tree.open(worker) for worker in range(self.workers)]
        for hashes, tokens in zip(self.prefixes, self.prefix_tokens, strict=True):
            for ledger in ledgers:
                tree.store(ledger, root, _WIDTH, hashes, tokens)
        calls = [
            (Feed(ledgers=(ledger, -1, -1, -1), root=root, block_tokens=_WIDTH), payloads[at : at + together])
            for ledger, payloads in zip(ledgers, self.by_worker, strict=True)
            for at in range(0, len(payloads), together)
        ]
        random.Random(together).shuffle(calls)
        start = Ingest(tree).start
        stored = 0
        gc.collect()
        before = time.process_time()
        for feed, payloads in calls:
            stored += start(payloads).go(feed).stored
        spent = time.process_time() - before
        if stored != self.blocks:
            raise RuntimeError(f"stored {stored} of {self.blocks} blocks")
        return spent

    def follow(self, together: int) -> float:
        """CPU seconds of streams for all of them, `together` messages at a wake-up."""
        return asyncio.run(self._followed(together))

    async def _followed(self, together: int) -> float:
        index = new_index("compiled", CompiledTree(huge_pages=True))
        sessions: list[Session] = []
        for worker in range(self.workers):
            applier = Applier(index, index.holder(f"r{worker}", 0), grace_s=60.0, clock=time.time)
            sessions.append(Session(applier, "", None, "", StreamTimes()))
            first = [
                Frames(at, _payload(hashes.tolist(), None, tokens.tolist()))
                for at, (hashes, tokens) in enumerate(zip(self.prefixes, self.prefix_tokens, strict=True))
            ]
            await sessions[-1].handle(_Nowhere(), first)
        before_all = index.stats().blocks
        numbered = [
            [Frames(at, payload) for at, payload in enumerate(payloads, len(self.prefixes))] for payloads in self.by_worker
        ]
        order = [worker for worker, messages in enumerate(numbered) for _ in range(0, len(messages), together)]
        random.Random(together).shuffle(order)  # of the workers; each one's messages stay in order
        nexts = [0] * self.workers
        gc.collect()
        before = time.process_time()
        for worker in order:
            at = nexts[worker]
            nexts[worker] = at + together
            await sessions[worker].handle(_Nowhere(), numbered[worker][at : at + together])
        spent = time.process_time() - before
        stored = index.stats().blocks - before_all
        if stored != self.blocks:
            raise RuntimeError(f"stored {stored} of {self.blocks} blocks")
        return spent


class _Nowhere:
    """A subscription with nothing to throw away."""

    def discard(self) -> None:
        return None


def _payload(hashes: list[int], parent: int | None, tokens: list[int]) -> bytes:
    store = _Store(hashes, parent, tokens, _WIDTH, None, "GPU", None, [None] * len(hashes))
    return msgspec.msgpack.encode(_Message(1_767_225_600.25, [store], 0))


def _tokens(chance: np.random.Generator, blocks: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return chance.integers(0, 128_000, blocks * _WIDTH).astype(np.int32)
