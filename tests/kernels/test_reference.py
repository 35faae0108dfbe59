"""The twins against dense attention in float64, written independently of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels import reference
from tests.kernels.cases import Case, build


def dense(q: Tensor, k_pool: Tensor, v_pool: Tensor, table: Tensor, length: int, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of the last tokens of a sequence, one position at a time: output and base-2 log-sum-exp, in float64."""
    block_tokens, heads = k_pool.shape[1:3]
    places = [(int(table[p // block_tokens]), p % block_tokens) for p in range(length)]
    keys = torch.stack([k_pool[place] for place in places]).double()
    values = torch.stack([v_pool[place] for place in places]).double()
    out, lse = torch.empty(q.shape, dtype=torch.float64), torch.empty(q.shape[:2], dtype=torch.float64)
    for row in range(q.shape[0]):
        seen = length - q.shape[0] + row + 1
        for head in range(q.shape[1]):
            own = head // (q.shape[1] // heads)
            query = q[row, head].double()[None]
            out[row, head] = scaled_dot_product_attention(query, keys[:seen, own], values[:seen, own], scale=scale)[0]
            weights = (keys[:seen, own] @ query[0] * scale).exp()
            lse[row, head] = math.log2(weights.sum())
    return out, lse


@pytest.mark.parametrize("scale", [None, 0.2])
@pytest.mark.parametrize(("group", "block_tokens"), [(1, 32), (3, 16)])
def test_prefill_and_decode_twins_equal_dense_attention(scale: float | None, group: int, block_tokens: int) -> None:
    b = build(Case("fp32", 64, block_tokens, 2, group, (0, 21, 7), (9, 12, 1)))
    out, lse = reference.prefill(b.q, b.k_pool, b.v_pool, b.tables, b.starts, b.contexts, scale=scale, compute=torch.float64)
    ends = b.starts[1:].tolist()
    last, last_lse = reference.decode(
        b.q[[end - 1 for end in ends]], b.k_pool, b.v_pool, b.tables, b.lengths, scale=scale, compute=torch.float64
    )
    for row, (first, end) in enumerate(zip(b.starts.tolist(), ends, strict=False)):
        want, want_lse = dense(b.q[first:end], b.k_pool, b.v_pool, b.tables[row], int(b.lengths[row]), scale or 0.125)
        torch.testing.assert_close(out[first:end].double(), want, rtol=0, atol=1e-6)
        torch.testing.assert_close(lse[first:end].double(), want_lse, rtol=0, atol=1e-5)
        torch.testing.assert_close(last[row].double(), want[-1], rtol=0, atol=1e-6)
        torch.testing.assert_close(last_lse[row].double(), want_lse[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_float32_arithmetic_is_close_to_float64(dtype: str) -> None:
    b = build(Case(dtype, 64, 16, 2, 3, (30,), (20,)))
    where = (b.q, b.k_pool, b.v_pool, b.tables, b.starts, b.contexts)
    fast, exact = reference.prefill(*where), reference.prefill(*where, compute=torch.float64)
    assert fast[0].dtype == b.q.dtype
    step = max(torch.finfo(b.q.dtype).eps * 2, 5e-6)
    torch.testing.assert_close(fast[0].double(), exact[0].double(), rtol=step, atol=step)
    torch.testing.assert_close(fast[1], exact[1], rtol=0, atol=1e-5)


def test_store_writes_each_token_where_its_slot_says() -> None:
    k_pool, v_pool = torch.zeros(2, 3, 16, 1, 16)
    k, v = torch.randn(2, 3, 1, 16)
    reference.store_kv(k, v, k_pool, v_pool, torch.tensor([40, -1, 0]))
    for pool, new in ((k_pool, k), (v_pool, v)):
        assert torch.equal(pool[2, 8], new[0])
        assert torch.equal(pool[0, 0], new[2])
        assert pool.count_nonzero() == 2 * 16
