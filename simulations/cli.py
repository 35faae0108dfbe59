"""`trunkline simulate`: the commands. Results on stdout, progress and complaints on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from simulations.cost import EngineSpec
from simulations.errors import SimulationError
from simulations.report.json import to_json
from simulations.report.plot import check_plot, draw
from simulations.report.summary import Slo, summarize
from simulations.report.table import TABLE_WIDTH, to_table
from simulations.run import FleetSpec, Run, check_policies, replay
from simulations.traces.columns import Trace
from simulations.traces.mooncake import read_mooncake
from simulations.traces.transform import speed_up, spread

_DEFAULT_POLICIES = "cost,least_loaded,round_robin"

app = typer.Typer(
    name="simulate",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Replay traces of requests over a modelled fleet, through the gateway's own policies.",
)


@app.callback()
def _room() -> None:
    """Keep `compare` a sub-command while it is the only one."""


@app.command("compare", epilog="Example: trunkline simulate compare conversation.jsonl --replicas 8 --plot ttft.png")
def compare_command(
    trace: Annotated[Path, typer.Argument(help="Mooncake JSONL, plain or gzip.")],
    replicas: Annotated[int, typer.Option(help="Modelled replicas.")] = 8,
    policies: Annotated[str, typer.Option(help="Names with commas between.")] = _DEFAULT_POLICIES,
    speed: Annotated[float, typer.Option(help="Let requests arrive this many times as fast.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 1,
    requests: Annotated[int | None, typer.Option(help="Only the first N requests of the file.")] = None,
    spread_arrivals: Annotated[
        bool, typer.Option("--spread/--no-spread", help="Spread coarse timestamps uniformly over their step.")
    ] = True,
    kv_tokens: Annotated[int, typer.Option(help="KV tokens a replica holds; 0 = without limit.")] = 448_000,
    event_delay: Annotated[float, typer.Option(help="Seconds until a KV event is visible.")] = 0.01,
    guesses: Annotated[
        bool, typer.Option("--guesses/--no-guesses", help="Count on what was placed and not answered yet.")
    ] = True,
    slo_ttft: Annotated[float, typer.Option(help="Goodput: seconds to the first token.")] = 5.0,
    slo_tpot: Annotated[float, typer.Option(help="Goodput: seconds per further token.")] = 0.1,
    plot: Annotated[Path | None, typer.Option(help="Write a picture, e.g. ttft.png.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Compare policies on one trace: hit rate, latency, goodput, balance."""
    try:
        names = check_policies([name.strip() for name in policies.split(",")])
        slo = Slo(ttft_s=slo_ttft, tpot_s=slo_tpot)
        engine = EngineSpec(kv_tokens=kv_tokens or None)
        spec = FleetSpec(engine=engine, replicas=replicas, event_delay_s=event_delay, guesses=guesses, seed=seed)
        if plot is not None:
            check_plot(plot)
        prepared = _prepare(trace, requests=requests, seed=seed if spread_arrivals else None, speed=speed)
        runs, wall_s = _replay_all(prepared, names, spec)
        summaries = [summarize(run, slo) for run in runs]
        if plot is not None:
            draw(runs, plot, f"{prepared.name}: {len(prepared):,} requests, {replicas} replicas, x{speed:g}")
    except SimulationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if json:
        typer.echo(to_json(prepared, spec, slo, seed, summaries))
    else:
        terminal = Console()
        console = Console(width=max(TABLE_WIDTH, terminal.width))
        title = f"{prepared.name}: {len(prepared):,} requests over {replicas} replicas"
        console.print(to_table(summaries, wall_s, slo, title))
        for note in (*prepared.notes, f"engine: {engine.name}"):
            console.print(note, style="dim", highlight=False)


def _prepare(path: Path, *, requests: int | None, seed: int | None, speed: float) -> Trace:
    """The trace as it will be replayed. seed: of the spread; None = timestamps stay as recorded."""
    trace = read_mooncake(path)
    if requests is not None:
        trace = trace.head(requests)
    # Before the speed-up: the clock's step is a property of the recording.
    if seed is not None:
        trace = spread(trace, seed)
    return speed_up(trace, speed)


def _replay_all(trace: Trace, policies: list[str], spec: FleetSpec) -> tuple[list[Run], list[float]]:
    """One run and its wall time in seconds per policy, with a bar for each on stderr."""
    runs, wall_s = [], []
    with _progress() as progress:
        for policy in policies:
            task = progress.add_task(policy, total=len(trace))
            started = time.perf_counter()
            runs.append(replay(trace, policy, spec, partial(_show, progress, task)))
            wall_s.append(time.perf_counter() - started)
    return runs, wall_s


def _show(progress: Progress, task: TaskID, done: int) -> None:
    progress.update(task, completed=done)


def _progress() -> Progress:
    columns = (TextColumn("{task.description:>16}"), BarColumn(), TextColumn("{task.completed:,.0f}/{task.total:,.0f}"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m simulations`; returns the exit status."""
    try:
        app(list(sys.argv[1:] if argv is None else argv), prog_name="python -m simulations")
    except SystemExit as end:  # how typer reports a status, wrong use included
        return end.code if isinstance(end.code, int) else 0
    return 0
