"""Shapes to try the kernels on, and the judgement that every test of a kernel (and of its mutants) shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import reference
from kernels.tiling import Tile

# Largest error per unit of output. The interpreter truncates where a GPU rounds to bfloat16, hence its wide margin.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Case:
    """A batch: per sequence how many tokens are cached and how many are new (1 each for decode)."""

    dtype: str
    dim: int
    block_tokens: int
    kv_heads: int
    group: int
    contexts: tuple[int, ...]
    new: tuple[int, ...]
    rows: int = 16
    columns: int = 64
    splits: int = 1
    scale: float | None = None

    def __str__(self) -> str:
        heads = f"{self.kv_heads}x{self.group}"
        sizes = f"d{self.dim}-b{self.block_tokens}-t{self.rows}x{self.columns}-s{self.splits}"
        return f"{self.dtype}-{sizes}-h{heads}-c{'.'.join(map(str, self.contexts))}-n{'.'.join(map(str, self.new))}"

    @property
    def tile(self) -> Tile:
        return Tile(self.rows, self.columns, warps=4, stages=2)


@dataclass(frozen=True)
class Batch:
    """The tensors of a case; every pool slot that no sequence owns holds NaN, also the block behind unused table entries."""

    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    tables: Tensor
    starts: Tensor
    contexts: Tensor

    @property
    def lengths(self) -> Tensor:
        return self.contexts + self.starts.diff()


def build(case: Case, seed: int = 0) -> Batch:
    """Random values in shuffled blocks."""
    random = torch.Generator().manual_seed(seed)
    dtype = SHORT[case.dtype]
    lengths = [context + new for context, new in zip(case.contexts, case.new, strict=True)]
    counts = [-(-length // case.block_tokens) for length in lengths]
    blocks = sum(counts) + 3
    order = torch.randperm(blocks, generator=random).to(torch.int32)
    shape = (blocks, case.block_tokens, case.kv_heads, case.dim)
    k_pool, v_pool = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
    tables = torch.full((len(lengths), max([*counts, 0]) + 1), int(order[-1]), dtype=torch.int32)
    used = 0
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        tables[row, :count] = order[used : used + count]
        used += count
        for pool in (k_pool, v_pool):
            own = torch.full((count * case.block_tokens, case.kv_heads, case.dim), float("nan"))
            own[:length] = torch.randn((length, case.kv_heads, case.dim), generator=random)
            pool[tables[row, :count].long()] = own.to(dtype).unflatten(0, (count, case.block_tokens))
    q = torch.randn((sum(case.new), case.kv_heads * case.group, case.dim), generator=random).to(dtype)
    starts = torch.tensor([0, *torch.tensor(case.new).cumsum(0).tolist()], dtype=torch.int32)
    return Batch(q, k_pool, v_pool, tables, starts, torch.tensor(case.contexts, dtype=torch.int32))


def check_close(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    """Outputs and log-sum-exps agree; NaN agrees with nothing, and -inf only with -inf."""
    torch.testing.assert_close(got[0].double(), want[0].double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(got[1], want[1], rtol=1e-5, atol=1e-5)


def check_decode(decode: Callable[..., tuple[Tensor, Tensor]], case: Case) -> None:
    """The kernel equals its twin in float64."""
    b = build(case)
    where = (b.q, b.k_pool, b.v_pool, b.tables, b.lengths)
    got = decode(*where, scale=case.scale, splits=case.splits, tile=case.tile)
    check_close(got, reference.decode(*where, scale=case.scale, compute=torch.float64), b.q.dtype)


def check_prefill(prefill: Callable[..., tuple[Tensor, Tensor]], case: Case) -> None:
    """The kernel equals its twin in float64."""
    b = build(case)
    where = (b.q, b.k_pool, b.v_pool, b.tables, b.starts, b.contexts)
    got = prefill(*where, scale=case.scale, tile=case.tile)
    check_close(got, reference.prefill(*where, scale=case.scale, compute=torch.float64), b.q.dtype)


def check_store(store_kv: Callable[..., None], dtype: str, heads: int, dim: int, block_tokens: int, tokens: int) -> None:
    """All slots equal the twin's bit for bit, those that were skipped or not named included."""
    random = torch.Generator().manual_seed(0)
    # The first block is a guard in front of the pool: a write to slot -1 lands there and shows.
    shape = (2, 1 + tokens // block_tokens + 2, block_tokens, heads, dim)
    before = torch.randn(shape, generator=random).to(SHORT[dtype])
    k, v = torch.randn((2, tokens, heads, dim), generator=random).to(SHORT[dtype])
    slots = torch.randperm((shape[1] - 1) * block_tokens, generator=random)[:tokens]
    slots[1::4] = -1
    got, want = before.clone(), before.clone()
    store_kv(k, v, got[0, 1:], got[1, 1:], slots)
    reference.store_kv(k, v, want[0, 1:], want[1, 1:], slots)
    assert torch.equal(got, want)
    assert not torch.equal(got, before)
