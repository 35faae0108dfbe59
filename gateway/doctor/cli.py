"""`trunkline doctor`: what is wrong between a gateway and its replicas, and how to mend it.

Results go to stdout, complaints to stderr. Exit status: 0 nothing to mend, 1 an error or a warning was found or nobody answered,
2 wrong use.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import orjson
import typer

from gateway.ask import CONTROL_URL, Unanswered, ask_json
from gateway.doctor.row import Row, report
from gateway.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command("doctor", epilog="Example: trunkline doctor --gateway http://127.0.0.1:8081")
def doctor_command(
    gateway: Annotated[str | None, typer.Option(help=f"A running gateway's control plane; {CONTROL_URL} unless given.")] = None,
    config: Annotated[Path | None, typer.Option(help="Examine the replicas of a YAML file, without a running gateway.")] = None,
    probe: Annotated[bool, typer.Option(help="Send each replica a prompt of a few blocks, twice.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Examine every replica: reachable, events, block size, cached tokens, tokenizer, adapters, clock, identity."""
    if gateway is not None and config is not None:
        typer.echo("error: give --gateway or --config, not both", err=True)
        return 2
    try:
        row = _examined(config, probe=probe) if config is not None else _asked(gateway or CONTROL_URL, probe=probe)
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    except Unanswered as error:
        typer.echo(f"error: {error}", err=True)
        return 2 if error.wrong_use else 1
    for line in [orjson.dumps(row).decode()] if as_json else report(row):
        typer.echo(line)
    return 0 if row["healthy"] else 1


def _asked(gateway: str, *, probe: bool) -> Row:
    row: Row = asyncio.run(ask_json(gateway, f"/doctor?probe={int(probe)}", body=b""))
    return row


def _examined(config: Path, *, probe: bool) -> Row:
    """By a gateway of our own that serves nobody; loads the server, which takes a moment."""
    from gateway.doctor.private import examine

    logging.basicConfig(level="ERROR")
    return asyncio.run(examine(config, probe=probe))
