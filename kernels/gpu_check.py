"""Check and time the kernels on a real GPU: `python -m kernels.gpu_check`, behind `make gpu-check`.

Prints versions, measures what the device can do (copy and matmul) in the same run, compares each kernel with its twin, then
times it and gives the share of that roof and the ratio to torch's attention on contiguous tensors. Writes all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels import reference, roofs
from kernels.decode import decode
from kernels.device import INTERPRETED
from kernels.prefill import prefill
from kernels.roofs import Measure
from kernels.store_kv import store_kv

BLOCK_TOKENS = 16
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch of equal sequences: each has `context` cached tokens and `new` tokens to compute."""

    sequences: int
    context: int
    new: int
    q_heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} {self.sequences}x({self.context}+{self.new}) {self.q_heads}/{self.kv_heads} heads D{self.dim}"

    @property
    def length(self) -> int:
        return self.context + self.new

    @property
    def bytes_moved(self) -> int:
        """Only what must move: keys and values once, queries in, outputs and log-sum-exps out."""
        pairs = self.sequences * self.length * self.kv_heads * self.dim * 2
        rows = self.sequences * self.new * self.q_heads
        return (pairs + rows * self.dim * 2) * self.dtype.itemsize + rows * 4

    @property
    def flop(self) -> int:
        """Two products of the causal part of the score matrix, two operations for each multiply-add."""
        scores = self.new * self.context + self.new * (self.new + 1) // 2
        return 4 * self.dim * self.q_heads * self.sequences * scores


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far a kernel is from its twin in float64, on one shape."""

    name: str
    max_error: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.max_error <= self.allowed  # false for NaN


@dataclass(frozen=True, slots=True)
class Timing:
    """One timed shape. `of_roof`: share of the roof measured in this run; `faster_than`: torch's time / ours per backend."""

    name: str
    ms: float
    roof: str
    of_roof: float
    faster_than: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of a shape, its blocks shuffled over the pool."""

    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    tables: Tensor
    starts: Tensor
    contexts: Tensor
    lengths: Tensor


CORRECTNESS = [
    Shape(3, 700, 1, 9, 3, 64),
    Shape(5, 1000, 1, 32, 8, 128),
    Shape(2, 99, 1, 8, 8, 80, torch.float16),
    Shape(2, 300, 1, 8, 2, 96, torch.float32),
    Shape(3, 70, 150, 9, 3, 64),
    Shape(2, 500, 333, 32, 8, 128),
    Shape(1, 0, 257, 28, 4, 128, torch.float16),
    Shape(2, 33, 40, 8, 2, 96, torch.float32),
]
DECODES = [Shape(64, 4095, 1, 32, 8, 128), Shape(32, 2047, 1, 32, 8, 128), Shape(8, 1023, 1, 32, 8, 128)]
DECODES += [Shape(1, 32_767, 1, 32, 8, 128), Shape(64, 4095, 1, 9, 3, 64)]
PREFILLS = [Shape(1, 0, 8192, 32, 8, 128), Shape(4, 0, 4096, 32, 8, 128), Shape(1, 8192, 512, 32, 8, 128)]
PREFILLS += [Shape(4, 0, 4096, 9, 3, 64)]
STORES = [Shape(1, 0, 8192, 32, 8, 128)]


def build(shape: Shape, device: torch.device) -> Batch:
    """Random tensors for a shape."""
    table_blocks = -(-shape.length // BLOCK_TOKENS)
    blocks = shape.sequences * table_blocks
    tokens = shape.sequences * shape.new

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, dtype=shape.dtype, device=device)

    def ints(values: Tensor) -> Tensor:
        return values.to(device=device, dtype=torch.int32)

    pool = (blocks, BLOCK_TOKENS, shape.kv_heads, shape.dim)
    return Batch(
        q=normal(tokens, shape.q_heads, shape.dim),
        k_pool=normal(*pool),
        v_pool=normal(*pool),
        tables=ints(torch.randperm(blocks).view(shape.sequences, table_blocks)),
        starts=ints(torch.arange(shape.sequences + 1) * shape.new),
        contexts=ints(torch.full((shape.sequences,), shape.context)),
        lengths=ints(torch.full((shape.sequences,), shape.length)),
    )


def attention(shape: Shape, batch: Batch) -> Callable[[], tuple[Tensor, Tensor]]:
    """The kernel that a shape is for, bound to its tensors."""
    pools = (batch.k_pool, batch.v_pool, batch.tables)
    if shape.new == 1:
        return lambda: decode(batch.q, *pools, batch.lengths)
    return lambda: prefill(batch.q, *pools, batch.starts, batch.contexts)


def accuracy(shape: Shape, device: torch.device) -> Accuracy:
    """Compare a shape's kernel with its twin in float64, output and log-sum-exp together."""
    batch = build(shape, device)
    got, got_lse = attention(shape, batch)()
    where = (batch.q, batch.k_pool, batch.v_pool, batch.tables, batch.starts, batch.contexts)
    want, want_lse = reference.prefill(*where, compute=torch.float64)  # decode is prefill of one token
    error = torch.maximum((got.double() - want.double()).abs().max(), (got_lse - want_lse).double().abs().max())
    return Accuracy(f"{'decode' if shape.new == 1 else 'prefill'} {shape}", float(error), TOLERANCE[shape.dtype])


def store_accuracy(shape: Shape, device: torch.device) -> Accuracy:
    """Compare the cache write with its twin: any difference is an error."""
    batch, new, slots = build(shape, device), *new_keys(shape, device)
    slots[::5] = -1
    want_k, want_v = batch.k_pool.clone(), batch.v_pool.clone()
    reference.store_kv(new, new, want_k, want_v, slots)
    store_kv(new, new, batch.k_pool, batch.v_pool, slots)
    same = torch.equal(batch.k_pool, want_k) and torch.equal(batch.v_pool, want_v)
    return Accuracy(f"store_kv {shape}", 0.0 if same else float("inf"), 0.0)


