"""Chunked causal prefill against its twin, and the properties that no reference is needed for."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.decode import decode
from kernels.prefill import prefill
from tests.kernels.cases import Case, build, check_close, check_prefill

# Pairs of every two of dtype, head size, block size and group; chunks on and beside the edges of block and tile.
CASES = [
    Case("fp32", 64, 16, 2, 1, (0, 19), (7, 40), rows=32, columns=16),
    Case("fp32", 128, 32, 1, 3, (33,), (50,), rows=64, columns=32),
    Case("fp32", 80, 64, 2, 4, (64, 0), (3, 20), rows=32, columns=64),
    Case("fp32", 96, 16, 1, 1, (15,), (33,), rows=16, columns=16),
    Case("fp16", 64, 32, 2, 4, (0, 0, 31), (1, 0, 34), rows=64, columns=16),
    Case("fp16", 128, 64, 2, 1, (63, 128), (2, 17), rows=32, columns=32),
    Case("fp16", 80, 16, 3, 3, (0,), (47,), rows=128, columns=64),
    Case("fp16", 96, 32, 2, 7, (1, 40), (9, 1), rows=16, columns=32),
    Case("bf16", 64, 64, 3, 3, (0, 70), (65, 5), rows=64, columns=32),
    Case("bf16", 128, 16, 2, 4, (16, 100, 0), (16, 1, 31), rows=64, columns=64),
    Case("bf16", 80, 32, 1, 1, (7,), (40,), rows=32, columns=16),
    Case("bf16", 96, 64, 2, 3, (90, 0), (10, 64), rows=128, columns=32),
    Case("bf16", 32, 16, 2, 2, (20, 0), (3, 30), rows=32, columns=32),
    Case("fp16", 24, 32, 1, 2, (40,), (20,), rows=32, columns=32),
    Case("fp32", 64, 16, 1, 2, (10,), (20,), rows=32, columns=32, scale=0.31),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_its_twin(case: Case) -> None:
    check_prefill(prefill, case)


@pytest.mark.usefixtures("poisoned")
def test_every_output_is_written() -> None:
    check_prefill(prefill, Case("fp32", 64, 16, 2, 3, (0, 5, 40), (30, 0, 1), rows=32, columns=32))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_shipped_tile_is_right_too(dtype: str) -> None:
    b = build(Case(dtype, 64, 16, 3, 3, (20, 0), (60, 45)))
    where = (b.q, b.k_pool, b.v_pool, b.tables, b.starts, b.contexts)
    check_close(prefill(*where), reference.prefill(*where, compute=torch.float64), b.q.dtype)


def test_chunks_equal_one_long_prefill() -> None:
    whole = build(Case("fp32", 64, 16, 2, 3, (0,), (75,)))
    pools = (whole.k_pool, whole.v_pool, whole.tables)
    want = prefill(whole.q, *pools, whole.starts, whole.contexts)
    for first, end in ((0, 16), (16, 49), (49, 75)):
        starts, context = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([0, end - first], [first]))
        out, lse = prefill(whole.q[first:end], *pools, starts, context)
        check_close((out, lse), (want[0][first:end], want[1][first:end]), torch.float32)


def test_one_new_token_equals_decode() -> None:
    b = build(Case("fp32", 64, 16, 2, 3, (70, 0, 31), (1, 1, 1)))
    pools = (b.k_pool, b.v_pool, b.tables)
    check_close(prefill(b.q, *pools, b.starts, b.contexts), decode(b.q, *pools, b.lengths, splits=2), torch.float32)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_moving_blocks_in_the_pool_keeps_every_bit(dtype: str) -> None:
    b = build(Case(dtype, 64, 16, 2, 3, (33, 0), (20, 17)))
    before = prefill(b.q, b.k_pool, b.v_pool, b.tables, b.starts, b.contexts)
    moved = torch.randperm(b.k_pool.shape[0])
    k_pool, v_pool = torch.empty_like(b.k_pool), torch.empty_like(b.v_pool)
    k_pool[moved], v_pool[moved] = b.k_pool, b.v_pool
    after = prefill(b.q, k_pool, v_pool, moved[b.tables.long()].to(torch.int32), b.starts, b.contexts)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def test_what_comes_later_does_not_change_what_was_seen() -> None:
    b = build(Case("fp32", 64, 16, 1, 2, (0,), (40,)))
    where = (b.tables, b.starts, b.contexts)
    before, _ = prefill(b.q, b.k_pool, b.v_pool, *where)
    b.v_pool[b.tables[0, 2].long()] += 1.0  # positions 32..39
    after, _ = prefill(b.q, b.k_pool, b.v_pool, *where)
    assert torch.equal(before[:32], after[:32])
    assert (before[32:] != after[32:]).all(dim=-1).all()
