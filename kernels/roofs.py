"""What the device at hand can do, measured in the same run as the kernels, and the clock that both are measured with."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable

import torch
import triton

FLUSH_BYTES = 256 * 2**20  # several times the L2 cache, so that no run finds the last one's data there
COPY_ELEMENTS = 2**29
MATMUL_SIDE = 8192

Measure = Callable[[Callable[[], object]], float]  # runs it several times, answers milliseconds


def graph_clock(device: torch.device, repeats: int = 20) -> Measure:
    """A clock that replays a recorded graph, so that Python's launch time is not measured; median, cold L2."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)

    def measure(run: Callable[[], object]) -> float:
        for _ in range(2):
            run()  # compiles, and lets libraries allocate before recording
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        times_ms: list[float] = []
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize(device)
            times_ms.append(float(start.elapsed_time(end)))
        return statistics.median(times_ms)

    return measure


def copy_gb_s(device: torch.device, measure: Measure) -> float:
    """GB/s of a large copy, bytes read and written both counted."""
    source = torch.zeros(COPY_ELEMENTS, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / measure(lambda: target.copy_(source)) / 1e6


def matmul_tflop_s(device: torch.device, measure: Measure) -> float:
    """TFLOP/s of a large bfloat16 product."""
    a, b = (torch.randn((MATMUL_SIDE, MATMUL_SIDE), dtype=torch.bfloat16, device=device) for _ in range(2))
    flop: int = 2 * MATMUL_SIDE**3
    return flop / measure(lambda: a @ b) / 1e9


def versions(device: torch.device) -> dict[str, str]:
    """Without these a figure is worth nothing."""
    return {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": triton.__version__,
        "python": platform.python_version(),
    }