def new_keys(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys to write, and a slot in shuffled order for each."""
    tokens = shape.sequences * shape.new
    keys = torch.randn((tokens, shape.kv_heads, shape.dim), dtype=shape.dtype, device=device)
    return keys, torch.randperm(tokens, device=device)


def contiguous(shape: Shape, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The same numbers as torch's attention wants them: [sequences, heads, tokens, dim]."""
    q = batch.q.view(shape.sequences, shape.new, shape.q_heads, shape.dim).transpose(1, 2).contiguous()
    k, v = (
        pool[batch.tables.long()].flatten(1, 2)[:, : shape.length].transpose(1, 2).contiguous()
        for pool in (batch.k_pool, batch.v_pool)
    )
    return q, k, v


def time_torch(shape: Shape, batch: Batch, measure: Measure) -> dict[str, float | None]:
    """Milliseconds of torch's attention per backend; None where a backend does not take the shape."""
    if shape.new > 1 and shape.context:
        return {}  # its causal mask starts at the first key, so a chunk after a context is another problem
    q, k, v = contiguous(shape, batch)
    run = partial(scaled_dot_product_attention, q, k, v, is_causal=shape.new > 1, enable_gqa=shape.q_heads != shape.kv_heads)
    times: dict[str, float | None] = {}
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                times[name] = measure(run)
        except RuntimeError as error:  # "no available kernel": a missing backend must not end the run
            sys.stderr.write(f"note: {name} does not run {shape}: {str(error).splitlines()[0]}\n")
            times[name] = None
    return times


def time_attention(shape: Shape, copy_gb_s: float, matmul_tflop_s: float, device: torch.device, measure: Measure) -> Timing:
    """Time a shape's kernel: decode against the copy roof, prefill against the matmul roof."""
    batch = build(shape, device)
    ms = measure(attention(shape, batch))
    others = {name: t and t / ms for name, t in time_torch(shape, batch, measure).items()}
    if shape.new == 1:
        return Timing(f"decode {shape}", ms, "copy", shape.bytes_moved / ms / 1e6 / copy_gb_s, others)
    return Timing(f"prefill {shape}", ms, "matmul", shape.flop / ms / 1e9 / matmul_tflop_s, others)


def time_store(shape: Shape, copy_gb_s: float, device: torch.device, measure: Measure) -> Timing:
    """Time the cache write of a shape's new tokens against the copy roof."""
    batch, k, slots = build(shape, device), *new_keys(shape, device)
    v = k.clone()  # its own memory, or the second read would come from the cache
    ms = measure(lambda: store_kv(k, v, batch.k_pool, batch.v_pool, slots))
    return Timing(f"store_kv {shape}", ms, "copy", 4 * k.nbytes / ms / 1e6 / copy_gb_s)


def to_line(row: Accuracy | Timing) -> str:
    """One row for people."""
    if isinstance(row, Accuracy):
        return f"{'ok  ' if row.ok else 'FAIL'} {row.name}: largest error {row.max_error:.2e}, allowed {row.allowed:.0e}"
    others = "".join(f", {ratio:.2f}x as fast as torch {name}" for name, ratio in row.faster_than.items() if ratio is not None)
    return f"     {row.name}: {row.ms * 1e3:.1f} us, {row.of_roof:.0%} of {row.roof}{others}"


def check(device: torch.device, measure: Measure, limit_s: float) -> dict[str, object]:
    """The whole check; starts no further timing once the limit is reached."""
    began = time.monotonic()
    copy, matmul = roofs.copy_gb_s(device, measure), roofs.matmul_tflop_s(device, measure)
    sys.stdout.write(f"roofs: copy {copy:.0f} GB/s, matmul {matmul:.0f} TFLOP/s\n")
    accuracies = [*(accuracy(shape, device) for shape in CORRECTNESS), *(store_accuracy(shape, device) for shape in STORES)]
    sys.stdout.write("".join(to_line(row) + "\n" for row in accuracies))
    jobs = [partial(time_store, shape, copy, device, measure) for shape in STORES]
    jobs += [partial(time_attention, shape, copy, matmul, device, measure) for shape in DECODES + PREFILLS]
    timings: list[Timing] = []
    for job in jobs:
        if time.monotonic() - began > limit_s:
            break
        timings.append(job())
        sys.stdout.write(to_line(timings[-1]) + "\n")
    return {
        "roofs": {"copy_gb_s": copy, "matmul_tflop_s": matmul},
        "ok": all(row.ok for row in accuracies),
        "accuracy": [asdict(row) | {"ok": row.ok} for row in accuracies],
        "timings": [asdict(row) for row in timings],
        "timings_skipped": len(jobs) - len(timings),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `python -m kernels.gpu_check`; 0 when all is right, 1 without a GPU or on a wrong result, 2 on wrong use."""
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--limit-s", type=float, default=420.0, help="start no further timing after this many seconds")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.stderr.write(f"error: torch {torch.__version__} sees no CUDA device; this check needs one\n")
        return 1
    if INTERPRETED:
        sys.stderr.write("error: TRITON_INTERPRET is set, so no kernel would run on the GPU: unset it\n")
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    found = roofs.versions(device)
    sys.stdout.write(" ".join(f"{name}={value}" for name, value in found.items()) + "\n")
    torch.manual_seed(0)
    result = {"versions": found} | check(device, roofs.graph_clock(device), args.limit_s)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(f"written: {args.out}\n")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
