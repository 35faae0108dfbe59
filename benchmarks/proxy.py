"""What the gateway costs on the way of a request, beside a direct connection and a plain aiohttp reverse proxy.

    python -m benchmarks.proxy            # about five minutes
    python -m benchmarks.proxy --quick    # one short round
    python -m benchmarks.proxy --json     # one JSON object as the last line

All run at once and are loaded in turn, several rounds in one run: machines drift, ratios hold. The gateways share core 0,
engine and load core 1, where there are two cores and `taskset`. CPU is the gateway's own, per request or per event.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.processes import Started, build_mock_engine, pinned

_ENGINES = 8
_GATEWAY_CORE, _LOAD_CORE = 0, 1
_BINARIES = Path(__file__).with_name("bin")
_COMMAND = [sys.executable, "-c", "import sys; from gateway.cli import main; sys.exit(main(sys.argv[1:]))"]
OURS, PLAIN, DIRECT = "trunkline", "aiohttp proxy", "direct"
OURS_BARE = "trunkline, no tokens"


@dataclass(frozen=True)
class Case:
    """One load. figure: the entry of its report that is compared; load: arguments of `benchmarks.load`."""

    name: str
    figure: str
    load: tuple[str, ...]
    direct: bool = False  # a direct connection has this figure too


@dataclass(frozen=True)
class Gateway:
    """One process under test; pid is None for the direct connection."""

    name: str
    url: str
    pid: int | None


def cases(quick: bool) -> list[Case]:
    """Every load of the benchmark."""
    seconds = ("--seconds", "1.5" if quick else "3", "--warm", "0.5" if quick else "1")
    cpu, chunk = "cpu_us_per_request", "cpu_us_per_chunk"
    paced = ("--gap-ms", "20", "--connections", "200" if quick else "300")
    return [
        Case("1 KB, CPU us per request", cpu, ("requests", "--bytes", "1024", *seconds)),
        Case("32 KB, CPU us per request", cpu, ("requests", "--bytes", "32768", *seconds)),
        Case("400 KB, CPU us per request", cpu, ("requests", "--bytes", "400000", "--connections", "16", *seconds)),
        Case("stream, no pause, CPU us per event", chunk, ("stream", *seconds)),
        Case("stream, 20 ms pause, CPU us per event", chunk, ("stream", *paced, *seconds)),
        Case("1 KB, p50 us", "latency_us_p50", ("latency", "--bytes", "1024", "--count", "200" if quick else "1000"), True),
        Case("32 KB, p50 us", "latency_us_p50", ("latency", "--bytes", "32768", "--count", "100" if quick else "500"), True),
        Case("400 KB, p50 us", "latency_us_p50", ("latency", "--bytes", "400000", "--count", "50" if quick else "100"), True),
    ]


def run(*, quick: bool, rounds: int, tokenizer: str, console: Console) -> dict[str, Any]:
    """Start everything, load it in turn, stop everything; returns the medians."""
    with ExitStack() as stack:
        gateways = start(stack, tokenizer)
        figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        bad = 0
        for number in range(rounds):
            for case in cases(quick):
                for gateway in gateways:
                    if gateway.pid is None and not case.direct:
                        continue
                    console.print(f"round {number + 1} of {rounds}: {case.name}: {gateway.name}", style="dim", highlight=False)
                    report = load(gateway, case, seed=number)
                    bad += report["bad"]
                    figures[case.name][gateway.name].append(report[case.figure])
                    if "rss_mib" in report and "--gap-ms" in case.load:
                        figures["RSS with the paced streams open, MiB"][gateway.name].append(report["rss_mib"])
    medians = {case: {name: median(values) for name, values in row.items()} for case, row in figures.items()}
    return {"rounds": rounds, "bad_answers": bad, "figures": with_added_latency(medians)}


def start(stack: ExitStack, tokenizer: str) -> list[Gateway]:
    """The engine and the gateways, all answering."""
    engine = stack.enter_context(Started([str(build_mock_engine(_BINARIES)), str(_ENGINES)], _LOAD_CORE))
    urls = [f"http://127.0.0.1:{port}" for port in engine.first_line.split()]
    plain = stack.enter_context(Started([sys.executable, "-m", "benchmarks.aiohttp_proxy", *urls], _GATEWAY_CORE))
    replicas = [argument for url in urls for argument in ("--replica", url)]
    serve = [*_COMMAND, "serve", *replicas, "--host", "127.0.0.1", "--port", "0", "--control-port", "0", "--json"]
    serve += ["--log-level", "warning"]
    ours = stack.enter_context(Started([*serve, "--policy", "cost", "--tokenizer", tokenizer], _GATEWAY_CORE))
    bare = stack.enter_context(Started([*serve, "--policy", "round_robin"], _GATEWAY_CORE))
    gateways = [
        Gateway(DIRECT, urls[0], None),
        Gateway(PLAIN, f"http://127.0.0.1:{plain.first_line}", plain.pid),
        Gateway(OURS, f"http://127.0.0.1:{json.loads(ours.first_line)['data_port']}", ours.pid),
        Gateway(OURS_BARE, f"http://127.0.0.1:{json.loads(bare.first_line)['data_port']}", bare.pid),
    ]
    for gateway in gateways:
        wait_until_ready(gateway, needs_tokens=gateway.name == OURS)
    return gateways


def wait_until_ready(gateway: Gateway, *, needs_tokens: bool, within_s: float = 60.0) -> None:
    """Ask until it answers, with token counts where they belong to what is measured."""
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "ready?"}]}).encode()
    request = urllib.request.Request(f"{gateway.url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                if not needs_tokens or "x-trunkline-prompt-tokens" in answer.headers:
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"error: {gateway.name} was not ready within {within_s:.0f} s")


def load(gateway: Gateway, case: Case, seed: int) -> dict[str, Any]:
    """One load on one gateway; its report."""
    command = [sys.executable, "-m", "benchmarks.load", *case.load, "--url", gateway.url, "--seed", str(seed)]
    if gateway.pid is not None and case.load[0] != "latency":
        command += ["--pid", str(gateway.pid)]
    done = subprocess.run(pinned(command, _LOAD_CORE), stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def with_added_latency(medians: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Latencies less the direct connection's: what each gateway adds."""
    result = {}
    for case, row in medians.items():
        if DIRECT not in row:
            result[case] = row
            continue
        result[case.replace("p50", "added p50")] = {name: value - row[DIRECT] for name, value in row.items() if name != DIRECT}
    return result


