"""Changes of a trace: seeded, noted, and only where they belong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from simulations.errors import SettingError, TraceError
from simulations.traces.columns import Trace
from simulations.traces.transform import speed_up, spread


def test_coarse_arrivals_are_spread_within_their_step_and_the_trace_says_so(tiny: Trace) -> None:
    after = spread(tiny, seed=1)
    moved = after.arrival_s - tiny.arrival_s
    assert ((moved >= 0) & (moved < 3)).all()
    assert (np.diff(after.arrival_s) > 0).all()
    assert after.notes == ("arrivals: 4 distinct timestamps, spread uniformly over steps of 3 s (seed 1)",)


def test_a_quiet_stretch_does_not_stretch_the_step_before_it(trace_of: Callable[..., Trace]) -> None:
    rows = [(at, 1, 1, [0]) for at in (0, 0, 0, 3, 3, 3, 6, 6, 6, 600, 600, 600)]
    assert spread(trace_of(*rows), seed=3).arrival_s[8] < 9


def test_the_seed_decides_and_nothing_else(tiny: Trace) -> None:
    assert spread(tiny, 7).arrival_s.tobytes() == spread(tiny, 7).arrival_s.tobytes()
    assert spread(tiny, 7).arrival_s.tobytes() != spread(tiny, 8).arrival_s.tobytes()


def test_fine_timestamps_stay_as_recorded(trace_of: Callable[..., Trace]) -> None:
    trace = trace_of(*[(at, 1, 1, [0]) for at in (0.0, 0.1, 0.1, 0.35, 0.5)])
    assert spread(trace, 1) is trace


def test_speed_divides_the_gaps(tiny: Trace) -> None:
    after = speed_up(tiny, 2.0)
    assert after.arrival_s.tolist() == (tiny.arrival_s / 2).tolist()
    assert after.notes == ("arrivals x2 as fast as recorded",)
    with pytest.raises(SettingError, match="speed must be a positive number, got 0"):
        speed_up(tiny, 0)


def test_a_slice_keeps_the_blocks_of_its_requests(tiny: Trace) -> None:
    head = tiny.head(2)
    assert head.block_ids.tolist() == [0, 1, 2, 0, 3]
    assert head.notes == ("first 2 of 9 requests",)
    assert tiny.head(100) is tiny
    with pytest.raises(TraceError, match="at least 1 request, got 0"):
        tiny.head(0)
