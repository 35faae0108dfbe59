"""`trunkline mock-engine`: run one or many fake engines."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gateway.errors import NoTokens
from gateway.tokenize.folder import model_folder
from replicas.errors import ReplicaError
from replicas.mock.cost import StepTimes
from replicas.mock.faults import KINDS, fault_of_flag
from replicas.mock.groups import parse_groups
from replicas.mock.rank import Sizes
from replicas.mock.serve import FleetSettings, Ready, serve
from replicas.mock.settings import DIALECTS, Dialect, MockSettings
from replicas.mock.tokens import ByteCodec, Codec, write_tokenizer
from replicas.mock.wire import FORMS
from replicas.options import exit_status, level, seconds, whole

CHAT_FORMS = ("chatml", "plain")

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

_EXAMPLE = (
    "Example: trunkline mock-engine --count 8 --port 9000 --events tcp://*:9500 --replay tcp://*:9700 --fault error:503@0.01\n\n"
    "Faults, as NAME[:VALUE][@RATE][xTIMES]: " + "; ".join(f"{name} ({kind.help})" for name, kind in KINDS.items()) + "."
)


def tcp(text: str) -> str:
    """A TCP endpoint to bind."""
    if not re.fullmatch(r"tcp://([^:\[\]/]+|\[[^\]]+\]):(\d{1,5}|\*)", text):
        raise typer.BadParameter(f"{text!r:.80} is not an endpoint such as tcp://*:9500")
    return text


def dialect_of(text: str) -> Dialect:
    """The engine to speak like."""
    found = next((name for name in DIALECTS if name == text), None)
    if found is None:
        raise typer.BadParameter(f"{text!r:.40} is not one of {', '.join(DIALECTS)}")
    return found


def chat_form_of(text: str) -> str:
    """How chats are written."""
    if text not in CHAT_FORMS:
        raise typer.BadParameter(f"{text!r:.40} is not one of {', '.join(CHAT_FORMS)}")
    return text


def rate(text: str) -> float:
    """A positive number of tokens per second."""
    if not re.fullmatch(r"\d{1,12}(\.\d{1,6})?", str(text)) or not float(text):
        raise typer.BadParameter(f"{text!r:.40} is not a positive number")
    return float(text)


@app.command("mock-engine", epilog=_EXAMPLE)
def mock_engine(
    count: Annotated[int, typer.Option(parser=whole(1, 10_000), help="Engines in this process.")] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(parser=whole(0, 65535), help="HTTP port of the first; 0 takes any.")] = 9000,
    dialect: Annotated[str, typer.Option(parser=dialect_of, help="vllm, sglang or trunkline.")] = "vllm",
    model: Annotated[str, typer.Option(help="Name in the API.")] = "mock",
    adapter: Annotated[list[str] | None, typer.Option(help="Name of a LoRA adapter; may be repeated.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Hugging Face folder or smollm2; without it one token per byte.")] = None,
    events: Annotated[str | None, typer.Option(parser=tcp, help="Publish KV events here, e.g. tcp://*:9500.")] = None,
    replay: Annotated[str | None, typer.Option(parser=tcp, help="Repeat recent events here, e.g. tcp://*:9700.")] = None,
    topic: Annotated[str, typer.Option(help="Topic of the events.")] = "",
    event_form: Annotated[str | None, typer.Option(help="map or array; sglang: array, others: map.")] = None,
    buffer_steps: Annotated[int, typer.Option(parser=whole(1), help="Batches kept for replays, per rank.")] = 10_000,
    ranks: Annotated[int, typer.Option(parser=whole(1, 1024), help="Data-parallel ranks of each engine.")] = 1,
    block_size: Annotated[int, typer.Option(parser=whole(1), help="Tokens of one KV block.")] = 16,
    num_blocks: Annotated[int, typer.Option(parser=whole(1), help="KV blocks of one rank.")] = 4096,
    groups: Annotated[str | None, typer.Option(help="Cache groups of a hybrid model, e.g. state,window:128,full.")] = None,
    group_blocks: Annotated[int, typer.Option(parser=whole(0), help="What each sparse group keeps; 0: --num-blocks.")] = 0,
    max_batch_tokens: Annotated[int, typer.Option(parser=whole(1), help="Tokens of one step.")] = 2048,
    max_running: Annotated[int, typer.Option(parser=whole(1), help="Sequences in one step.")] = 64,
    max_model_len: Annotated[int | None, typer.Option(parser=whole(1), help="Longest prompt with its answer.")] = None,
    prefill_rate: Annotated[float, typer.Option(parser=rate, help="Prompt tokens computed per second.")] = 20_000.0,
    decode_s: Annotated[float, typer.Option(parser=seconds, help="Least seconds of a step.")] = 0.01,
    sequence_s: Annotated[float, typer.Option(parser=seconds, help="Seconds of a step for each sequence in it.")] = 0.0002,
    time_scale: Annotated[float, typer.Option(parser=seconds, help="Stretches all step times; 0: no waiting.")] = 1.0,
    answer_tokens: Annotated[int, typer.Option(parser=whole(1), help="Tokens of an answer when nobody says.")] = 16,
    cached_tokens: Annotated[bool, typer.Option(help="Tell cached_tokens in usage.")] = True,
    prefix_caching: Annotated[bool, typer.Option(help="Keep blocks as hits.")] = True,
    chat_form: Annotated[str, typer.Option(parser=chat_form_of, help="chatml, or plain: a template of its own.")] = "chatml",
    tell_block_size: Annotated[int, typer.Option(parser=whole(0), help="Block size to name in pages; 0: the real one.")] = 0,
    clock_skew: Annotated[float, typer.Option(help="Seconds its clock is ahead.")] = 0.0,
    fault: Annotated[list[str] | None, typer.Option(help="A fault that is on from the start; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(parser=whole(0), help="Of faults that strike at a rate.")] = 0,
    drain: Annotated[float, typer.Option(parser=seconds, help="Seconds that open answers get after SIGTERM.")] = 2.0,
    write_tokenizer_to: Annotated[
        Path | None, typer.Option("--write-tokenizer", help="Write the byte tokenizer's folder for a gateway, and end.")
    ] = None,
    log_level: Annotated[str, typer.Option(parser=level, help="debug, info, warning or error.")] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> int:
    """Run fake engines with real caches until SIGTERM; prints one line when they take requests."""
    if replay is not None and events is None:
        raise typer.BadParameter(f"{replay!r} needs --events", param_hint="--replay")
    if event_form not in (None, *FORMS):
        raise typer.BadParameter(f"{event_form!r:.40} is not one of {', '.join(FORMS)}", param_hint="--event-form")
    logging.basicConfig(stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with exit_status(host, port):
        if write_tokenizer_to is not None:
            return _write(write_tokenizer_to)
        engine = MockSettings(
            model=model,
            dialect=dialect_of(dialect),
            adapters=tuple(adapter or ()),
            ranks=ranks,
            sizes=Sizes(
                num_blocks=num_blocks,
                block_tokens=block_size,
                max_batch_tokens=max_batch_tokens,
                max_running=max_running,
                groups=parse_groups(groups) if groups else (),
                group_blocks=group_blocks,
                caching=prefix_caching,
            ),
            times=StepTimes(prefill_tokens_per_s=prefill_rate, decode_s=decode_s, sequence_s=sequence_s, scale=time_scale),
            max_model_tokens=max_model_len,
            answer_tokens=answer_tokens,
            event_form=event_form or ("array" if dialect == "sglang" else "map"),
            topic=topic,
            buffer_steps=buffer_steps,
            tells_cached=cached_tokens,
            tells_block_tokens=tell_block_size or None,
            clock_skew_s=clock_skew,
            seed=seed,
        )
        fleet = FleetSettings(
            engine=engine,
            count=count,
            host=host,
            port=port,
            events=events,
            replay=replay,
            faults=[fault_of_flag(text) for text in fault or ()],
            drain_s=drain,
        )
        serve(fleet, _codec(tokenizer, chat_form), lambda ready: _announce(ready, fleet, as_json=as_json))
    return 0


def _codec(tokenizer: str | None, chat_form: str) -> Codec:
    if tokenizer is None:
        return ByteCodec(plain=chat_form == "plain")
    from gateway.tokenize.prompt import Tokenizer

    try:
        return Tokenizer.load(model_folder(tokenizer))
    except NoTokens as error:
        raise ReplicaError(f"--tokenizer {tokenizer}: {error}") from error


def _write(folder: Path) -> int:
    write_tokenizer(folder)
    typer.echo(str(folder))
    return 0


def _announce(ready: Sequence[Ready], fleet: FleetSettings, *, as_json: bool) -> None:
    engine = fleet.engine
    if as_json:
        rows = [{"port": one.port, "events": one.events, "replay": one.replay} for one in ready]
        typer.echo(json.dumps({"model": engine.model, "dialect": engine.dialect, "engines": rows}))
    else:
        ports = [one.port for one in ready]
        where = f"port {ports[0]}" if len(ports) == 1 else f"ports {min(ports)}..{max(ports)}"
        what = f"events {ready[0].events[0]}" if ready[0].events else "no events"
        typer.echo(f"trunkline mock-engine: {len(ready)} x {engine.model} as {engine.dialect} on {where}, {what}")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
