"""A small entry point, compiled or taken from a cache, in a process of its own: `python -m tests.radix.core.baked FOLDER [HOST]`.

Says what was compiled and whether the cache calls itself whole; marks it whole then. HOST: the CPU this machine pretends to have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import llvmlite.binding as host
from numba import types
from numba.core import event

from radix.core.atomics import mul_high, trailing_zeros
from radix.core.jit import entry, is_whole, mark_whole


def _score(value: int) -> int:
    return mul_high(value, value) + trailing_zeros(value)


def main(argv: list[str]) -> int:
    """One line of JSON."""
    folder = Path(argv[1])
    if len(argv) > 2:
        features = type(host.get_host_cpu_features())({"sse2": True, argv[2]: True})
        host.get_host_cpu_name = lambda: argv[2]
        host.get_host_cpu_features = lambda: features
    whole = is_whole(folder)
    with event.install_recorder("numba:compile") as recorder:
        score = entry(_score, types.int64(types.int64), folder, nogil=False)
    assert score(1 << 40) == (1 << 16) + 40
    mark_whole(folder)
    compiled = sum(each.is_start for _, each in recorder.buffer)
    sys.stdout.write(json.dumps({"compiled": compiled, "whole": whole}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
