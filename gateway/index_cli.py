"""`trunkline index`: what a running gateway believes its replicas have cached.

Results go to stdout, complaints to stderr. Exit status: 0 done, 1 the gateway cannot be asked, 2 wrong use.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

import aiohttp
import orjson
import typer
from rich.console import Console
from rich.table import Table

from gateway.ask import CONTROL_URL, Unanswered, message_of

Row = dict[str, Any]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Show what a running gateway believes its replicas have cached.",
)

_LINE_BYTES = 4 * 2**20
_WIDTH = 160  # columns, where the output is no terminal
_HOLDER_COLUMNS = ("replica", "rank", "freshness", "connected", "block_tokens", "blocks", "batches", "gaps", "restarts", "digest")
_BLOCK_COLUMNS = ("tier", "group", "depth", "block_tokens", "copies", "adapter", "salted", "images")
_TOKEN_COLUMNS = ("hash", "tokens")

Url = Annotated[str, typer.Option(help="The gateway's control plane.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Digest = Annotated[bool, typer.Option("--digest", help="With digests, equal for equal views; costs a look at every block.")]


@app.command("stats", epilog="Example: trunkline index stats --url http://127.0.0.1:8081 --digest")
def stats_command(url: Url = CONTROL_URL, digest: Digest = False, as_json: Json = False) -> int:
    """Show the sizes of the index, and of each holder its view."""

    async def show() -> None:
        async for answer in _answers(f"{url}/index/stats", {"digest": str(int(digest))}, token=None):
            if as_json:
                _say(answer)
                continue
            holders = answer.pop("by_holder")
            _print(_table([answer], tuple(answer)))
            _print(_table(holders, _HOLDER_COLUMNS if digest else _HOLDER_COLUMNS[:-1]))

    return _run(show)


@app.command("dump", epilog="Example: trunkline index dump --replica vllm-0 --limit 50")
def dump_command(
    url: Url = CONTROL_URL,
    replica: Annotated[str | None, typer.Option(help="Only this replica.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Blocks at most, of all holders together.")] = 1000,
    digest: Digest = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="With hashes and token ids; needs TRUNKLINE_ADMIN_TOKEN.")] = False,
    as_json: Json = False,
) -> int:
    """Show blocks of each holder: tier, cache group, and how deep in a prompt they lie."""
    wanted = {"replica": replica, "rank": rank, "limit": limit, "digest": int(digest), "tokens": int(tokens)}
    query = {name: str(value) for name, value in wanted.items() if value is not None}
    columns = _BLOCK_COLUMNS + (_TOKEN_COLUMNS if tokens else ())

    async def show() -> None:
        blocks: list[Row] = []
        async for row in _answers(f"{url}/index/dump", query, token=os.environ.get("TRUNKLINE_ADMIN_TOKEN") if tokens else None):
            if as_json:
                _say(row)
            elif row["kind"] == "block":
                blocks.append(row)
            else:
                if blocks:
                    _print(_table(sorted(blocks, key=_place), columns))
                    blocks = []
                typer.echo(_headline(row))

    return _run(show)


async def _answers(url: str, query: dict[str, str], *, token: str | None) -> AsyncIterator[Row]:
    """The JSON lines of an answer as they come; raises Unanswered."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        async with (
            aiohttp.ClientSession(read_bufsize=_LINE_BYTES) as session,
            session.get(url, params=query, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                message = message_of(await answer.read()) or f"status {answer.status}"
                raise Unanswered(f"{url}: {message}", wrong_use=answer.status < 500)
            async for line in answer.content:
                yield orjson.loads(line)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise Unanswered(f"cannot ask {url}: {str(error) or type(error).__name__}") from error


def _run(show: Callable[[], Coroutine[None, None, None]]) -> int:
    try:
        asyncio.run(show())
    except Unanswered as error:
        typer.echo(f"error: {error}", err=True)
        return 2 if error.wrong_use else 1
    return 0


def _place(row: Row) -> tuple[str, int, int]:
    return row["tier"], row["group"], row["depth"] or 0


def _headline(row: Row) -> str:
    if row["kind"] == "end":
        return f"{row['shown']} blocks shown" + (", there are more" if row["more"] else "")
    digest = f", digest {row['digest']}" if row["digest"] else ""
    blocks = "no events" if row["batches"] is None else f"{row['blocks']} blocks"
    return f"{row['replica']} rank {row['rank']}: {blocks}, {row['freshness']}{digest}"


def _table(rows: list[Row], columns: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if rows and isinstance(rows[0].get(name), int) else "left")
    for row in rows:
        table.add_row(*["" if row.get(name) is None else _cell(row[name]) for name in columns])
    return table


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _print(table: Table) -> None:
    Console(file=sys.stdout, markup=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH).print(table)


def _say(row: Row) -> None:
    typer.echo(orjson.dumps(row).decode())
    sys.stdout.flush()
