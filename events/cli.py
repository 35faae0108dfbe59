"""`trunkline events`: look at event streams and captures.

Results go to stdout, complaints to stderr. Exit status: 0 done, 1 a check failed, 2 wrong use.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from events.decode import read
from events.decode.polled import PolledReader
from events.errors import DecodeError
from events.show import Row, error_row, row_of

app = typer.Typer(no_args_is_help=True, help="Decode, follow and judge streams of KV-cache events.")


@app.command("decode", epilog="Example: trunkline events decode capture.jsonl | jq .events")
def decode_command(
    file: Annotated[str, typer.Argument(help="JSON lines with payload_hex, '-' for stdin.")],
    polled: Annotated[bool, typer.Option("--polled", help="The file is one answer of TensorRT-LLM's /kv_cache_events.")] = False,
    block_tokens: Annotated[int, typer.Option(help="With --polled: tokens per block; 0 takes the largest block's.")] = 0,
) -> int:
    """Print what messages say, one JSON line for each, in order; one for each rank with --polled."""
    content = _content(file)
    if content is None:
        return 2
    for row in _polled_rows(content, block_tokens) if polled else _rows(content):
        typer.echo(json.dumps(row))
    return 0


def _rows(content: bytes) -> Iterator[Row]:
    for line in content.splitlines():
        if line.strip():
            yield _row(line)


def _row(line: bytes) -> Row:
    try:
        fields = json.loads(line)
        payload = bytes.fromhex(fields["payload_hex"])
        seq = int(fields.get("seq_hex") or "0", 16)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return error_row(f"no JSON line with payload_hex: {type(error).__name__} {error}")
    try:
        return row_of(read(payload, seq))
    except DecodeError as error:
        return error_row(str(error))


def _polled_rows(content: bytes, block_tokens: int) -> Iterator[Row]:
    try:
        yield from map(row_of, PolledReader(block_tokens).read(content))
    except DecodeError as error:
        yield error_row(str(error))


def _content(file: str) -> bytes | None:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        typer.echo(f"error: cannot read {file}: {error.strerror}", err=True)
        return None
