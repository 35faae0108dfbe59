"""Run the demo: `python -m benchmarks.demo [--json] [--serve] [--short]`."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from benchmarks.demo.http import get_json
from benchmarks.demo.play import Plan, Turn, clear_caches, play, warm_up
from benchmarks.demo.processes import Process, ProcessError, free_ports, trunkline
from benchmarks.demo.report import show_policy, show_side_by_side, summary
from replicas.errors import ReplicaError
from replicas.fetch import fetch_smollm2

_REPLICAS = 2
_SHORT = Plan(users=3, turns=2, max_tokens=12)
_OUT = Console()
_PROGRESS = Console(stderr=True)


def main(
    json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line instead of tables.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Leave replicas and gateway running.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Two turns and short answers.")] = False,
) -> None:
    """Two real SmolLM2 replicas behind the gateway: the same chats under `cost` and `round_robin`."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a script started us in the background
    try:
        with ExitStack() as children, tempfile.TemporaryDirectory(prefix="trunkline-demo-") as logs:
            _run(children, Path(logs), json=json, serve=serve, plan=_SHORT if short else Plan())
    except (ProcessError, ReplicaError, RuntimeError, OSError) as error:
        _PROGRESS.print(f"[red]the demo failed:[/] {error}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        _PROGRESS.print("stopped")
        raise typer.Exit(130) from None


def _run(children: ExitStack, logs: Path, *, json: bool, serve: bool, plan: Plan) -> None:
    started = time.monotonic()
    _fetch_model()
    urls = _start_replicas(children, logs)
    if serve:
        _serve(children, logs, urls)
        return
    warm_up(urls)
    played: dict[str, list[Turn]] = {}
    for policy in ("cost", "round_robin"):
        clear_caches(urls)
        with _start_gateway(logs, urls, policy) as gateway:
            _say(f"policy {policy}: {plan.users} users, {plan.turns} turns each")
            base_url = f"http://127.0.0.1:{orjson.loads(gateway.ready_line)['data_port']}"
            played[policy] = play(base_url, plan, _say_turn)
        if not json:
            show_policy(_OUT, policy, played[policy])
    if json:
        result = {
            "policies": {policy: summary(turns) for policy, turns in played.items()},
            "replicas": _REPLICAS,
            "model": "SmolLM2-135M-Instruct",
            "wall_s": round(time.monotonic() - started, 1),
        }
        sys.stdout.write(orjson.dumps(result).decode() + "\n")
    else:
        show_side_by_side(_OUT, played)
        _OUT.print("`make demo ARGS=--serve` leaves it running for you to talk to.")


def _fetch_model() -> None:
    fetch_smollm2(_say)


def _start_replicas(children: ExitStack, logs: Path) -> list[str]:
    ports = free_ports(3 * _REPLICAS)
    replicas = []
    for number in range(_REPLICAS):
        http, events, replay = ports[3 * number : 3 * number + 3]
        command = trunkline(
            "replica", "--model", "smollm2", "--host", "127.0.0.1", "--port", str(http), "--threads", "1",
            "--events", f"tcp://127.0.0.1:{events}", "--replay", f"tcp://127.0.0.1:{replay}",
        )  # fmt: skip
        # One thread each: two replicas on one small machine then disturb each other least.
        process = Process(f"replica-{number + 1}", command, logs / f"replica-{number + 1}.log", {"OMP_NUM_THREADS": "1"})
        children.callback(process.stop)
        replicas.append((process, f"http://127.0.0.1:{http}"))
    _say(f"loading the model into {_REPLICAS} replicas")
    for process, url in replicas:
        process.wait_ready(180)
        _say(f"{process.name} is ready at {url}")
    return [url for _, url in replicas]


def _start_gateway(logs: Path, urls: list[str], policy: str, port: int = 0) -> Process:
    named = [f"{url},name=replica-{number + 1}" for number, url in enumerate(urls)]
    command = trunkline(
        "serve", "--json", "--policy", policy, "--tokenizer", "smollm2", "--host", "127.0.0.1", "--port", str(port),
        "--control-port", "0", *(word for replica in named for word in ("--replica", replica)),
    )  # fmt: skip
    process = Process("gateway", command, logs / f"gateway-{policy}.log")
    try:
        process.wait_ready(60)
        _wait_until_usable(orjson.loads(process.ready_line)["control_port"], len(urls))
    except BaseException:
        process.stop()
        raise
    return process


def _wait_until_usable(control_port: int, replicas: int) -> None:
    """Every replica checked and its events followed, and the tokenizer loaded."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = get_json(f"http://127.0.0.1:{control_port}/status")
        live = sum(rank["freshness"] == "live" for replica in status["replicas"] for rank in replica["ranks"])
        if live == replicas and status["tokenizer"] == "ready":
            return
        time.sleep(0.1)
    raise ProcessError(f"the gateway did not get to know all replicas: {status}")


def _serve(children: ExitStack, logs: Path, urls: list[str]) -> None:
    gateway = children.enter_context(_start_gateway(logs, urls, "cost", port=8080))
    ports = orjson.loads(gateway.ready_line)
    _OUT.print(f"The gateway listens on port {ports['data_port']}. Talk to it, twice, and look at the headers:\n")
    question = '"messages":[{"role":"user","content":"What is a lighthouse?"}]'
    body = '{"model":"smollm2","stream":true,"temperature":0,"max_tokens":40,' + question + "}"
    _OUT.print(
        f"  curl -iN http://127.0.0.1:{ports['data_port']}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    _OUT.print("Why each request went where it went:\n")
    _OUT.print(f"  curl 'http://127.0.0.1:{ports['control_port']}/receipts?limit=3'\n", markup=False, soft_wrap=True)
    _OUT.print("Ctrl-C stops everything.")
    signal.pause()


def _say(text: str) -> None:
    _PROGRESS.print(f"[dim]{text}[/]" if _PROGRESS.is_terminal else text, highlight=False)


def _say_turn(turn: Turn) -> None:
    _say(
        f"  turn {turn.number} {turn.user:5} {turn.replica} {turn.cached_tokens:4d} of {turn.prompt_tokens} tokens cached, "
        f"first token {turn.ttft_s * 1000:.0f} ms"
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
