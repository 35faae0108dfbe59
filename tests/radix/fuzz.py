"""The index against dictionaries, by number of operations: `make fuzz ARGS='--operations 10000000'`.

An operation is one event: a store, a removal or a clear. Each life of an index is drawn from one number, its seed: which tree,
how many holders, which block sizes and cache groups, and how many of its batches come as bytes, some of them together. A third of
the lives are of plain holders, whose bytes the compiled tree scans by itself. What a batch changed is compared after every batch,
matches and the inside of the tree after every fifth, dumps once; at the end every copy is removed and nothing may be left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from events.decode import decode
from events.encode import encode
from radix import Applied, Batch, Event, Stored
from radix.changes import GroupKind, Heard
from tests.radix.oracle import View
from tests.radix.test_index_against_oracle import LAYOUTS, Layout, Run
from tests.radix.trees import KINDS

LIFE_STEPS = 100
COMPARE_EVERY = 5  # batches
_ONE_GROUP: list[Layout] = [{0: (GroupKind.UNSTATED, 0)}, {3: (GroupKind.FULL, 0)}]


@dataclass(slots=True)
class Done:
    """What was done. matches: prompts whose answer was compared, for every holder and tier.

    encoded: operations that came as bytes; scanned: those of them that were applied without being decoded.
    """

    operations: int = 0
    matches: int = 0
    encoded: int = 0
    scanned: int = 0
    lives: int = 0


class Life(Run):
    """A run that counts, and compares everything only every so often."""

    def __init__(self, seed: int, kind: str | None = None) -> None:
        chance = random.Random(seed)
        sort = chance.choice(("hybrid", "mixed", "plain"))
        hybrid, plain = sort == "hybrid", sort == "plain"
        super().__init__(
            seed,
            holders=chance.choice([2, 2, 5]) if hybrid else chance.choice([1, 2, 3, 9]),
            grains=chance.choice(
                {"hybrid": [[1], [2], [1, 2]], "plain": [[1], [2], [4]]}.get(sort, [[1], [2], [1, 2], [3, 16], [4]])
            ),
            honest=sort != "mixed" or chance.random() < 0.5,
            kind=kind or chance.choice(KINDS),
            layout=chance.choice(LAYOUTS) if hybrid else chance.choice(_ONE_GROUP) if plain else None,
            richness=chance.choice([0.1, 0.5] if hybrid else [0.0] if plain else [0.0, 0.3]),
            strays=0.02 if plain else 1.0,
        )
        self.done = Done(lives=1)
        self._steps = 0
        self._chance = chance
        self._encoded = chance.choice((0.0, 0.5, 0.9))  # how many batches come as bytes

    def step(self) -> None:
        self._steps += 1
        super().step()

    def apply(self, holder: int, view: View, events: tuple[Event, ...]) -> None:
        leads = any(isinstance(event, Stored) and event.lead for event in events)  # no engine we can imitate writes these
        if leads or self._chance.random() >= self._encoded:
            super().apply(holder, view, events)
            return
        cut = self._chance.randint(0, len(events))
        payloads = [encode(part, ts=1.0, rank=0) for part in (events[:cut], events[cut:])]
        assert self._taken(holder, payloads) == _told(view, payloads), events

    def _taken(self, holder: int, payloads: Sequence[bytes]) -> Applied:
        total, done = Applied(), 0
        while done < len(payloads):
            heard = Heard()
            self.index.apply_payloads(holder, payloads[done:], self._decoded, heard)
            done += len(heard.batches)
            self.done.encoded += heard.events
            self.done.scanned += heard.events
            _add(total, heard.applied)
        return total

    def _decoded(self, place: int, payload: bytes) -> Batch:
        batch = decode(payload, place)
        self.done.scanned -= len(batch.events) + batch.skipped
        return batch

    def compare(self) -> None:
        if self._steps % COMPARE_EVERY == 0:
            super().compare()

    def _event(self, view: View) -> Event:
        self.done.operations += 1
        return super()._event(view)

    def _prompts(self) -> list[tuple[tuple[str | None, str | None, tuple[bytes, ...]], tuple[int, ...]]]:
        prompts = super()._prompts()
        self.done.matches += len(prompts)
        return prompts

    def finish(self) -> None:
        views = self.views.values()
        self.done.operations += sum(sum(view.counts.values()) + sum(view.loose.values()) for view in views)
        self.done.operations += sum(orphan.copies for view in views for orphan in view.waiting.values())
        super().finish()


def _told(view: View, payloads: Sequence[bytes]) -> Applied:
    """The dictionaries are told what the bytes say, which is not always what they were made of."""
    total = Applied()
    for payload in payloads:
        batch = decode(payload, 0)
        total.skipped += batch.skipped
        _add(total, view.apply(batch.events))
    return total


def _add(total: Applied, applied: Applied) -> None:
    for name in ("stored", "removed", "orphans", "unknown", "skipped"):
        setattr(total, name, getattr(total, name) + getattr(applied, name))


def live(seed: int, kind: str | None = None) -> Done:
    """One whole life; an assertion that fails says which one it was."""
    life = Life(seed, kind)
    try:
        for _ in range(LIFE_STEPS):
            life.step()
        life.compare_dumps()
        life.finish()
    except Exception as error:
        error.add_note(f"again: python -m tests.radix.fuzz --only {seed}")
        raise
    return life.done


def lives(operations: int, seeds: Iterator[int], kind: str | None = None) -> Done:
    """As many lives as it takes."""
    total = Done()
    while total.operations < operations:
        done = live(next(seeds), kind)
        total.operations += done.operations
        total.matches += done.matches
        total.encoded += done.encoded
        total.scanned += done.scanned
        total.lives += 1
    return total


def _share(job: tuple[int, int, int]) -> Done:
    operations, first, step = job
    return lives(operations, count(first, step))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; a difference ends it with a traceback that names the life."""
    parser = argparse.ArgumentParser(prog="python -m tests.radix.fuzz", description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help="of the first life; the others follow")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="SEED", help="this one life alone")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    started = time.monotonic()
    if args.only is not None:
        found = [live(args.only)]
    else:
        sys.stderr.write(f"first life: {args.seed}\n")
        each = -(-args.operations // args.processes)
        jobs = [(each, args.seed + number, args.processes) for number in range(args.processes)]
        with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
            found = pool.map(_share, jobs)
    seconds = time.monotonic() - started
    result = {
        "operations": sum(done.operations for done in found),
        "matches": sum(done.matches for done in found),
        "encoded": sum(done.encoded for done in found),
        "scanned": sum(done.scanned for done in found),
        "lives": sum(done.lives for done in found),
        "differences": 0,
        "seconds": round(seconds, 1),
    }
    text = json.dumps(result) if args.json else ", ".join(f"{value:,} {name}" for name, value in result.items())
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
