"""Engines of different kinds on networks that lose different things, and whole gateways' worth of streams that follow them.

Each follower of an engine has sockets of its own, so that a batch can be lost for one and not for the other. What an engine has
is known from an index that got every batch in order, without a network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

import zmq.asyncio

from events.decode import decode
from events.supervise import EventStream
from events.types import Freshness
from radix import Event, Index
from tests.events.followed import TIMES
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.wire import CLEARED, Fields, as_array, batch, removed, stored
from tests.radix.trees import new_index
from tests.soak.cache import Cache
from tests.soak.engine import fields_of
from tests.soak.prompts import Prompts

Changes = Iterator[Sequence[Fields]]  # the events of one batch after another


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of engine. changes: of one life of it, from a source of chance."""

    name: str
    changes: Callable[[Random], Changes]
    counting: bool = True
    arrays: bool = False
    old_replies: bool = False  # replay replies without a topic frame


def cached(counting: bool) -> Callable[[Random], Changes]:
    """A paged cache with copies, holes, a host tier and clears."""

    def changes(chance: Random) -> Changes:
        cache = Cache(str(chance.random()), chance, capacity=120, block_tokens=16, counting=counting)
        prompts = Prompts(chance.randrange(2**32))
        while True:
            draw, prompt = chance.random(), prompts.draw()
            events: Sequence[Event]
            if draw < 0.03:
                events = cache.clear()
            elif draw < 0.15:
                events = cache.lose_one()
            else:
                events = cache.prompt(prompt.tokens, prompt.salt, use_cache=draw < 0.9)[0]
            if events:
                yield [fields_of(event) for event in events]

    return changes


def hybrid(chance: Random) -> Changes:
    """Full attention, a sliding window and a recurrent state: equal hashes at equal boundaries, evicted each by its own rule."""
    specs = [("full_attention", 0), ("sliding_window", 8), ("mamba", 0)]
    held: list[set[int]] = [set() for _ in specs]
    life = chance.randrange(1, 1000) * 10**9
    while True:
        events: list[Fields] = []
        chain = chance.randrange(6)
        first, count = chance.choice([0, 0, 4]), 4
        hashes = [life + chain * 100 + block for block in range(first + 1, first + count + 1)]
        tokens = [chain * 1000 + 4 * first + i for i in range(4 * count)]
        parent = hashes[0] - 1 if first else None
        for group, (kind, window) in enumerate(specs):
            if first and parent not in held[0]:
                continue
            kept = hashes if not group else hashes[-2:] if group == 1 else hashes[-1:]
            more: dict[str, object] = {"group_idx": group, "kv_cache_spec_kind": kind}
            if window:
                more["kv_cache_spec_sliding_window"] = window
            events.append(stored(kept, parent, tokens, 4, **more))
            held[group] |= set(kept)
        group = chance.randrange(len(specs))
        gone = chance.sample(sorted(held[group]), min(2, len(held[group])))
        if gone:
            events.append(removed(*gone, group_idx=group))
            held[group] -= set(gone)
        if chance.random() < 0.03:
            events.append(CLEARED)
            held = [set() for _ in specs]
        if events:
            yield events


def adapters(chance: Random) -> Changes:
    """Long hashes as bytes, and prompts of two adapters that share their tokens."""
    life = chance.randbytes(24)
    while True:
        adapter, chain = chance.choice([None, "a"]), chance.randrange(8)
        hashes = [life + bytes([adapter is not None, chain]) + block.to_bytes(6, "big") for block in range(1, 9)]
        if chance.random() < 0.3:
            yield [removed(chance.choice(hashes))]
        else:
            tokens = [chain * 100 + i for i in range(32)]
            yield [stored(hashes, None, tokens, 4, lora_name=adapter, extra_keys=[[adapter] if adapter else None] * 8)]


KINDS = (
    Kind("counting", cached(counting=True)),
    Kind("sets", cached(counting=False), counting=False, arrays=True),
    Kind("hybrid", hybrid),
    Kind("adapters", adapters, old_replies=True),
)


class LossyEngine:
    """One engine with a network per follower."""

    def __init__(self, kind: Kind, seed: int, followers: int, *, replay: bool = True) -> None:
        self.kind = kind
        self.links = [FakePublisher(replay=replay, old_replies=kind.old_replies) for _ in range(followers)]
        self._chance = Random(seed)
        self._start()

    def _start(self) -> None:
        self._changes = self.kind.changes(self._chance)
        self._next = 0
        self.truth = Index()
        self.holder = self.truth.holder(self.kind.name, 0, counting=self.kind.counting)

    async def publish(self, lost: Sequence[bool], *, cleared: bool = False) -> None:
        """One batch; lost: for which followers."""
        events = [CLEARED] if cleared else next(self._changes)
        shaped = [as_array(event) for event in events] if self.kind.arrays else events
        seq, self._next = self._next, self._next + 1
        payload = batch(*shaped, ts=self._chance.random())
        self.truth.apply(self.holder, decode(payload, seq))
        for link, is_lost in zip(self.links, lost, strict=True):
            await link.send(seq, payload, live=not is_lost)

    async def restart(self) -> None:
        """Another process; its connections come back one after another."""
        self._start()
        for link in self.links:
            await link.restart()

    def digest(self) -> bytes:
        return self.truth.digest(self.holder)

    def copies(self) -> dict[object, int]:
        return named_copies(self.truth, self.holder)


