"""`trunkline top`: the fleet of a running gateway, live.

Results go to stdout, complaints to stderr. Exit status: 0 done, 1 the gateway cannot be asked, 2 wrong use.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import aiohttp
import orjson
import typer
from rich.console import Console
from rich.live import Live

from gateway.ask import CONTROL_URL, Unanswered, ask_json
from gateway.top.frame import Row, frame_of
from gateway.top.table import screen

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_RECEIPTS = 1000
_WIDTH = 180  # columns, where the output is no terminal


@app.command("top", epilog="Example: trunkline top --gateway http://127.0.0.1:8081 --interval 2")
def top_command(
    gateway: Annotated[str, typer.Option(help="The gateway's control plane.")] = CONTROL_URL,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two frames.")] = 1.0,
    window: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds whose requests count.")] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object a frame.")] = False,
) -> int:
    """Show load, cache hits, times to first token and reasons of every replica, until interrupted."""
    try:
        asyncio.run(_show(gateway, interval, window, once=once, as_json=as_json))
    except Unanswered as error:
        typer.echo(f"error: {error}", err=True)
        return 2 if error.wrong_use else 1
    except KeyboardInterrupt:  # the usual way out
        pass
    return 0


async def _show(gateway: str, interval_s: float, window_s: float, *, once: bool, as_json: bool) -> None:
    console = Console(file=sys.stdout, markup=False, highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    async with aiohttp.ClientSession() as session:
        if once or as_json:
            while True:
                frame = await _frame(gateway, window_s, session)
                if as_json:
                    typer.echo(orjson.dumps(frame).decode())
                    sys.stdout.flush()
                else:
                    console.print(screen(frame))
                if once:
                    return
                await asyncio.sleep(interval_s)
        first = screen(await _frame(gateway, window_s, session))
        with Live(first, console=console, screen=sys.stdout.isatty(), auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval_s)
                live.update(screen(await _frame(gateway, window_s, session)), refresh=True)


async def _frame(gateway: str, window_s: float, session: aiohttp.ClientSession) -> Row:
    status, receipts = await asyncio.gather(
        ask_json(gateway, "/status", session=session), ask_json(gateway, f"/receipts?limit={_RECEIPTS}", session=session)
    )
    return frame_of(status, receipts["receipts"], window_s=window_s, limit=_RECEIPTS)
