"""`trunkline events`: look at event streams and captures.

Results go to stdout, complaints to stderr. Exit status: 0 done, 1 a check failed, 2 wrong use.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from events.decode import read
from events.decode.announced import Message
from events.decode.polled import PolledReader
from events.endpoints import is_queue
from events.errors import CaptureError, DecodeError, EndpointError
from events.record import Recorder
from events.score import Line, Score, score
from events.show import Row, error_row, row_of, text_of
from events.tail import Heard, Note, Tail

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Decode, follow and judge streams of KV-cache events.",
)


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


@app.command("score", epilog="Example: trunkline events score capture.jsonl --json")
def score_command(
    capture: Annotated[str, typer.Argument(help="JSON lines of events, requests and answers; '-' for stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say how well the events of a capture would have predicted `cached_tokens`; 1 when it has no request to judge."""
    content = _content(capture)
    if content is None:
        return 2
    try:
        result = score(_capture_lines(content))
    except CaptureError as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    typer.echo(json.dumps(_score_row(result)) if as_json else "\n".join(_score_text(result)))
    return 0 if result.total().total else 1


@app.command("tail", epilog="Example: trunkline events tail tcp://10.0.0.1:5557 --replay tcp://10.0.0.1:5558")
def tail_command(
    url: Annotated[str, typer.Argument(help="Where the engine publishes: tcp://host:port; http://host:port is polled.")],
    replay: Annotated[str | None, typer.Option(help="Its replay socket; the past is shown first and gaps are filled.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write a capture; prompts are not in it.")] = None,
    prompts: Annotated[bool, typer.Option("--prompts", help="With --record: keep token ids and hashes as they are.")] = False,
    topic: Annotated[str | None, typer.Option(help="Only this topic; all without it.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many batches.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per batch.")] = False,
) -> int:
    """Follow an event stream until interrupted. Polling empties the engine's queue: whoever else reads it misses events."""
    if is_queue(url):
        if replay or record or topic:
            typer.echo("error: --replay, --record and --topic are for tcp:// endpoints", err=True)
            return 2
        return _tail_queue(url, count, as_json)
    with ExitStack() as files:
        try:
            file = files.enter_context(record.open("w", encoding="utf-8")) if record is not None else None
            recorder = Recorder(file, prompts=prompts) if file is not None else None
            follower = Tail(url, replay, _teller(as_json), topic=topic, recorder=recorder, count=count)
            asyncio.run(follower.run())
        except EndpointError as error:
            typer.echo(f"error: {error}", err=True)
            return 2
        except OSError as error:
            typer.echo(f"error: cannot write {record}: {error.strerror}", err=True)
            return 2
    return 0


def _tail_queue(url: str, count: int | None, as_json: bool) -> int:
    from events.polled_tail import PolledTail  # an HTTP client is slow to load, and no other command needs one

    try:
        asyncio.run(PolledTail(url, _teller(as_json), count=count).run())
    except EndpointError as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    return 0


def _teller(as_json: bool) -> Callable[[Heard | Message | Note], None]:
    def tell(what: Heard | Message | Note) -> None:
        match what:
            case Note():
                typer.echo(what.text, err=True)
            case Message() if as_json:
                typer.echo(json.dumps({"seq": what.seq} | row_of(what)))
            case Message():
                typer.echo("\n".join(_message_text(f"event={what.seq}", what)))
            case Heard():
                typer.echo(json.dumps(_heard_row(what)) if as_json else "\n".join(_heard_text(what)))
        sys.stdout.flush()

    return tell


def _heard_row(heard: Heard) -> Row:
    frames = heard.frames
    where: Row = {"seq": frames.seq, "topic": frames.topic.decode("utf-8", "replace"), "replayed": heard.replayed}
    try:
        return where | row_of(read(frames.payload, frames.seq))
    except DecodeError as error:
        return where | error_row(str(error))


def _heard_text(heard: Heard) -> list[str]:
    frames = heard.frames
    head = f"seq={frames.seq}" + (" replayed" if heard.replayed else "")
    try:
        message = read(frames.payload, frames.seq)
    except DecodeError as error:
        return [f"{head} error={error}"]
    return _message_text(head, message)


def _message_text(head: str, message: Message) -> list[str]:
    head += f" rank={message.rank} events={len(message.events)}" + (f" skipped={message.skipped}" if message.skipped else "")
    return [head, *(f"  {line}" for line in text_of(message))]


def _capture_lines(content: bytes) -> Iterator[Line]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise CaptureError(f"line {number} is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise CaptureError(f"line {number} is {type(fields).__name__}, want an object")
        yield fields


def _score_row(result: Score) -> Row:
    return {
        **asdict(result.total()),
        "misses": [asdict(miss) for miss in result.misses],
        "classes": {name: asdict(tally) for name, tally in result.classes.items()},
    }


def _score_text(result: Score) -> Iterator[str]:
    for name, tally in [*result.classes.items(), ("all", result.total())]:
        yield f"{name:<50} exact {tally.exact:>5} in range {tally.in_range:>5} of {tally.total:>5}"
    for miss in result.misses:
        yield f"  {miss.id}: predicted {miss.predicted} ({miss.low}..{miss.high}), cached {miss.cached}: {miss.why}"


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
