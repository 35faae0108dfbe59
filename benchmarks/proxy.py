"""What the gateway costs on the way of a request, beside a direct connection and a plain aiohttp reverse proxy.

    python -m benchmarks.proxy               # about five minutes
    python -m benchmarks.proxy --quick       # one short round
    python -m benchmarks.proxy --json        # one JSON object as the last line
    python -m benchmarks.proxy --peer smg    # beside smg and a raw relay too; about twenty minutes

All run at once and are loaded in turn, several rounds in one run: machines drift, ratios hold. The gateways share core 0,
engine and load core 1, where there are two cores and `taskset`. CPU is the gateway's own, per request or per event. With a peer
our gateway follows KV events, and all system prompts were seen before; without, each round has new ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import proxy_memory
from benchmarks.environments import CannotInstall
from benchmarks.processes import busy_share, pinned
from benchmarks.proxy_gateways import (
    COMMAND,
    DIRECT,
    LOAD_CORE,
    OURS,
    OURS_BARE,
    PLAIN,
    RAW,
    SMG,
    Fleet,
    Gateway,
    smg_environment,
    wait_until_ready,
)

_FAMILY = "7"  # of system prompts, where they are the same in all rounds
_QUIET_SHARE = 0.1  # of the machine, for others


@dataclass(frozen=True)
class Case:
    """One load. figure: the entry of its report that is compared; load: arguments of `benchmarks.load`; key: in the JSON."""

    name: str
    figure: str
    load: tuple[str, ...]
    key: str
    direct: bool = False  # a direct connection has this figure too


def cases(quick: bool, streams: int) -> list[Case]:
    """Every load of the benchmark. streams: how many are open where events come 20 ms apart."""
    seconds = ("--seconds", "1.5" if quick else "3", "--warm", "0.5" if quick else "1")
    cpu, chunk, p50 = "cpu_us_per_request", "cpu_us_per_chunk", "latency_us_p50"
    paced = ("--gap-ms", "20", "--connections", "200" if quick else str(streams))
    counts = {"1024": (200, 1000), "32768": (100, 500), "400000": (50, 100)}
    latency = {size: ("latency", "--bytes", size, "--count", str(counts[size][not quick])) for size in counts}
    return [
        Case("1 KB, CPU us per request", cpu, ("requests", "--bytes", "1024", *seconds), "chat_1k"),
        Case("32 KB, CPU us per request", cpu, ("requests", "--bytes", "32768", *seconds), "chat_32k"),
        Case("400 KB, CPU us per request", cpu, ("requests", "--bytes", "400000", "--connections", "16", *seconds), "chat_400k"),
        Case("stream, no pause, CPU us per event", chunk, ("stream", *seconds), "chunk_zero_delay"),
        Case("stream, 20 ms pause, CPU us per event", chunk, ("stream", *paced, *seconds), "chunk_25k"),
        Case("1 KB, p50 us", p50, latency["1024"], "added_p50_1k", direct=True),
        Case("32 KB, p50 us", p50, latency["32768"], "added_p50_32k", direct=True),
        Case("400 KB, p50 us", p50, latency["400000"], "added_p50_400k", direct=True),
    ]


def run(*, quick: bool, rounds: int, tokenizer: str, smg: Path | None, console: Console) -> dict[str, Any]:
    """Start everything, load it in turn, stop everything; returns the medians. smg: its environment, to measure it too."""
    loads = cases(quick, 300 if smg is None else 500)
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    bad: dict[str, int] = defaultdict(int)
    load_before, busy = os.getloadavg()[0], []
    with ExitStack() as stack:
        fleet = Fleet(stack, tokenizer, events=smg is not None)
        if smg is None:
            gateways = [fleet.direct(), fleet.plain(), fleet.ours(), fleet.bare()]
        else:
            gateways = [fleet.direct(), fleet.raw(), fleet.plain(), fleet.ours(), fleet.smg(smg)]
        wait_until_ready(gateways)
        if smg is not None:
            _warm_up(gateways, loads, console)
        for number in range(1, rounds + 1):
            busy.append(busy_share(1.0))
            for case in loads:
                for gateway in gateways:
                    if gateway.pid is None and not case.direct:
                        continue
                    console.print(f"round {number} of {rounds}: {case.name}: {gateway.name}", style="dim", highlight=False)
                    report = load(gateway, case.load, number, None if smg is None else _FAMILY)
                    bad[gateway.name] += report["bad"]
                    figures[case.name][gateway.name].append(report[case.figure])
                    if "rss_mib" in report and "--gap-ms" in case.load:
                        figures["RSS with the paced streams open, MiB"][gateway.name].append(report["rss_mib"])
    medians = {case: {name: median(values) for name, values in row.items()} for case, row in figures.items()}
    return {
        "rounds": rounds,
        "quick": quick,
        "machine": {
            "cores": os.cpu_count(),
            "load_1m_before": round(load_before, 2),
            "busy_with_others": [round(share, 3) for share in busy],
            "quiet": max(busy) <= _QUIET_SHARE,
        },
        "bad_answers": sum(count for name, count in bad.items() if name != SMG),
        "bad_answers_by_gateway": dict(bad),
        "figures": with_added_latency(medians),
    }


def load(gateway: Gateway, arguments: tuple[str, ...], seed: int, family: str | None) -> dict[str, Any]:
    """One load on one gateway; its report."""
    command = [sys.executable, "-m", "benchmarks.load", *arguments, "--url", gateway.url, "--seed", str(seed)]
    if family is not None:
        command += ["--family", family]
    if gateway.pid is not None and arguments[0] != "latency":
        command += ["--pid", str(gateway.pid)]
    done = subprocess.run(pinned(command, LOAD_CORE), stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _warm_up(gateways: list[Gateway], loads: list[Case], console: Console) -> None:
    """Every load once, not measured: each of the 16 prompts of each size has then been seen."""
    for case in loads:
        for gateway in gateways:
            console.print(f"warm-up: {case.name}: {gateway.name}", style="dim", highlight=False)
            brief = ("--count", "100") if case.direct else ("--seconds", "1", "--warm", "0.2")
            load(gateway, (*case.load, *brief), 0, _FAMILY)


def with_added_latency(medians: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Latencies less the direct connection's: what each gateway adds."""
    result = {}
    for case, row in medians.items():
        if DIRECT not in row:
            result[case] = row
            continue
        result[case.replace("p50", "added p50")] = {name: value - row[DIRECT] for name, value in row.items() if name != DIRECT}
    return result


