"""What a relay makes of engines' events: bytes, entries and added latency, by how long batches may wait for others.

`python -m benchmarks.relay [--json]`. The events are those of two recorded vLLM servers (`tests/data`) and of a made-up busy rank
with evictions, in the order and at the times they came. Bytes, entries and waiting follow from those times alone; the CPU time is
measured. `benchmarks.relay_latency` measures the whole way.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from events.decode import decode
from events.encode import encode
from events.relay.entries import Decoder, Encoder, unpack_entry
from events.relay.held import Held
from events.relay.snapshot import pack_snapshot, unpack_snapshot
from events.types import Freshness
from radix.changes import Batch, Event, Removed, Stored, as_tokens

CAPTURES = Path(__file__).parents[1] / "tests" / "data" / "vllm_live_events.jsonl.gz"
WAITS_MS = (0, 5, 20, 100)
MOST_BATCHES = 256
_EPOCH = bytes(8)


class Message(NamedTuple):
    """One batch of an engine. at_s: since the start."""

    at_s: float
    seq: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One source under one waiting time. ratio: bytes of entries over bytes of the engine's payloads."""

    source: str
    wait_ms: int
    batches: int
    engine_bytes: int
    entries: int
    bytes: int
    ratio: float
    entries_per_s: float
    bytes_per_s: float
    wait_mean_ms: float
    wait_p99_ms: float
    encode_us_per_batch: float
    decode_us_per_batch: float


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """What a view costs as a snapshot."""

    blocks: int
    block_tokens: int
    bytes_per_block: float
    pack_ms: float
    unpack_ms: float


