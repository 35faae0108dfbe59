"""Let a gateway and a fleet that misbehaves run together: `make soak`, or `python -m tests.soak --minutes 5`.

64 engines in two processes announce their caches; they lose batches, answer replays late, torn or not at all, break links,
restart, clear, evict from the middle; clients ask, stream and leave; replicas are added and removed. Now and then all falls
quiet, and every view has to be its engine's. Exit status 1 when something was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.fakes.tokenizer_folder import write_tokenizer_folder
from tests.soak.lines import Child
from tests.soak.traffic import ADMIN_TOKEN, Traffic
from tests.soak.verdict import Quiet, Verdict, disagreement

_HISTORY = 4200  # more than a stream remembers of the batches it saw, so that this memory is full from the start
_SAMPLE_S = 2.0


class Soak:
    """One run."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self._verdict = Verdict()
        self._started_at = time.monotonic()
        self._engines: list[Child] = []
        self._partial = 0

    async def run(self) -> dict[str, Any]:
        """Start everything, let it run, judge; the summary."""
        fleet = await self._start_engines()
        moving = [replica for number, replica in enumerate(fleet) if number % 4 == 1]
        self._replicas = len(fleet)
        self._gateway = await self._start_gateway(fleet)
        traffic = Traffic(self._gateway.ready, moving, self._args.seed, self._args.requests)
        try:
            await self._agree("start", 90 + self._args.history / 20, whole=True)
            self._say("all views are whole")
            await self._cycles(traffic)
            sample = await self._gateway.ask("sample", quiet=True)
        finally:
            await traffic.close()
            statuses = [await self._gateway.stop(terminate=True)]
            statuses += [await child.stop(terminate=False) for child in self._engines]
        if any(statuses):
            self._verdict.failures.append(f"processes ended with {statuses}")
        self._read_log()
        return self._summary(sample, traffic)

    async def _cycles(self, traffic: Traffic) -> None:
        end = time.monotonic() + self._args.minutes * 60
        while time.monotonic() < end:
            await self._ask_engines("run")
            traffic.run(self._args.moves)
            until = min(time.monotonic() + self._args.cycle, end)
            while (left := until - time.monotonic()) > 0:
                await asyncio.sleep(min(left, _SAMPLE_S))
                sample = await self._gateway.ask("sample", quiet=False)
                self._verdict.lag(sample["lags_s"])
                self._verdict.clean(sample)
            await traffic.quiet()
            self._did = await self._ask_engines("quiet")
            last = time.monotonic() >= end
            await self._agree("end" if last else "middle", 120, whole=last)
            sample = await self._gateway.ask("sample", quiet=True)
            self._verdict.clean(sample)
            at_s = time.monotonic() - self._started_at
            tasks = sum(sample["tasks"].values())
            memory = (sample["rss_mib"], sample["held_mib"])
            now = Quiet(at_s, *memory, tasks, sample["fds"], sample["index"]["holders"], sample["in_flight"])
            self._verdict.settled(now, self._replicas)
            self._say(f"{now} blocks={sample['index']['blocks']} failures={len(self._verdict.failures)}")

    async def _agree(self, when: str, patience_s: float, *, whole: bool) -> None:
        """Wait until each view is its engine's. whole: a partial one will do only where the engine's replay is short."""
        deadline = time.monotonic() + patience_s
        while True:
            await self._ask_engines("settle")
            await asyncio.sleep(0.5)
            wrong = await self._disagreements(whole=whole)
            if not wrong:
                return
            if time.monotonic() > deadline:
                self._verdict.failures.append(f"{when}: {len(wrong)} views are wrong after {patience_s:.0f} s: {wrong[:5]}")
                return

    async def _disagreements(self, *, whole: bool) -> list[str]:
        truths: dict[str, Any] = {}
        for child in self._engines:
            truths |= await child.ask("truth")
        views = await self._gateway.ask("views")
        wrong = []
        self._partial = 0
        for name, truth in truths.items():
            view = views.get(name)
            partial = view is not None and view["freshness"] == "partial"
            self._partial += partial
            rows = await self._gateway.ask("rows", name=name) if partial and view["digest"] != truth["digest"] else None
            why = disagreement(truth, view, rows)
            if why is None and partial and whole and truth["whole"]:
                why = "still partial, though a replay has everything"
            if why is not None:
                wrong.append(f"{name}: {why}")
        return wrong

    async def _start_engines(self) -> list[dict[str, Any]]:
        args = self._args
        processes = 2 if args.publishers > 16 else 1
        shares = [args.publishers * (i + 1) // processes - args.publishers * i // processes for i in range(processes)]
        first = 0
        for number, count in enumerate(shares):
            numbers = {"first": first, "count": count, "seed": args.seed, "rate": args.rate, "history": args.history}
            command = ["tests.soak.engines", *(f"--{name}={value}" for name, value in numbers.items())]
            command += [f"--faults={args.faults}", *(["--gentle"] if args.gentle else [])]
            self._engines.append(await Child.start(command, self._folder / f"engines{number}.log"))
            first += count
        return [replica for child in self._engines for replica in child.ready]

    async def _start_gateway(self, fleet: Sequence[dict[str, Any]]) -> Child:
        settings = {
            "listen": {"host": "127.0.0.1", "port": 0, "control_port": 0},
            "replicas": list(fleet),
            "tokenizer": str(write_tokenizer_folder(self._folder / "tokenizer", template=None)),
            "admin_networks": ["127.0.0.0/8"],
            "receipts": 256,
            "guess_ttl_s": 3.0,
            "health": {"interval_s": 1.0, "timeout_s": 10.0},  # a slow machine is not a dead engine; refused is
            "log_level": "warning",
        }
        path = self._folder / "gateway.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return await Child.start(
            ["tests.soak.gateway", str(path)], self._folder / "gateway.log", {"TRUNKLINE_ADMIN_TOKEN": ADMIN_TOKEN}
        )

    async def _ask_engines(self, do: str) -> dict[str, int]:
        did: dict[str, int] = {}
        for answer in await asyncio.gather(*(child.ask(do) for child in self._engines)):
            for name, count in answer.items():
                did[name] = did.get(name, 0) + count
        return did

    def _read_log(self) -> None:
        """What the gateway wrote, after it ended as well."""
        lines = self._gateway.log.read_text(errors="replace").splitlines()
        bad = [line for line in lines if "Traceback" in line or " ERROR " in line or "CRITICAL" in line]
        if bad:
            self._verdict.failures.append(f"{len(bad)} bad lines in the gateway's log: {bad[:3]}")

    def _summary(self, sample: dict[str, Any], traffic: Traffic) -> dict[str, Any]:
        figures = self._verdict.finish(steady=self._args.minutes >= 2)
        predictions = sample["predictions"]
        return {
            "ok": not self._verdict.failures,
            "failures": self._verdict.failures,
            "minutes": self._args.minutes,
            "publishers": self._args.publishers,
            "seed": self._args.seed,
            **figures,
            "partial_views": self._partial,
            "engines": self._did,
            "gateway": sample["counts"],
            "index": sample["index"],
            "requests": dict(traffic.counts),
            "exact_predictions": round(sample["exact_predictions"] / predictions, 3) if predictions else None,
        }

    def _say(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._started_at:6.1f} s {text}\n")


def build_parser() -> argparse.ArgumentParser:
    """All options."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, epilog="example: make soak ARGS='--minutes 1 --publishers 16'"
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--publishers", type=int, default=64)
    parser.add_argument("--seed", type=int, default=Random().randrange(10_000))
    parser.add_argument("--rate", type=float, default=8.0, help="batches per second of each publisher")
    parser.add_argument("--requests", type=float, default=20.0, help="requests per second, in all")
    parser.add_argument("--moves", type=float, default=0.5, help="replicas removed or added per second")
    parser.add_argument("--cycle", type=float, default=20.0, help="seconds between two times of quiet")
    parser.add_argument("--faults", type=float, default=1.0, help="how many times as often as usual things go wrong")
    parser.add_argument("--gentle", action="store_true", help="replays are late, but always answered and whole")
    parser.add_argument("--history", type=int, default=_HISTORY, help="batches of each publisher before the gateway starts")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the last line of stdout is one JSON object."""
    args = build_parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        summary = asyncio.run(Soak(args, Path(folder)).run())
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
