"""Changes of a trace before it is replayed; each leaves a note, so that no report hides one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulations.errors import SettingError
from simulations.traces.columns import Trace

# Below this share of distinct timestamps a clock that ticks in steps, not chance, made them equal.
_QUANTIZED_SHARE = 0.5


def spread(trace: Trace, seed: int) -> Trace:
    """Spread requests that share a coarse timestamp uniformly over the step up to the next one, in their order.

    A trace whose timestamps are fine already comes back unchanged. Left alone, steps of 3 s are a train of bursts that no user
    sent, and it changes which policy wins.
    """
    stamps, counts = np.unique(trace.arrival_s, return_counts=True)
    if len(stamps) < 2 or len(stamps) > _QUANTIZED_SHARE * len(trace):
        return trace
    gaps = np.diff(stamps)
    step_s = float(np.median(gaps))
    # A quiet stretch is no reason to send the requests before it later: at most one step each.
    widths = np.minimum(np.append(gaps, step_s), step_s)
    draws = np.random.default_rng(seed).random(len(trace))
    group = np.repeat(np.arange(len(stamps)), counts)
    offsets = draws[np.lexsort((draws, group))] * np.repeat(widths, counts)
    note = f"arrivals: {len(stamps):,} distinct timestamps, spread uniformly over steps of {step_s:g} s (seed {seed})"
    return replace(trace, arrival_s=trace.arrival_s + offsets, notes=(*trace.notes, note))


def speed_up(trace: Trace, factor: float) -> Trace:
    """Let requests arrive `factor` times as fast."""
    if not (np.isfinite(factor) and factor > 0):
        raise SettingError(f"speed must be a positive number, got {factor}")
    if factor == 1.0:
        return trace
    return replace(trace, arrival_s=trace.arrival_s / factor, notes=(*trace.notes, f"arrivals x{factor:g} as fast as recorded"))