def captured() -> dict[str, list[Message]]:
    """The recorded servers, by name."""
    found: dict[str, list[Message]] = {}
    with gzip.open(CAPTURES, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            message = Message(row["t"], row["seq"], bytes.fromhex(row["payload_hex"]))
            found.setdefault(row["capture"].replace("_capture", ""), []).append(message)
    return found


def churn(seed: int = 7, seconds: float = 10.0, batches_per_s: float = 100.0) -> list[Message]:
    """A busy rank: 16-token blocks of random ids, a few stored in each step and as many evicted, tail first."""
    chance = random.Random(seed)
    chains: list[list[int]] = []
    messages: list[Message] = []
    for seq in range(int(seconds * batches_per_s)):
        events: list[Event] = []
        for _ in range(chance.randrange(1, 4)):
            count = chance.choice((1, 2, 8, 64))
            hashes = [chance.getrandbits(64) for _ in range(count)]
            chain = chance.choice(chains) if chains and chance.random() < 0.6 else []
            tokens = as_tokens([chance.randrange(128_000) for _ in range(count * 16)])
            events.append(Stored(tuple(hashes), chain[-1] if chain else None, tokens, 16))
            if chain:
                chain.extend(hashes)
            else:
                chains.append(hashes)
        while sum(map(len, chains)) > 4000:
            events.append(Removed(tuple(reversed(chains.pop(0)))))
        at_s = seq / batches_per_s
        messages.append(Message(at_s, seq, encode(events, ts=at_s, rank=0)))
    return messages


def grouped(messages: Sequence[Message], wait_s: float) -> Iterator[tuple[float, list[Message]]]:
    """(time of sending, batches) of each entry, as a relay puts them together; a new life of the engine begins a new one."""
    group: list[Message] = []
    sent_at_s = -wait_s
    for message in messages:
        due_s = max(sent_at_s + wait_s, group[0].at_s) if group else 0.0
        restarts = bool(group) and message.seq < group[-1].seq
        if group and (message.at_s > due_s or len(group) == MOST_BATCHES or restarts):
            sent_at_s = min(due_s, message.at_s)
            yield sent_at_s, group
            group = []
        group.append(message)
    if group:
        yield max(sent_at_s + wait_s, group[0].at_s), group


def measure(source: str, messages: Sequence[Message], wait_ms: int) -> Row:
    """One row of the table."""
    batches = [decode(message.payload, message.seq) for message in messages]
    entries: list[list[bytes]] = []  # of each life
    waits: list[float] = []
    at = encode_s = decode_s = 0.0
    encoder, place = Encoder(_EPOCH), 0
    for sent_at_s, group in grouped(messages, wait_ms / 1000):
        if place and group[0].seq < messages[place - 1].seq:
            encoder = Encoder(_EPOCH)
        if encoder.number < 0:
            entries.append([encoder.entry([Freshness.LIVE])])
        waits += [sent_at_s - message.at_s for message in group]
        at = time.process_time()
        entry = encoder.entry(batches[place : place + len(group)])
        encode_s += time.process_time() - at
        entries[-1].append(entry)
        place += len(group)
    for life in entries:
        decoder = Decoder(_EPOCH, Encoder(_EPOCH).state())
        at = time.process_time()
        for entry in life:
            decoder.read(unpack_entry(entry))
        decode_s += time.process_time() - at
    count, size = sum(map(len, entries)), sum(len(entry) for life in entries for entry in life)
    engine_bytes = sum(len(message.payload) for message in messages)
    seconds = messages[-1].at_s - messages[0].at_s
    return Row(
        source,
        wait_ms,
        len(messages),
        engine_bytes,
        count,
        size,
        size / engine_bytes,
        count / seconds,
        size / seconds,
        1000 * sum(waits) / len(waits),
        1000 * sorted(waits)[int(0.99 * (len(waits) - 1))],
        1e6 * encode_s / len(messages),
        1e6 * decode_s / len(messages),
    )


def snapshot_row(blocks: int, block_tokens: int = 16, run: int = 64) -> SnapshotRow:
    """A view of prompts of `run` blocks with random ids of a vocabulary of 128,000."""
    chance = random.Random(3)
    held, encoder = Held(), Encoder(_EPOCH)
    for seq in range(blocks // run):
        tokens = as_tokens([chance.randrange(128_000) for _ in range(run * block_tokens)])
        batch = Batch(0, seq, 0.0, (Stored(tuple(chance.getrandbits(64) for _ in range(run)), None, tokens, block_tokens),))
        held.apply(batch)
        encoder.entry([batch])
    began = time.process_time()
    data = pack_snapshot(_EPOCH, Freshness.LIVE, True, held.inventory(), encoder.state())
    packed = time.process_time()
    unpack_snapshot(data)
    ended = time.process_time()
    return SnapshotRow(blocks, block_tokens, len(data) / blocks, 1000 * (packed - began), 1000 * (ended - packed))


def table(rows: Sequence[Row], snapshots: Sequence[SnapshotRow]) -> Iterator[str]:
    """The same, to be read."""
    yield (
        "| source | wait ms | batches | entries | entries/s | bytes/s | of the engine's bytes "
        "| waited mean / p99 ms | encode / decode CPU us per batch |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        yield (
            f"| {row.source} | {row.wait_ms} | {row.batches} | {row.entries} | {row.entries_per_s:.1f} | {row.bytes_per_s:,.0f} "
            f"| {row.ratio:.1%} | {row.wait_mean_ms:.1f} / {row.wait_p99_ms:.1f} "
            f"| {row.encode_us_per_batch:.0f} / {row.decode_us_per_batch:.0f} |"
        )
    yield ""
    yield "| snapshot of blocks | tokens each | bytes per block | pack ms | unpack ms |"
    yield "|---:|---:|---:|---:|---:|"
    for shot in snapshots:
        yield (
            f"| {shot.blocks:,} | {shot.block_tokens} | {shot.bytes_per_block:.1f} | {shot.pack_ms:.0f} | {shot.unpack_ms:.0f} |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 1 when an entry stream of a capture is above six tenths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    sources = captured() | {"churn, 100 batches/s": churn()}
    rows = [measure(name, messages, wait_ms) for name, messages in sources.items() for wait_ms in WAITS_MS]
    snapshots = [snapshot_row(blocks) for blocks in (10_000, 100_000)]
    worst = max(row.ratio for row in rows if row.source in captured())
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "snapshots": [asdict(s) for s in snapshots], "ratio": worst}))
    else:
        print("\n".join(table(rows, snapshots)))
    return 0 if worst <= 0.6 else 1


if __name__ == "__main__":
    sys.exit(main())
