"""Write new keys and values into the paged pools, in place.

One program writes a few tokens with all their heads: a token's heads lie side by side, so the tile is one wide row per token.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import check_place, check_pools, check_vector, require
from kernels.device import INTERPRETED
from kernels.tiling import next_power_of_2

TILE_ELEMENTS = 4096  # per program and tensor: 32 elements for each of 128 threads


@triton.jit
def _store_kv(
    k_ptr,
    v_ptr,
    k_pool_ptr,
    v_pool_ptr,
    slots_ptr,
    tokens,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    block_stride,
    slot_stride,
    head_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slots = tl.load(slots_ptr + rows, mask=rows < tokens, other=-1)  # int64, and so is all that follows from it
    columns = tl.arange(0, WIDTH)
    head = columns // DIM
    dim = columns % DIM
    written = (slots >= 0)[:, None] & (columns < HEADS * DIM)[None, :]
    # C division would round -1 up to block 0; the mask keeps that lane from writing.
    into = (slots // BLOCK_TOKENS) * block_stride + (slots % BLOCK_TOKENS) * slot_stride
    into = into[:, None] + (head.to(tl.int64) * head_stride + dim)[None, :]
    token = rows.to(tl.int64)[:, None]
    k = tl.load(k_ptr + token * k_token_stride + (head * k_head_stride + dim)[None, :], mask=written)
    tl.store(k_pool_ptr + into, k, mask=written)
    v = tl.load(v_ptr + token * v_token_stride + (head * v_head_stride + dim)[None, :], mask=written)
    tl.store(v_pool_ptr + into, v, mask=written)


def rows_per_program(width: int) -> int:
    """How many tokens one program writes, for rows of `width` elements."""
    return max(1, TILE_ELEMENTS // width)


def store_kv(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Copy k and v: [tokens, kv_heads, dim] into the pools: [blocks, block_tokens, kv_heads, dim] at `slots`.

    slots: [tokens] int64, block * block_tokens + place in the block, below blocks * block_tokens; -1 skips the token.
    """
    check_place(bool(INTERPRETED), k=k, v=v, k_pool=k_pool, v_pool=v_pool, slots=slots)
    check_pools(k_pool, v_pool)
    block_tokens, heads, dim = k_pool.shape[1:]
    for name, new in (("k", k), ("v", v)):
        fits = new.dim() == 3 and new.shape[1:] == (heads, dim) and new.dtype == k_pool.dtype and new.stride(2) == 1
        require(fits, f"{name} must be [tokens, {heads}, {dim}] {k_pool.dtype}, last axis contiguous", **{name: new})
    require(k.shape == v.shape, "k and v must have as many tokens", k=k, v=v)
    tokens = k.shape[0]
    check_vector("slots", slots, tokens, torch.int64)
    if tokens == 0 or heads == 0:  # an empty launch grid is an error
        return
    width = next_power_of_2(heads * dim)
    rows = rows_per_program(width)
    _store_kv[(triton.cdiv(tokens, rows),)](
        *(k, v, k_pool, v_pool, slots, tokens),
        *(*k.stride()[:2], *v.stride()[:2], *k_pool.stride()[:3]),
        HEADS=heads,
        DIM=dim,
        BLOCK_TOKENS=block_tokens,
        ROWS=rows,
        WIDTH=width,
        num_warps=4,
        enable_fp_fusion=True,
    )