def named_copies(index: Index, holder: int) -> dict[object, int]:
    """Copies by tier, group and hash."""
    return {(block.tier, block.group, block.hash): block.copies for block in index.dump(holder)}


class Follower:
    """One gateway's index and its streams, one for each engine."""

    def __init__(self, engines: Sequence[LossyEngine], which: int, context: zmq.asyncio.Context, tree: str) -> None:
        self.index = new_index(tree)
        self.streams: dict[str, EventStream] = {}
        for engine in engines if which % 2 else reversed(engines):  # holder numbers must not matter
            kind = engine.kind
            holder = self.index.holder(kind.name, 0, counting=kind.counting)
            link = engine.links[which]
            stream = EventStream(self.index, holder, link.endpoint, link.replay, topic="kv", times=TIMES, context=context)
            self.streams[kind.name] = stream

    def start(self) -> None:
        for stream in self.streams.values():
            stream.start()

    async def stop(self) -> None:
        for stream in self.streams.values():
            await stream.stop()

    def digest(self, engine: LossyEngine) -> bytes:
        return self.index.digest(self.streams[engine.kind.name].holder)

    def freshness(self, engine: LossyEngine) -> Freshness:
        return self.streams[engine.kind.name].freshness

    def beyond(self, engine: LossyEngine) -> dict[object, int]:
        """What it believes the engine to have, and the engine has not; where a block lies it may not know."""
        truth, view = engine.copies(), named_copies(self.index, self.streams[engine.kind.name].holder)
        return {block: copies for block, copies in view.items() if copies > truth.get(block, 0)}

    def is_(self, engine: LossyEngine, freshness: Freshness) -> bool:
        return self.freshness(engine) is freshness and self.digest(engine) == engine.digest()


@asynccontextmanager
async def world(
    seed: int, trees: Sequence[str] = ("plain", "flat"), *, replay: bool = True
) -> AsyncIterator[tuple[list[LossyEngine], list[Follower]]]:
    """Engines of all kinds, and gateways that do not follow yet."""
    context = zmq.asyncio.Context()
    engines = [LossyEngine(kind, seed * 10 + number, len(trees), replay=replay) for number, kind in enumerate(KINDS)]
    followers = [Follower(engines, which, context, tree) for which, tree in enumerate(trees)]
    try:
        yield engines, followers
    finally:
        async with AsyncExitStack() as stack:
            stack.callback(context.destroy, linger=0)
            for each in [link for engine in engines for link in engine.links]:
                stack.push_async_callback(each.close)
            for follower in followers:
                stack.push_async_callback(follower.stop)


async def trouble(engines: Sequence[LossyEngine], seed: int, batches: int, *, restarts: bool = True) -> None:
    """Batches get lost, links break, engines restart and do not answer; each for one follower and not for the other."""
    chance = Random(seed)
    for _ in range(batches):
        engine = chance.choice(engines)
        draw = chance.random()
        if draw < 0.03 and restarts:
            await engine.restart()
        elif draw < 0.07:
            await chance.choice(engine.links).blink()
        elif draw < 0.15:
            link = chance.choice(engine.links)
            link.answering = not link.answering
        await engine.publish([chance.random() < 0.15 for _ in engine.links])
        await asyncio.sleep(0.002 * chance.random())


async def heal(engines: Sequence[LossyEngine], followers: Sequence[Follower]) -> None:
    """From now on all is well, and one more batch of each engine comes, or as many as it takes until it has something."""
    for engine in engines:
        for link in engine.links:
            link.answering = True
    await until(lambda: all(stream.connected for follower in followers for stream in follower.streams.values()))
    for engine in engines:
        await engine.publish([False] * len(engine.links))
        while not engine.copies():
            await engine.publish([False] * len(engine.links))


async def converge(engines: Sequence[LossyEngine], followers: Sequence[Follower], freshness: Freshness = Freshness.LIVE) -> None:
    """Wait until each view is its engine's; then the gateways agree as well. Fails naming those that are not."""
    pairs = [(engine, number, follower) for engine in engines for number, follower in enumerate(followers)]
    try:
        await until(lambda: all(follower.is_(engine, freshness) for engine, _, follower in pairs), timeout_s=10)
    except AssertionError:
        wrong = [
            f"{engine.kind.name} at {number}: {follower.freshness(engine).value}"
            for engine, number, follower in pairs
            if not follower.is_(engine, freshness)
        ]
        raise AssertionError(f"not converged: {wrong}") from None
    for engine in engines:
        assert len({follower.digest(engine) for follower in followers}) == 1