def table(report: dict[str, Any]) -> Table:
    """The figures side by side, and how ours relate to the plain proxy's."""
    shown = Table(title=f"medians of {report['rounds']} rounds; lower is better")
    shown.add_column("")
    for name in (PLAIN, OURS, OURS_BARE, f"{OURS} / {PLAIN}"):
        shown.add_column(name, justify="right")
    for case, row in report["figures"].items():
        ratio = row[OURS] / row[PLAIN]
        shown.add_row(case, *(f"{row[name]:,.1f}" for name in (PLAIN, OURS, OURS_BARE)), f"{ratio:.2f}x")
    return shown


def main() -> int:
    """Entry point of `python -m benchmarks.proxy`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, help="default 3, or 1 with --quick")
    parser.add_argument("--tokenizer", default="smollm2", help="as `trunkline serve --tokenizer`")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    console = Console(stderr=True)
    if args.tokenizer == "smollm2":
        subprocess.run([*_COMMAND, "model", "fetch", "smollm2"], stdout=subprocess.DEVNULL, check=True)
    report = run(quick=args.quick, rounds=args.rounds or (1 if args.quick else 3), tokenizer=args.tokenizer, console=console)
    if args.json:
        report["ratios_to_aiohttp"] = {case: row[OURS] / row[PLAIN] for case, row in report["figures"].items()}
        print(json.dumps(report))
    else:
        Console().print(table(report))
    if report["bad_answers"]:
        print(f"error: {report['bad_answers']} answers were not 200", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
