"""The cache write against its twin, bit for bit."""

from __future__ import annotations

import pytest
import torch

from kernels.store_kv import store_kv
from tests.kernels.cases import check_store


@pytest.mark.parametrize(
    ("dtype", "heads", "dim", "block_tokens", "tokens"),
    [
        ("bf16", 3, 64, 16, 37),
        ("bf16", 2, 128, 64, 5),
        ("bf16", 1, 96, 32, 70),
        ("fp16", 8, 128, 32, 9),
        ("fp16", 2, 80, 16, 40),
        ("fp32", 5, 64, 64, 33),
        ("fp32", 1, 16, 16, 300),  # more than one program
        ("fp32", 40, 128, 16, 3),  # a row wider than a program's usual tile
    ],
)
def test_equals_its_twin_and_leaves_other_slots_alone(dtype: str, heads: int, dim: int, block_tokens: int, tokens: int) -> None:
    check_store(store_kv, dtype, heads, dim, block_tokens, tokens)


def test_all_skipped_writes_nothing() -> None:
    pools = torch.randn(2, 4, 16, 2, 64)
    before = pools.clone()
    k, v = torch.randn(2, 5, 2, 64)
    store_kv(k, v, pools[0, 1:], pools[1, 1:], torch.full((5,), -1))
    assert torch.equal(pools, before)


def test_reads_views_of_a_fused_projection_into_strided_pools() -> None:
    fused = torch.randn(6, 9, 64)
    pools = torch.zeros(3, 2, 16, 2, 64)
    store_kv(fused[:, 4:6], fused[:, 6:8], pools[:, 0], pools[:, 1], torch.arange(20, 26))
    assert torch.equal(pools[1, 0, 4:10], fused[:, 4:6])
    assert torch.equal(pools[1, 1, 4:10], fused[:, 6:8])
    assert pools.count_nonzero() == 2 * 6 * 2 * 64
