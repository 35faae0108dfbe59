"""`trunkline relay`: from engines' event sockets to Redis Streams.

Results go to stdout, complaints to stderr. Exit status: 0 ended by a signal, 1 another relay took over, 2 wrong use.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from typing import Annotated

import typer
from aiohttp import web

from events.errors import Fenced
from events.relay.outlet import Pace
from events.relay.relay import Relay
from events.relay.report import control_app, report
from events.relay.store import Place, check_url
from events.relay.target import Target, parse_target
from events.types import EventsError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(
    epilog="Example: TRUNKLINE_REDIS_URL=redis://redis:6379 "
    "trunkline relay --replica a=tcp://10.0.0.1:5557,tcp://10.0.0.1:5657,ranks=2"
)
def relay_command(
    replica: Annotated[
        list[str],
        typer.Option(help="NAME=EVENTS[,REPLAY][,ranks=..][,topic=..][,engine=vllm|sglang|trtllm|trunkline]; may be repeated."),
    ],
    redis: Annotated[
        str,
        typer.Option(
            envvar="TRUNKLINE_REDIS_URL", help="redis://, rediss:// or unix://; with a password, better from the environment."
        ),
    ],
    prefix: Annotated[str, typer.Option(help="What all keys begin with; gateways must use the same.")] = "trunkline",
    batch_ms: Annotated[
        float, typer.Option(min=0, max=10_000, help="Between two entries; so long a batch may wait for others.")
    ] = 20.0,
    batch_count: Annotated[int, typer.Option(min=1, help="Batches that are not kept waiting.")] = 256,
    snapshot_s: Annotated[float, typer.Option(min=0.1, help="A snapshot this often, while anything changes.")] = 60.0,
    snapshot_entries: Annotated[int, typer.Option(min=1, help="A snapshot after so many entries at the latest.")] = 10_000,
    keep_entries: Annotated[int, typer.Option(min=1, help="Entries left in a stream; those after its snapshot always.")] = 10_000,
    lease_s: Annotated[float, typer.Option(min=0.5, help="Without a sign of life for this long another relay may write.")] = 5.0,
    max_blocks: Annotated[int, typer.Option(min=1, help="Of one rank's view; beyond it the view is given up.")] = 8_000_000,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of /metrics, /livez and /readyz.")] = None,
    name: Annotated[str | None, typer.Option(help="Of this relay, for those it keeps out; host and process without it.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
) -> int:
    """Follow replicas as a gateway does and pass on what they announce, compactly, to all gateways that read this Redis."""
    pace = Pace(
        batch_s=batch_ms / 1000,
        entry_batches=batch_count,
        snapshot_s=snapshot_s,
        snapshot_entries=snapshot_entries,
        keep_entries=keep_entries,
        lease_s=lease_s,
    )
    try:
        level = _level(log_level)
        targets = _targets(replica)
        check_url(redis)
        address = _address(listen) if listen is not None else None
    except EventsError as error:
        typer.echo(f"error: {error}", err=True)
        return 2
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    relay = Relay(targets, Place(redis, prefix), pace=pace, name=name, max_blocks=max_blocks)
    try:
        asyncio.run(_run(relay, address, as_json))
    except Fenced as error:
        typer.echo(f"error: {error}", err=True)
        return 1
    except OSError as error:  # of `listen`
        typer.echo(f"error: cannot listen on {listen}: {error.strerror}", err=True)
        return 2
    return 0


async def _run(relay: Relay, address: tuple[str, int] | None, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, relay.end)
    runner = web.AppRunner(control_app(relay), access_log=None)
    port = None
    try:
        if address is not None:
            await runner.setup()
            site = web.TCPSite(runner, *address)
            await site.start()
            port = runner.addresses[0][1]
        text = f"trunkline: relaying {relay.ranks} ranks" + (f", metrics on port {port}" if port else "")
        typer.echo(json.dumps({"ranks": relay.ranks, "port": port}) if as_json else text)
        sys.stdout.flush()
        reporter = loop.create_task(report(relay), name="relay report")
        try:
            await relay.run()
        finally:
            reporter.cancel()
    finally:
        await runner.cleanup()


def _targets(texts: list[str]) -> list[Target]:
    targets = [parse_target(text) for text in texts]
    names = [target.name for target in targets]
    for target in targets:
        if names.count(target.name) > 1:
            raise EventsError(f"--replica {target.name}: given twice")
    return targets


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise EventsError(f"--listen must be HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def _level(text: str) -> int:
    levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if text not in levels:
        raise EventsError(f"--log-level must be one of {', '.join(levels)}, got {text!r}")
    return levels[text]
