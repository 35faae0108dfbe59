"""Read Mooncake JSONL: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`; plain or gzip.

Files that the gateway records have the same fields and more. Of those `block_size`, `session_id` and `e2e_ms` matter here: the
last one tells which request may be a follow-up of which, so that answers become part of the cache as they did there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import numpy as np
import orjson

from simulations.errors import TraceError
from simulations.traces.answers import find_answers
from simulations.traces.columns import Trace, first_broken_chain

DEFAULT_BLOCK_TOKENS = 512
_GZIP_MAGIC = b"\x1f\x8b"


def read_mooncake(path: Path) -> Trace:
    """The whole file, sorted by arrival; raises TraceError naming file, line, field and value."""
    content = _content(path)
    rows = _Rows(path.name)
    for line_number, line in enumerate(io.BytesIO(content), 1):
        if line.strip():
            rows.add(line_number, line)
    if not rows.input_tokens:
        raise TraceError(f"{path.name}: no request in the file")
    return rows.trace(hashlib.sha256(content).hexdigest())


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


@dataclass(slots=True)
class _Rows:
    """The rows read so far, as growing columns."""

    file: str
    block_tokens: int | None = None
    line_numbers: list[int] = field(default_factory=list)
    arrival_s: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    block_ids: list[list[int]] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)  # NaN where the row does not say
    sessions: list[int] = field(default_factory=list)
    session_numbers: dict[str | int, int] = field(default_factory=dict)

    def add(self, line_number: int, line: bytes) -> None:
        where = f"{self.file}:{line_number}"
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{where}: not a JSON object: {error}") from error
        if not isinstance(row, dict):
            raise TraceError(f"{where}: not a JSON object, got {_shown(row)}")
        block_tokens = self._agreed_block_tokens(where, row)
        input_tokens = _whole(where, row, "input_length", least=1)
        ids = _ids(where, row)
        expected = -(-input_tokens // block_tokens)
        if len(ids) != expected:
            raise TraceError(
                f"{where}: hash_ids must have {expected} ids for input_length {input_tokens} at {block_tokens} tokens a block, "
                f"got {len(ids)}"
            )
        self.line_numbers.append(line_number)
        self.arrival_s.append(_milliseconds(where, row) / 1e3)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(_whole(where, row, "output_length", least=1))
        self.block_ids.append(ids)
        self.took_s.append(_milliseconds(where, row, "e2e_ms") / 1e3 if row.get("e2e_ms") is not None else math.nan)
        self.sessions.append(self._session(where, row))

    def trace(self, digest: str) -> Trace:
        # Stable, so that rows of one timestamp stay in the order of the file.
        order = np.argsort(np.asarray(self.arrival_s), kind="stable")
        counts = [len(self.block_ids[row]) for row in order]
        block_ids = np.asarray([block for row in order for block in self.block_ids[row]], np.int64)
        block_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if broken := first_broken_chain(block_ids, block_offsets):
            request, block = broken
            raise TraceError(
                f"{self.file}:{self.line_numbers[order[request]]}: hash_ids are not chained: "
                f"id {block} follows another id than it did before"
            )
        trace = Trace(
            name=self.file,
            digest=digest,
            block_tokens=self.block_tokens or DEFAULT_BLOCK_TOKENS,
            arrival_s=np.asarray(self.arrival_s)[order],
            input_tokens=np.asarray(self.input_tokens, np.int64)[order],
            output_tokens=np.asarray(self.output_tokens, np.int64)[order],
            block_ids=block_ids,
            block_offsets=block_offsets,
            sessions=np.asarray(self.sessions, np.int64)[order] if self.session_numbers else None,
        )
        return find_answers(trace, np.asarray(self.took_s)[order])

    def _session(self, where: str, row: dict[str, object]) -> int:
        """The number of a row's session in this file, -1 without one."""
        name = row.get("session_id")
        if name is None:
            return -1
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise TraceError(f"{where}: session_id must be a text or a whole number, got {_shown(name)}")
        return self.session_numbers.setdefault(name, len(self.session_numbers))

    def _agreed_block_tokens(self, where: str, row: dict[str, object]) -> int:
        """The block size of the file: what the first row says, 512 where it says nothing; a later change is an error."""
        stated = _whole(where, row, "block_size", least=1) if "block_size" in row else DEFAULT_BLOCK_TOKENS
        if self.block_tokens is None:
            self.block_tokens = stated
        if stated != self.block_tokens:
            raise TraceError(f"{where}: block_size must stay {self.block_tokens} through the file, got {stated}")
        return stated


def _whole(where: str, row: dict[str, object], name: str, *, least: int) -> int:
    if name not in row:
        raise TraceError(f"{where}: {name} is missing")
    value = row[name]
    if not _is_int64(value) or value < least:
        raise TraceError(f"{where}: {name} must be a whole number of at least {least}, got {_shown(value)}")
    return value


def _milliseconds(where: str, row: dict[str, object], name: str = "timestamp") -> float:
    if name not in row:
        raise TraceError(f"{where}: {name} is missing")
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TraceError(f"{where}: {name} must be milliseconds of at least 0, got {_shown(value)}")
    return float(value)


def _ids(where: str, row: dict[str, object]) -> list[int]:
    if "hash_ids" not in row:
        raise TraceError(f"{where}: hash_ids is missing")
    ids = row["hash_ids"]
    if not isinstance(ids, list):
        raise TraceError(f"{where}: hash_ids must be a list, got {_shown(ids)}")
    for position, value in enumerate(ids):
        if not _is_int64(value):
            raise TraceError(f"{where}: hash_ids[{position}] must be a whole number below 2**63, got {_shown(value)}")
    return ids


def _is_int64(value: object) -> TypeGuard[int]:
    # bool is an int to Python, and orjson reads numbers up to 2**64.
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
