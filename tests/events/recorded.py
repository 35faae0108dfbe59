"""Messages of three engines as they were recorded, and what each should be read as."""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


RECORDED = [line for name in ("vllm", "sglang", "trtllm") for line in lines(f"{name}_kv_events.jsonl")]


def expected(line: dict) -> dict:
    """What a line says should be read, in one form: TensorRT-LLM's lines have the message as it is."""
    want = line["decoded"]
    if isinstance(want, dict):
        return want
    ts, events, rank = want
    return {"ts": ts, "dp_rank": rank, "events": [event | hashes_of(event) for event in events]}


def hashes_of(event: dict) -> dict:
    parent = event.get("parent_block_hash")
    hashes = [f"{value % 2**64:016x}" for value in event.get("block_hashes", [])]
    return {"_hash64": hashes, "_parent64": None if parent is None else f"{parent % 2**64:016x}"}


def polled() -> bytes:
    return (DATA / "trtllm_polled_events.json").read_bytes()