def ratios_to_smg(report: dict[str, Any]) -> dict[str, float]:
    """Ours over smg's, by the keys of the cases."""
    keys = {case.name.replace("p50", "added p50"): case.key for case in cases(quick=True, streams=0)}
    return {keys[name]: row[OURS] / row[SMG] for name, row in report["figures"].items() if name in keys}


def table(report: dict[str, Any], peer: bool) -> Table:
    """The figures side by side, and how ours relate to the others'."""
    names = (RAW, PLAIN, SMG, OURS) if peer else (PLAIN, OURS, OURS_BARE)
    others = (SMG, PLAIN) if peer else (PLAIN,)
    machine = report["machine"]
    state = "nothing else ran" if machine["quiet"] else f"others used up to {max(machine['busy_with_others']):.0%} of the machine"
    shown = Table(title=f"medians of {report['rounds']} rounds; lower is better; {state}")
    shown.add_column("")
    for name in (*names, *(f"{OURS} / {other}" for other in others)):
        shown.add_column(name, justify="right")
    for case, row in report["figures"].items():
        ratios = (f"{row[OURS] / row[other]:.2f}x" for other in others)
        shown.add_row(case, *(f"{row[name]:,.1f}" for name in names), *ratios)
    return shown


def main() -> int:
    """Entry point of `python -m benchmarks.proxy`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, help="default 3, or 1 with --quick")
    parser.add_argument("--tokenizer", default="smollm2", help="as `trunkline serve --tokenizer`")
    parser.add_argument("--peer", choices=("smg",), help="install it, and measure beside it")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    console = Console(stderr=True)
    try:
        smg = smg_environment() if args.peer else None
    except CannotInstall as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.tokenizer == "smollm2":
        subprocess.run([*COMMAND, "model", "fetch", "smollm2"], stdout=subprocess.DEVNULL, check=True)
    rounds = args.rounds or (1 if args.quick else 3)
    report = run(quick=args.quick, rounds=rounds, tokenizer=args.tokenizer, smg=smg, console=console)
    if smg is not None:
        report["memory"] = proxy_memory.measure(args.tokenizer, smg, quick=args.quick, say=console.print)
        report["ratios_to_smg"] = ratios_to_smg(report) | proxy_memory.ratios(report["memory"])
    report["machine"]["load_1m_after"] = round(os.getloadavg()[0], 2)
    if args.json:
        report["ratios_to_aiohttp"] = {case: row[OURS] / row[PLAIN] for case, row in report["figures"].items()}
        print(json.dumps(report))
    else:
        Console().print(table(report, smg is not None))
        if smg is not None:
            Console().print_json(data={"ratios_to_smg": report["ratios_to_smg"], "memory": report["memory"]})
    if report["bad_answers"]:
        print(f"error: {report['bad_answers']} answers were not 200", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
