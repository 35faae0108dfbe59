"""Many engines in one process: `python -m tests.soak.engines`, which says where they are and then answers questions.

run, quiet: begin or end their lives. settle: one more batch of each. truth: what each has. counts: what they did.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import zmq.asyncio

from tests.soak.engine import Engine, Pace, style_of, totals
from tests.soak.lines import answer_lines, say


class Engines:
    """All engines of this process."""

    def __init__(self, engines: Sequence[Engine], pace: Pace) -> None:
        self._engines = engines
        self._pace = pace
        self._lives: list[asyncio.Task[None]] = []

    async def answer(self, question: dict[str, Any]) -> Any:
        """One question of the soak."""
        match question["do"]:
            case "run":
                faults = chain(("restart", "blink"), repeat(""))
                lives = [engine.live(self._pace, fault) for engine, fault in zip(self._engines, faults, strict=False)]
                self._lives = [asyncio.create_task(life) for life in lives]
            case "quiet":
                await self._quiet()
            case "settle":
                await asyncio.gather(*(engine.settle() for engine in self._engines))
            case "truth":
                return {engine.name: await engine.truth() for engine in self._engines}
        return totals(self._engines)

    async def _quiet(self) -> None:
        lives, self._lives = self._lives, []
        for life in lives:
            life.cancel()
        for outcome in await asyncio.gather(*lives, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def run(args: argparse.Namespace) -> None:
    """From the first socket to the end of stdin."""
    context = zmq.asyncio.Context()
    numbers = range(args.first, args.first + args.count)
    engines = [Engine(f"e{number}", style_of(number), args.seed * 1000 + number, context) for number in numbers]
    for engine in engines:
        await engine.start(args.history)
    say([engine.settings() for engine in engines])
    both = Engines(engines, Pace(args.rate, args.faults, args.gentle))
    try:
        await answer_lines(both.answer)
    finally:
        for engine in engines:
            await engine.stop()
        context.destroy(linger=0)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m tests.soak.engines`."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.engines", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first engine")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=8.0, help="batches per second of each engine")
    parser.add_argument("--faults", type=float, default=1.0)
    parser.add_argument("--gentle", action="store_true")
    parser.add_argument("--history", type=int, default=0, help="batches each has published before anybody listens")
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(run(parser.parse_args(argv)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
