"""`trunkline replica`: run one replica."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from replicas.machine import machine_memory_bytes
from replicas.options import endpoint, exit_status, level, seconds, whole

if TYPE_CHECKING:
    from replicas.serve import ServeSettings

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST_THREADS = 1024  # no machine has more cores to give to one model


def memory_bytes(text: str) -> int:
    """'1GiB', '512MiB', '1.5G' or plain bytes, as bytes; no more than the machine has."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
    if not found:
        raise typer.BadParameter(f"{text!r:.40} is not a size such as 1GiB or 512MiB")
    size = float(found[1]) * _UNITS[found[2].upper()]
    if size > (present := machine_memory_bytes()):
        raise typer.BadParameter(f"{text!r:.40} is more than this machine's memory of {present >> 20} MiB")
    return int(size)


@app.command(epilog="Example: trunkline replica --model smollm2 --port 8000 --events tcp://*:5557 --replay tcp://*:5558")
def replica(
    model: Annotated[str, typer.Option(help="smollm2, tiny (random weights), or a Hugging Face folder.")] = "smollm2",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(parser=whole(0, 65535), help="HTTP port; 0 takes a free one.")] = 8000,
    events: Annotated[str | None, typer.Option(parser=endpoint, help="Publish KV events here, e.g. tcp://*:5557.")] = None,
    replay: Annotated[str | None, typer.Option(parser=endpoint, help="Repeat recent events here, e.g. tcp://*:5558.")] = None,
    topic: Annotated[str, typer.Option(help="Topic of the events.")] = "",
    block_size: Annotated[int, typer.Option(parser=whole(1), help="Tokens of one KV block.")] = 16,
    num_blocks: Annotated[
        int | None, typer.Option(parser=whole(1), help="KV blocks; without it, as many as --kv-memory holds.")
    ] = None,
    kv_memory: Annotated[
        int, typer.Option(parser=memory_bytes, metavar="SIZE", show_default="1GiB", help="Memory for KV blocks.")
    ] = 1 << 30,
    max_batch_tokens: Annotated[int, typer.Option(parser=whole(1), help="Tokens of one step.")] = 128,
    max_running: Annotated[int, typer.Option(parser=whole(1), help="Sequences in one step.")] = 32,
    served_model_name: Annotated[str | None, typer.Option(help="Name in the API; without it, what --model says.")] = None,
    threads: Annotated[int, typer.Option(parser=whole(1, _MOST_THREADS), help="Threads of the model.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    drain: Annotated[float, typer.Option(parser=seconds, help="Seconds that open answers get after SIGTERM.")] = 30.0,
    log_level: Annotated[str, typer.Option(parser=level, help="debug, info, warning or error.")] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> int:
    """Run one engine replica until SIGTERM; prints one line when it takes requests."""
    if replay is not None and events is None:
        raise typer.BadParameter(f"{replay!r} needs --events", param_hint="--replay")
    logging.basicConfig(stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    from replicas.serve import ServeSettings  # torch and the model's libraries load here, once the options are known to be right

    settings = ServeSettings(
        model_name=served_model_name or model,
        host=host,
        port=port,
        events=events,
        replay=replay,
        topic=topic,
        block_tokens=block_size,
        num_blocks=num_blocks,
        kv_memory_bytes=kv_memory,
        max_batch_tokens=max_batch_tokens,
        max_running=max_running,
        drain_s=drain,
    )
    return _serve_model(settings, model, threads=threads, dtype=dtype, as_json=as_json)


def _serve_model(settings: ServeSettings, model: str, *, threads: int, dtype: str, as_json: bool) -> int:
    from replicas.runner import load_runner
    from replicas.serve import Ready, load_tokenizer, serve

    def announce(ready: Ready) -> None:
        line = {"port": ready.port, "events": ready.events, "replay": ready.replay, "num_blocks": ready.num_blocks}
        place = f"events {ready.events}" if ready.events else "no events"
        text = f"trunkline replica: {settings.model_name} on port {ready.port}, {place}, {ready.num_blocks} blocks"
        typer.echo(json.dumps(line) if as_json else text)
        sys.stdout.flush()

    def progress(line: str) -> None:
        typer.echo(line, err=True)

    with exit_status(settings.host, settings.port):
        runner = load_runner(model, threads=threads, dtype=dtype, progress=progress)
        serve(settings, runner, load_tokenizer(model, progress), announce)
    return 0


if __name__ == "__main__":
    app()
