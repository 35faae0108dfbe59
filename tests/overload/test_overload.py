"""The overload in small, and its judges: they must see what they are there to see."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.client import Answer
from tests.overload.__main__ import _LEFT_OVER
from tests.overload.clients import judge
from tests.overload.demand import MAX_RUNNING, TIMES, Ask, Demand, Manner, capacity_per_s

ROOT = Path(__file__).parents[2]
_ERROR = b'{"error":{"message":"no","type":"t","param":null,"code":null}}'
_EVENT, _DONE = b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"
_RETRY = [(b"retry-after", b"1")]


@pytest.mark.slow
def test_a_few_seconds_of_it_end_in_order() -> None:
    """FC-29, FC-49, FC-52: kills, leaving and deaf clients; everything is answered, and nothing is left in flight."""
    options = "--minutes 0.1 --engines 2 --load 1.0 --cycle 6 --kill-every 2 --seed 5"
    done = subprocess.run(
        [sys.executable, "-m", "tests.overload", *options.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout)
    assert summary["failures"] == []
    assert done.returncode == 0
    assert summary["checks"] == 1
    assert min(summary["requests"][name] for name in ("whole", "left")) > 0
    assert summary["kills"] > 0


@pytest.mark.parametrize(
    ("answer", "stream", "outcome"),
    [
        (Answer(200, [], b'{"choices":[{}]}', True, []), False, "whole"),
        (Answer(200, [], b'{"choices":[{}]', False, []), False, "cut"),
        (Answer(200, [], b'{"choices":', True, []), False, "bad"),
        (Answer(200, [], _EVENT + _DONE, True, []), True, "whole"),
        (Answer(200, [], _EVENT, True, []), True, "bad"),  # an orderly end without the terminator
        (Answer(200, [], _EVENT + _DONE + _DONE, True, []), True, "bad"),
        (Answer(200, [], _EVENT + b"data: " + _ERROR + b"\n\n" + _DONE, True, []), True, "bad"),
        (Answer(200, [], _EVENT + b"data: " + _ERROR + b"\n\n", False, []), True, "cut"),
        (Answer(200, [], _EVENT + b"data: " + _ERROR + b"\n\n" + _EVENT, False, []), True, "bad"),
        (Answer(200, [], (b"data: " + _ERROR + b"\n\n") * 2, False, []), True, "bad"),
        (Answer(200, [], _EVENT + _DONE, False, []), True, "bad"),
        (Answer(200, [], _EVENT, False, []), True, "cut_silently"),
        (Answer(429, _RETRY, _ERROR, True, []), True, "refused"),
        (Answer(503, _RETRY, _ERROR, True, []), False, "refused"),
        (Answer(503, [], _ERROR, True, []), False, "bad"),
        (Answer(503, _RETRY, b"", True, []), False, "bad"),
        (Answer(502, [], _ERROR, True, []), False, "engine_failed"),
        (Answer(504, [], _ERROR, True, []), True, "engine_failed"),
        (Answer(504, [], _ERROR, False, []), True, "bad"),
        (Answer(500, [], _ERROR, True, []), False, "bad"),
        (Answer(400, [], _ERROR, True, []), False, "bad"),
    ],
)
def test_each_end_of_a_request_has_its_name(answer: Answer, stream: bool, outcome: str) -> None:
    assert judge(answer, stream).partition(":")[0] == outcome


def test_capacity_follows_from_the_cost_model() -> None:
    """A request that prefills for half a second and decodes as long: one a second for each engine."""
    step_s = TIMES.step_s(prefill_tokens=0, sequences=MAX_RUNNING) / MAX_RUNNING
    ask = Ask({"stream": True}, int(TIMES.prefill_tokens_per_s / 2), round(0.5 / step_s), Manner.WAITS, False, 0.0)
    left = Ask({"stream": True}, 10**9, 10**9, Manner.LEAVES_WAITING, False, 0.0)
    assert capacity_per_s([ask], 3) == pytest.approx(3, rel=0.01)
    assert capacity_per_s([ask, left], 3) == pytest.approx(6, rel=0.01)


def test_all_sizes_and_manners_are_drawn() -> None:
    demand = Demand(2)
    asks = [demand.draw() for _ in range(2000)]
    assert {ask.manner for ask in asks} == set(Manner)
    assert {len(str(ask.own_tokens)) for ask in asks} == {3, 4, 5}
    assert 0.4 < sum(ask.stream for ask in asks) / len(asks) < 0.8


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ('trunkline_in_flight{rank="0",replica="e1"} 1.0', True),
        ('trunkline_queued_tokens{rank="0",replica="e1"} 300.0', True),
        ("trunkline_open_connections 2.0", True),
        ("trunkline_waiting_requests 2.0", True),
        ('trunkline_requests_total{route="chat"} 7.0', False),
    ],
)
def test_gauges_of_open_work_are_found(line: str, counts: bool) -> None:
    assert bool(_LEFT_OVER.fullmatch(line)) == counts
