"""`trunkline explain`: what would happen to a request, asked of a running gateway.

Results go to stdout, complaints to stderr. Exit status: 0 it would be served, 1 refused or no answer, 2 wrong use.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from gateway.ask import CONTROL_URL, Unanswered, ask_json
from gateway.explain.table import report

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_WIDTH = 200  # columns, where the output is no terminal


@app.command("explain", epilog="Example: trunkline explain request.json --gateway http://127.0.0.1:8081")
def explain_command(
    file: Annotated[str, typer.Argument(help="Body of a chat or completion request, '-' for stdin.")],
    gateway: Annotated[str, typer.Option(help="The gateway's control plane.")] = CONTROL_URL,
    session: Annotated[str | None, typer.Option(help="As x-trunkline-session.")] = None,
    priority: Annotated[int, typer.Option(help="As x-trunkline-priority.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say where a request would go and why, with the price of every replica; nothing is sent to a replica."""
    try:
        body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        typer.echo(f"error: cannot read {file}: {error.strerror}", err=True)
        return 2
    headers = {"content-type": "application/json", "x-trunkline-priority": str(priority)}
    if session is not None:
        headers["x-trunkline-session"] = session
    try:
        row = asyncio.run(ask_json(gateway, "/explain", body=body, headers=headers))
    except Unanswered as error:
        typer.echo(f"error: {error}", err=True)
        return 2 if error.wrong_use else 1
    if as_json:
        typer.echo(orjson.dumps(row).decode())
    else:
        console = Console(file=sys.stdout, markup=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
        for part in report(row):
            console.print(part)
    return 0 if row["refused"] is None else 1
