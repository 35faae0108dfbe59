"""Traces for the simulator's tests: a hand-written one that is always there, and recorded ones where somebody has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulations.traces.columns import Trace
from simulations.traces.mooncake import read_mooncake

_ROOT = Path(__file__).parents[2]
TINY = _ROOT / "tests" / "data" / "mooncake_tiny.jsonl"


@pytest.fixture
def tiny_path() -> Path:
    return TINY


@pytest.fixture
def tiny() -> Trace:
    return read_mooncake(TINY)


@pytest.fixture(scope="session")
def recorded() -> Callable[[str], Path]:
    """The path of a recorded trace; skips the test where it is not on this machine."""

    def find(name: str) -> Path:
        folder = Path(os.environ.get("TRUNKLINE_TRACES", _ROOT / ".." / "shared" / "traces"))
        path = folder / name
        if not path.is_file():
            pytest.skip(f"no recorded trace {name}; TRUNKLINE_TRACES names the folder it is in")
        return path

    return find


@pytest.fixture
def trace_of() -> Callable[..., Trace]:
    """A trace of (arrival_s, input_tokens, output_tokens, ids) rows."""

    def make(*rows: tuple[float, int, int, list[int]], block_tokens: int = 512) -> Trace:
        return Trace(
            name="made",
            digest="",
            block_tokens=block_tokens,
            arrival_s=np.asarray([row[0] for row in rows], np.float64),
            input_tokens=np.asarray([row[1] for row in rows], np.int64),
            output_tokens=np.asarray([row[2] for row in rows], np.int64),
            block_ids=np.asarray([block for row in rows for block in row[3]], np.int64),
            block_offsets=np.cumsum([0, *(len(row[3]) for row in rows)]).astype(np.int64),
        )

    return make
