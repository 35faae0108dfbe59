"""The real gateway, as `trunkline serve` runs it, which also tells about its inside: `python -m tests.soak.gateway FILE`.

sample: memory, tasks, sockets, lag, counters, and everything that went wrong so far. views: digest and freshness of each view.
rows: every block of one.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import sys
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.processes import rss_mib
from events.apply import Counts
from gateway.config import Settings, load_settings
from gateway.serve import Gateway, OwnKnowledge, log_to_stderr, serve_until_signal
from tests.soak.lines import answer_lines, say


class Faults(logging.Handler):
    """Log lines at ERROR and above, and exceptions nobody caught."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.name}: {record.getMessage()}")

    def in_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception nobody caught, e.g. of a task."""
        self.seen.append(f"loop: {context.get('message')}: {context.get('exception')!r}")

    def unraisable(self, unraisable: Any) -> None:
        """An exception where none can be raised, e.g. while an object is taken apart."""
        self.seen.append(f"unraisable: {unraisable.exc_value!r} in {unraisable.object!r}")


class Watched(Gateway):
    """A gateway that can be asked about itself."""

    def __init__(self, settings: Settings) -> None:
        own = OwnKnowledge(settings)
        super().__init__(settings, own)
        self._known = own.index
        self._faults = Faults()

    async def start(self, **options: Any) -> tuple[int, int]:
        """As the gateway's own, with ears."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._faults.in_loop)
        sys.unraisablehook = self._faults.unraisable
        logging.getLogger().addHandler(self._faults)
        ports = await super().start(**options)
        self._questions = loop.create_task(answer_lines(self._answer), name="questions")
        return ports

    async def _answer(self, question: dict[str, Any]) -> Any:
        match question["do"]:
            case "sample":
                return {**self._sample(), "held_mib": _held_mib() if question["quiet"] else None}
            case "views":
                return {
                    name: {
                        "digest": self._known.digest(stream.holder).hex(),
                        "freshness": stream.freshness.value,
                        "connected": stream.connected,
                    }
                    for name, _, stream in self.views.streams()
                }
            case "rows":
                holder = self.fleet.replicas[question["name"]].holders[0]
                return [(int(block.tier), block.hash, block.copies) for block in self._known.dump(holder)]
            case other:
                raise ValueError(f"no such question: {other}")

    def _sample(self) -> dict[str, Any]:
        streams = [stream for _, _, stream in self.views.streams()]
        counts: Counter[str] = Counter()
        for stream in streams:
            counts.update({each.name: getattr(stream.counts, each.name) for each in fields(Counts) if each.name != "apply_lag_s"})
        return {
            "rss_mib": rss_mib(os.getpid()),
            "tasks": Counter(_kind(task) for task in asyncio.all_tasks()),
            "fds": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            "lags_s": sorted(stream.counts.apply_lag_s for stream in streams if stream.connected and stream.counts.batches),
            "faults": self._faults.seen[:20],
            "fault_count": len(self._faults.seen),
            "internal_errors": self.traffic.internal_errors,
            "in_flight": sum(self.fleet.view.in_flight[holder] for holder in self.fleet.by_holder),
            "replicas": len(self.fleet.replicas),
            "index": asdict(self.index.stats()),
            "streams": len(streams),
            "counts": counts,
            "predictions": self.placer.counts.predictions,
            "exact_predictions": self.placer.counts.exact_predictions,
        }


def _held_mib() -> float:
    """Resident memory without what the C library keeps of its highest tide; that follows the longest replay there was."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return rss_mib(os.getpid())


def _kind(task: asyncio.Task[Any]) -> str:
    """Its name without the number or replica in it."""
    return task.get_name().rstrip("0123456789-").split(" e")[0]


def announce(data_port: int, control_port: int) -> None:
    """The first line on stdout."""
    say({"data_port": data_port, "control_port": control_port})


def main(argv: list[str]) -> int:
    """Entry point of `python -m tests.soak.gateway`."""
    settings = load_settings(Path(argv[1]))
    log_to_stderr(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve_until_signal(Watched(settings), announce))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
