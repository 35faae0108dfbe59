"""The loop's lag: what was late, since when, and what stays late."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.lag import PERIOD_S, LagMeter, LagTicker


def ticking(meter: LagMeter, now: float, lates: list[float]) -> float:
    """Tick once per entry, that late; returns the time of the last."""
    for late in lates:
        now += PERIOD_S + late
        meter.tick(now)
    return now


def test_a_loop_that_turns_is_not_late() -> None:
    meter = LagMeter(10.0)
    now = ticking(meter, 10.0, [0.0] * 20)
    assert meter.late_s(10.0, now) == pytest.approx(0.0, abs=1e-9)
    assert meter.steady_s == pytest.approx(0.0, abs=1e-9)


def test_what_was_late_since_a_time_is_summed_and_the_overdue_tick_counts() -> None:
    meter = LagMeter(0.0)
    before = ticking(meter, 0.0, [3.0])
    now = ticking(meter, before, [0.0, 1.5, 0.5])
    assert meter.late_s(before, now) == pytest.approx(2.0)
    assert meter.late_s(0.0, now) == pytest.approx(5.0)
    assert meter.late_s(before, now + PERIOD_S + 4.0) == pytest.approx(6.0)


def test_lateness_from_before_a_time_does_not_count() -> None:
    """A stall that was nearly over when a check began excuses only what is left of it."""
    meter = LagMeter(0.0)
    now = ticking(meter, 0.0, [5.0])
    assert meter.late_s(now - 0.3, now) == pytest.approx(0.3)


def test_steady_lag_is_what_three_ticks_did_not_fall_below() -> None:
    meter = LagMeter(0.0)
    now = ticking(meter, 0.0, [2.0, 2.0])
    assert meter.steady_s == 0.0
    now = ticking(meter, now, [0.5])
    assert meter.steady_s == pytest.approx(0.5)
    ticking(meter, now, [0.0])
    assert max(meter.steady_s, meter.last_s) == pytest.approx(0.0, abs=1e-9)


async def test_the_ticker_sees_a_loop_that_stood_still() -> None:
    ticked = asyncio.Event()
    ticker = LagTicker(lambda meter: ticked.set())
    began_at = asyncio.get_running_loop().time()
    until = time.monotonic() + 0.4
    while time.monotonic() < until:  # a loop that is starved
        pass
    await asyncio.wait_for(ticked.wait(), 20)
    assert ticker.late_s(began_at) > 0.2
    ticker.stop()
