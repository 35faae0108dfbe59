"""The soak in small, and its judge: it must see what it is there to see."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from events.decode import decode
from radix import Index, Namespace, Tier
from tests.soak.cache import Cache
from tests.soak.engine import Engine, Pace, style_of
from tests.soak.prompts import Prompts
from tests.soak.verdict import Quiet, Verdict, disagreement, slope_per_min

ROOT = Path(__file__).parents[2]
QUIET = Quiet(at_s=0.0, rss_mib=100.0, held_mib=100.0, tasks=50, fds=80, holders=8, in_flight=0)


@pytest.mark.slow
def test_eight_publishers_in_trouble_are_followed_exactly() -> None:
    """FC-01, FC-03, FC-14: ten seconds of losses, restarts, broken links, clears, holes, and replicas that come and go."""
    options = "--minutes 0.12 --publishers 8 --history 20 --cycle 4 --seed 1 --faults 12 --moves 1 --gentle"
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", *options.split()], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout)
    assert summary["failures"] == []
    assert done.returncode == 0
    assert summary["checks"] > 0  # two, where nothing else keeps the machine busy
    assert min(summary["engines"][name] for name in ("lost", "restarts", "blinks")) > 0
    assert min(summary["gateway"][name] for name in ("gaps", "replays", "duplicates")) > 0
    assert min(summary["requests"][name] for name in ("ok", "left", "replicas_removed")) > 0


@pytest.mark.parametrize("number", range(8))
def test_the_truth_is_what_an_index_makes_of_the_events(number: int) -> None:
    """Copies, holes, tiers and clears, in the words of each kind of engine."""
    engine = Engine("e", style_of(number), 3, None)  # type: ignore[arg-type]
    index = Index()
    holder = index.holder("r", 0, counting=engine.style.counting)
    for step in range(300):
        events = engine._change(Pace(clear=0.01, hole=0.2, copy=0.1))
        if events:
            applied = index.apply(holder, decode(engine._payload(events), step))
            assert (applied.unknown, applied.skipped, applied.orphans) == (0, 0, 0)
        if step % 30 == 0:
            check(index, holder, engine._cache)
    check(index, holder, engine._cache)


def check(index: Index, holder: int, cache: Cache) -> None:
    rows = {(int(block.tier), block.hash): block.copies for block in index.dump(holder)}
    assert rows == {(tier, name): copies for tier, name, copies in cache.rows()}
    assert index.digest(holder) == cache.digest()


def test_what_a_cache_finds_is_what_a_match_finds() -> None:
    """An engine reports as cached what its events made matchable, up to the block of the last token."""
    cache = Cache("e", Random(1), capacity=500, block_tokens=16, counting=True)
    index, prompts = Index(), Prompts(2)
    holder = index.holder("r", 0, model="m")
    hits = 0
    for step in range(200):
        prompt = prompts.draw()
        matched = index.match(Namespace("m", salt=prompt.salt), np.array(prompt.tokens, np.int32)).tokens(holder, Tier.DEVICE)
        events, cached = cache.prompt(prompt.tokens, prompt.salt)
        assert cached == min(matched, (len(prompt.tokens) - 1) // 16 * 16)
        hits += cached > 0
        index.apply(holder, decode(Engine("e", style_of(0), 1, None)._payload(events), step))  # type: ignore[arg-type]
    assert hits > 80


def judged(quiet: Sequence[Quiet], lags_s: Sequence[Sequence[float]] = ((0.001, 0.002),) * 9) -> list[str]:
    """What a verdict says of these samples, at 8 replicas."""
    verdict = Verdict()
    for sample in lags_s:
        verdict.lag(sample)
    for each in quiet:
        verdict.settled(each, 8)
    verdict.finish(steady=True)
    return verdict.failures


def minutes(count: int, **growth: float) -> list[Quiet]:
    """One quiet time a minute; growth: of a field, per minute."""
    return [
        replace(QUIET, at_s=60.0 * i, **{name: getattr(QUIET, name) + by * i for name, by in growth.items()})
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("quiet", "words"),
    [
        (minutes(10), []),
        (minutes(10, held_mib=2.9, rss_mib=9.0), []),
        (minutes(10, held_mib=3.1), ["memory grows"]),
        (minutes(4, held_mib=50.0)[:2] + [replace(QUIET, at_s=60.0 * i, held_mib=150.0) for i in range(2, 6)], []),  # warm-up
        (minutes(10, tasks=4), ["tasks grow"]),
        (minutes(10, fds=5), ["fds grow"]),
        ([replace(QUIET, holders=9)], ["9 holders for 8 replicas"]),
        ([replace(QUIET, in_flight=1)], ["1 requests in flight"]),
    ],
)
def test_growth_is_seen_and_a_warm_up_is_not_taken_for_it(quiet: list[Quiet], words: list[str]) -> None:
    found = judged(quiet)
    assert len(found) == len(words)
    assert all(text.startswith(word) for text, word in zip(found, words, strict=True))


def test_a_growing_lag_is_seen() -> None:
    assert judged(minutes(5), [(0.01, 0.01)] * 5 + [(0.2, 0.2)] * 5) == ["the lag grows from 0.010 to 0.200 s"]


@pytest.mark.parametrize(
    ("path", "value"),
    [("internal_errors", 1), ("fault_count", 1), ("counts.apply_errors", 1), ("counts.decode_errors", 1), ("counts.crashes", 2)],
)
def test_every_error_of_the_gateway_counts(path: str, value: int) -> None:
    sample: dict[str, Any] = {"internal_errors": 0, "fault_count": 0, "faults": [], "counts": {"apply_errors": 0}}
    verdict = Verdict()
    verdict.clean(sample)
    assert verdict.failures == []
    *groups, name = path.split(".")
    (sample[groups[0]] if groups else sample)[name] = value
    verdict.clean(sample)
    assert len(verdict.failures) == 1


@pytest.mark.parametrize(
    ("view", "rows", "agrees"),
    [
        ({"digest": "a", "freshness": "live"}, None, True),
        ({"digest": "b", "freshness": "live"}, None, False),
        ({"digest": "b", "freshness": "gap"}, [], False),
        ({"digest": "b", "freshness": "partial"}, [(0, 1, 1)], True),
        ({"digest": "b", "freshness": "partial"}, [(0, 1, 2)], False),
        ({"digest": "b", "freshness": "partial"}, [(1, 1, 1)], False),
        (None, None, False),
    ],
)
def test_a_view_agrees_or_says_that_it_is_partial(view: dict[str, Any] | None, rows: Any, agrees: bool) -> None:
    truth = {"digest": "a", "rows": [(0, 1, 1), (0, 2, 1)]}
    assert (disagreement(truth, view, rows) is None) == agrees


def test_a_slope_is_per_minute() -> None:
    assert slope_per_min([(0.0, 1.0), (30.0, 2.0), (60.0, 3.0)]) == pytest.approx(2.0)
    assert slope_per_min([(0.0, 1.0), (30.0, 2.0)]) == 0.0
