"""Twice the load a fleet can carry: `make overload`, or `python -m tests.overload --minutes 10`.

A gateway stands in front of fake engines that are killed and started again; clients ask for twice what the engines' cost model
can answer, in mixed sizes, streamed and not, and some leave at any moment, dawdle or never read. Every request has to be answered
or refused with a reason, each answer whole or visibly broken off. Now and then all falls quiet, and nothing may be left: no
request in flight or waiting, in the gateway or in an engine, and no memory. Exit status 1 when something was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import yaml

from replicas.mock.tokens import write_tokenizer
from tests.overload.clients import Clients
from tests.overload.demand import Demand, capacity_per_s
from tests.overload.fleet import Fleet
from tests.soak.lines import Child
from tests.soak.verdict import Quiet, Verdict

_SAMPLE_S = 2.0
_SETTLE_S = 20.0
_KEPT_S = 5.0  # after it no connection to an engine is kept
_LEFT_OVER = re.compile(r"trunkline_(?:in_flight|queued_tokens|open_connections|\w*waiting\w*)(?:\{[^}]*\})? (\S+)")
LIMITS = {"first_byte_s": 15.0, "silence_s": 10.0, "write_stall_s": 5.0, "body_stall_s": 5.0, "connect_s": 1.0}


class Overload:
    """One run."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self._verdict = Verdict()
        self._started_at = time.monotonic()
        self._most_open = 0
        self._steady = args.minutes >= 2  # long enough to speak of growth
        demand = Demand(args.seed)
        self._capacity = capacity_per_s([demand.draw() for _ in range(3000)], args.engines)

    async def run(self) -> dict[str, Any]:
        """Start everything, let it run, judge; the summary."""
        args = self._args
        self._fleet = Fleet(args.engines, self._folder, args.seed)
        try:
            await self._fleet.ready()
            self._gateway = await self._start_gateway()
            clients = Clients(self._gateway.ready["data_port"], args.seed, args.load * self._capacity)
            try:
                await self._cycles(clients)
                sample = await self._gateway.ask("sample", quiet=True)
            finally:
                status = await self._gateway.stop(terminate=True)
            if status:
                self._verdict.failures.append(f"the gateway ended with {status}: {self._gateway.log_tail()}")
        finally:
            self._fleet.stop()
        return self._summary(sample, clients)

    async def _cycles(self, clients: Clients) -> None:
        end = time.monotonic() + self._args.minutes * 60
        while time.monotonic() < end:
            clients.run()
            self._fleet.trouble(self._args.kill_every)
            until = min(time.monotonic() + self._args.cycle, end)
            while (left := until - time.monotonic()) > 0:
                await asyncio.sleep(min(left, _SAMPLE_S))
                sample = await self._gateway.ask("sample", quiet=False)
                self._verdict.lag(sample["lags_s"])
                self._verdict.clean(sample)
                self._most_open = max(self._most_open, clients.open)
            await clients.quiet()
            await self._fleet.calm()
            await self._settle()
            if self._steady:
                await asyncio.sleep(_KEPT_S)
            sample = await self._gateway.ask("sample", quiet=True)
            self._verdict.clean(sample)
            at_s = time.monotonic() - self._started_at
            memory = (sample["rss_mib"], sample["held_mib"])
            now = Quiet(
                at_s, *memory, sum(sample["tasks"].values()), sample["fds"], sample["index"]["holders"], sample["in_flight"]
            )
            self._verdict.settled(now, self._args.engines)
            self._say(f"{now} {dict(clients.counts)} failures={[*self._verdict.failures, *clients.failures][:3]}")

    async def _settle(self) -> None:
        """Wait until nothing is left of the requests, here and in the engines; a failure where something stays."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            left = await self._left_over()
            if not left:
                break
            if time.monotonic() > deadline:
                self._verdict.failures.append(f"{_SETTLE_S:.0f} s after the last request there is still {left[:5]}")
                break
            await asyncio.sleep(0.1)
        self._verdict.failures += [f"{name} ended by itself" for name in self._fleet.died()]

    async def _left_over(self) -> list[str]:
        url = f"http://127.0.0.1:{self._gateway.ready['control_port']}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            page = await answer.text()
        left = [match[0] for line in page.splitlines() if (match := _LEFT_OVER.fullmatch(line)) and float(match[1])]
        return left + [
            f"{count} requests in engine{number}" for number, count in enumerate(await self._fleet.open_requests()) if count
        ]

    async def _start_gateway(self) -> Child:
        tokenizer = self._folder / "tokenizer"
        write_tokenizer(tokenizer)
        settings = {
            "listen": {"host": "127.0.0.1", "port": 0, "control_port": 0},
            "replicas": self._fleet.replicas,
            "tokenizer": str(tokenizer),
            "tokenizer_caches": {"budget_mib": 4},  # full after a minute: what grows then is not they
            "receipts": 256,
            "limits": LIMITS,
            "health": {"interval_s": 0.5, "timeout_s": 5.0},
            "log_level": "error",  # engines that are killed are warnings by the thousand
        }
        path = self._folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        gateway = await Child.start(["tests.soak.gateway", str(path)], self._folder / "gateway.log")
        url = f"http://127.0.0.1:{gateway.ready['control_port']}/status"
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while True:
                async with session.get(url) as answer:
                    status = await answer.json()
                live = [rank["freshness"] in ("live", "partial") for replica in status["replicas"] for rank in replica["ranks"]]
                if status["tokenizer"] == "ready" and all(live):
                    return gateway
                await asyncio.sleep(0.1)

    def _summary(self, sample: dict[str, Any], clients: Clients) -> dict[str, Any]:
        figures = self._verdict.finish(steady=self._steady)
        log = self._gateway.log.read_text(errors="replace").splitlines()
        bad = [line for line in log if "Traceback" in line or " ERROR " in line or "CRITICAL" in line]
        failures = [*self._verdict.failures, *clients.failures[:20], *bad[:5]]
        return {
            "ok": not failures,
            "failures": failures,
            "minutes": self._args.minutes,
            "engines": self._args.engines,
            "seed": self._args.seed,
            "capacity_per_s": round(self._capacity, 1),
            "offered_per_s": round(self._args.load * self._capacity, 1),
            "requests": dict(clients.counts),
            "most_open": self._most_open,
            "kills": self._fleet.kills,
            **figures,
            "index": sample["index"],
        }

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._started_at:6.1f} s {text}\n")


def build_parser() -> argparse.ArgumentParser:
    """All options."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.overload", description=__doc__, epilog="example: make overload ARGS='--minutes 1'"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--load", type=float, default=2.0, help="times what the engines can answer")
    parser.add_argument("--seed", type=int, default=Random().randrange(10_000))
    parser.add_argument("--cycle", type=float, default=30.0, help="seconds between two times of quiet")
    parser.add_argument("--kill-every", type=float, default=12.0, help="seconds between two kills, on average")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the last line of stdout is one JSON object."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        summary = asyncio.run(Overload(args, Path(folder)).run())
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
