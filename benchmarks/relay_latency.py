"""How long a batch takes from the engine's socket into a gateway's index: directly, and by a relay under several waiting times.

`python -m benchmarks.relay_latency --redis URL [--json]`. One process plays engine, relay and both gateways, so the figures are
an upper bound; the server is a real one, and keys that begin with `trunkline-benchmark` there are overwritten.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median

import uvloop

from benchmarks.relay import WAITS_MS, churn
from events.decode import decode
from events.publish import Publisher
from events.redis_source import RedisStream
from events.relay.outlet import Pace
from events.relay.relay import Relay
from events.relay.store import Place, check_url
from events.relay.target import Target
from events.stream import Stream
from events.supervise import EventStream
from events.types import EventsError, Freshness
from radix.changes import Applied, Batch, Heard
from radix.index import Index

BATCHES_PER_S, SECONDS, WARM_UP = 100.0, 5.0, 50


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds from published to applied. entries_per_s: what the relay wrote meanwhile."""

    wait_ms: int
    direct_mean: float
    direct_p99: float
    relayed_mean: float
    relayed_p50: float
    relayed_p99: float
    entries_per_s: float


class Watched(Index):
    """An index that notes when each batch is applied."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, float] = {}

    def apply(self, holder: int, batch: Batch) -> Applied:
        """As the index does."""
        applied = super().apply(holder, batch)
        self.at.setdefault(batch.seq, time.perf_counter())
        return applied

    def apply_payloads(self, holder: int, payloads: Sequence[bytes], decode: Callable[[int, bytes], Batch], heard: Heard) -> None:
        """As the index does."""
        super().apply_payloads(holder, payloads, decode, heard)
        at = time.perf_counter()
        for place, payload in enumerate(payloads[: len(heard.batches)]):
            self.at.setdefault(decode(place, payload).seq, at)


async def measure(url: str, wait_ms: int) -> Row:
    """One waiting time."""
    place = Place(url, f"trunkline-benchmark-{wait_ms}")
    direct, relayed = Watched(), Watched()
    with Publisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0") as engine:
        target = Target("r", engine.bound_endpoint, engine.bound_replay)
        relay = Relay([target], place, pace=Pace(batch_s=wait_ms / 1000))
        relaying = asyncio.get_running_loop().create_task(relay.run())
        streams: list[Stream] = [
            EventStream(direct, direct.holder("r", 0), engine.bound_endpoint, engine.bound_replay),
            RedisStream(relayed, relayed.holder("r", 0), place),
        ]
        for stream in streams:
            stream.start()
        await _until(lambda: all(stream.freshness is Freshness.LIVE for stream in streams))
        before = relay.lines[0].outlet.counts.entries
        sent = await _publish(engine)
        last = max(sent)
        await _until(lambda: last in direct.at and last in relayed.at)
        entries = relay.lines[0].outlet.counts.entries - before
        for stream in streams:
            await stream.stop()
        relay.end()
        await relaying
    one, other = (sorted(1000 * (index.at[seq] - at) for seq, at in sent.items() if seq > WARM_UP) for index in (direct, relayed))
    return Row(wait_ms, mean(one), _p99(one), mean(other), median(other), _p99(other), entries / SECONDS)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is a plain number
        await asyncio.sleep(0.01)


async def _publish(engine: Publisher) -> dict[int, float]:
    """Batches at random moments; when each was handed to the engine's socket, by number."""
    chance = random.Random(1)
    batches = [decode(message.payload, message.seq) for message in churn(seconds=SECONDS, batches_per_s=BATCHES_PER_S)]
    sent: dict[int, float] = {}
    due = time.perf_counter()
    for batch in batches:
        due += chance.expovariate(BATCHES_PER_S)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        at = time.perf_counter()
        sent[engine.publish(batch.events)] = at
    return sent


def _p99(values: Sequence[float]) -> float:
    return values[int(0.99 * (len(values) - 1))]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redis", required=True, help="redis://host:port")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    try:
        check_url(args.redis)
    except EventsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [uvloop.run(measure(args.redis, wait_ms)) for wait_ms in WAITS_MS]
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    print("| wait ms | direct mean / p99 ms | relayed mean / p50 / p99 ms | entries/s |\n|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row.wait_ms} | {row.direct_mean:.1f} / {row.direct_p99:.1f} "
            f"| {row.relayed_mean:.1f} / {row.relayed_p50:.1f} / {row.relayed_p99:.1f} | {row.entries_per_s:.1f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
