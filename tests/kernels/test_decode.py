"""Split decode against its twin, and the properties that no reference is needed for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.decode import MAX_SPLITS, MIN_SPLIT_TOKENS, choose_splits, decode
from tests.kernels.cases import Case, build, check_close, check_decode


def one_new(dtype: str, dim: int, block: int, heads: tuple[int, int], lengths: tuple[int, ...], **more: int | float) -> Case:
    """A decode batch: the last token of each length is the new one."""
    return Case(dtype, dim, block, *heads, tuple(n - 1 for n in lengths), (1,) * len(lengths), **more)


# Pairs of every two of dtype, head size, block size, group and splits; lengths on and beside the edges of block and tile.
CASES = [
    one_new("fp32", 64, 16, (2, 1), (1, 64, 65)),
    one_new("fp32", 128, 32, (1, 3), (31, 33, 100), splits=3),
    one_new("fp32", 80, 64, (2, 4), (63, 65), splits=2, columns=32),
    one_new("fp32", 96, 16, (1, 8), (17, 128), columns=16),
    one_new("fp16", 64, 32, (2, 4), (32, 100), splits=2, columns=16),
    one_new("fp16", 128, 64, (2, 1), (1, 64, 129), splits=4),
    one_new("fp16", 80, 16, (3, 3), (16, 47), columns=32),
    one_new("fp16", 96, 32, (2, 1), (95, 2), splits=3),
    one_new("bf16", 64, 64, (3, 3), (5, 70, 128), splits=2),
    one_new("bf16", 128, 16, (2, 4), (15, 16, 17, 90), splits=3, columns=32),
    one_new("bf16", 80, 32, (1, 1), (33, 64), splits=2),
    one_new("bf16", 96, 64, (2, 8), (64, 1), columns=16),
    one_new("bf16", 128, 32, (1, 20), (40, 77), rows=32, splits=2),
    one_new("bf16", 32, 16, (2, 2), (50, 3), splits=2),
    one_new("fp16", 24, 32, (1, 2), (40,), columns=32),
    one_new("fp16", 64, 16, (2, 2), (50, 3), scale=0.31, splits=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_its_twin(case: Case) -> None:
    check_decode(decode, case)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("splits", [1, 8])
def test_every_output_is_written_even_by_empty_splits(splits: int) -> None:
    check_decode(decode, one_new("fp32", 64, 16, (2, 3), (70, 1, 20), splits=splits))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("splits", [1, 3])
def test_a_sequence_of_no_tokens_gives_zeros_and_minus_infinity(splits: int) -> None:
    b = build(one_new("fp32", 64, 16, (2, 2), (20, 30)))
    lengths = torch.tensor([20, 0], dtype=torch.int32)
    out, lse = decode(b.q, b.k_pool, b.v_pool, b.tables, lengths, splits=splits)
    assert torch.equal(out[1], torch.zeros(4, 64))
    assert torch.isneginf(lse[1]).all()
    check_close((out, lse), reference.decode(b.q, b.k_pool, b.v_pool, b.tables, lengths), torch.float32)


@given(seed=st.integers(0, 2**31), splits=st.integers(2, 6), lengths=st.lists(st.integers(1, 90), min_size=1, max_size=3))
@settings(max_examples=12, deadline=None)
def test_one_split_equals_many(seed: int, splits: int, lengths: list[int]) -> None:
    b = build(one_new("fp32", 64, 16, (1, 3), tuple(lengths)), seed)
    where = (b.q, b.k_pool, b.v_pool, b.tables, b.lengths)
    one, many = (decode(*where, splits=count, tile=CASES[3].tile) for count in (1, splits))
    check_close(many, one, torch.float32)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_moving_blocks_in_the_pool_keeps_every_bit(dtype: str) -> None:
    b = build(one_new(dtype, 64, 16, (2, 3), (70, 33), splits=2))
    before = decode(b.q, b.k_pool, b.v_pool, b.tables, b.lengths, splits=2)
    moved = torch.randperm(b.k_pool.shape[0])
    k_pool, v_pool = torch.empty_like(b.k_pool), torch.empty_like(b.v_pool)
    k_pool[moved], v_pool[moved] = b.k_pool, b.v_pool
    after = decode(b.q, k_pool, v_pool, moved[b.tables.long()].to(torch.int32), b.lengths, splits=2)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def test_pools_and_queries_may_be_strided_views() -> None:
    """One pool of both keys and values, queries cut out of a fused projection."""
    b = build(one_new("fp32", 64, 16, (2, 2), (20, 40)))
    both = torch.stack([b.k_pool, b.v_pool], dim=1)
    fused = torch.cat([b.q, torch.full((2, 4, 64), float("nan"))], dim=1)
    got = decode(fused[:, :4], both[:, 0], both[:, 1], b.tables, b.lengths, splits=2)
    check_close(got, decode(b.q, b.k_pool, b.v_pool, b.tables, b.lengths, splits=2), torch.float32)


def test_the_shipped_tile_and_splits_are_right_too() -> None:
    case = replace(CASES[9], splits=1)
    b = build(case)
    where = (b.q, b.k_pool, b.v_pool, b.tables, b.lengths)
    check_close(decode(*where), reference.decode(*where), b.q.dtype)


@pytest.mark.parametrize(
    ("sequences", "kv_heads", "max_tokens", "splits"),
    [(1, 8, 32_768, MAX_SPLITS), (1, 8, 1_024, 4), (64, 8, 4_096, 2), (256, 8, 4_096, 1), (1, 1, MIN_SPLIT_TOKENS - 1, 1)],
)
def test_splits_fill_the_device_but_stay_worth_a_program(sequences: int, kv_heads: int, max_tokens: int, splits: int) -> None:
    assert choose_splits(sequences, kv_heads, max_tokens) == splits


def test_a_sequence_alone_gives_the_bits_it_gives_in_a_batch() -> None:
    b = build(one_new("bf16", 64, 16, (2, 3), (70, 5, 33)))
    batch = decode(b.q, b.k_pool, b.v_pool, b.tables, b.lengths, splits=2)
    for row in range(3):
        alone = decode(b.q[row : row + 1], b.k_pool, b.v_pool, b.tables[row : row + 1], b.lengths[row : row + 1], splits=2)
        assert torch.equal(alone[0][0], batch[0][row])
        assert torch.equal(alone[1][0], batch[1][row])
