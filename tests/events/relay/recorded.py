"""The event messages of two recorded vLLM servers, in the order they were heard."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[2] / "data" / "vllm_live_events.jsonl.gz"
CAPTURES = ("vllm_live_0_32_capture", "vllm_live_0_32_smollm2_capture")


class Message(NamedTuple):
    """at_s: seconds since the capture began."""

    at_s: float
    seq: int
    payload: bytes


def messages(capture: str) -> list[Message]:
    """All of one capture."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Message(row["t"], row["seq"], bytes.fromhex(row["payload_hex"])) for row in rows if row["capture"] == capture]
