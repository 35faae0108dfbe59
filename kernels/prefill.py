"""Causal attention of new tokens over a paged context that already holds them: prefill, chunked prefill and extend.

The new tokens' keys and values are in the pool before this runs (`store_kv`), so cached and new tokens are read in one way.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import check_attention, check_place, check_vector, require
from kernels.device import INTERPRETED, LOG2_E, attend_tile, finish, load_rows, row_offsets
from kernels.tiling import Tile, next_power_of_2, prefill_tile


@triton.jit
def _find_sequence(starts_ptr, tile, sequences, TOKENS: tl.constexpr):
    """The sequence that owns a tile: the last whose first tile, starts // TOKENS + its number, is not beyond it."""
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["sequences"])
def _prefill(
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    starts_ptr,
    contexts_ptr,
    out_ptr,
    lse_ptr,
    scale_log2,
    sequences,
    q_token_stride,
    q_head_stride,
    table_stride,
    block_stride,
    slot_stride,
    head_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # A sequence's later tiles see more context: they start first, so that no long one is left alone at the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    kv_heads = tl.num_programs(1)
    seq = _find_sequence(starts_ptr, tile, sequences, TOKENS)
    start = tl.load(starts_ptr + seq)
    new_tokens = tl.load(starts_ptr + seq + 1) - start
    first_token = (tile - (start // TOKENS + seq)) * TOKENS
    if first_token >= new_tokens:
        return  # the grid is an upper bound, made without knowing the lengths

    # Rows are (token, head) pairs of one KV head, token by token.
    row = tl.arange(0, ROWS)
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    real = (row < TOKENS * GROUP) & (token < new_tokens)
    flat_token = (start + token).to(tl.int64)
    q = load_rows(q_ptr, flat_token * q_token_stride + head * q_head_stride, real, DIM, DIM_PADDED, True)

    context = tl.load(contexts_ptr + seq)
    position = context + token
    end = context + tl.minimum(first_token + TOKENS, new_tokens)
    # Columns that even the tile's first token sees need no mask: most of the work on a long context.
    open_end = (context + first_token + 1) // COLUMNS * COLUMNS
    acc = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    table_ptr = tables_ptr + seq.to(tl.int64) * table_stride
    k_head_ptr = k_ptr + kv_head * head_stride
    v_head_ptr = v_ptr + kv_head * head_stride
    for column in range(0, open_end, COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        valid = columns < end
        offsets = row_offsets(table_ptr, columns, valid, block_stride, slot_stride, BLOCK_TOKENS)
        acc, peak, total = attend_tile(
            q, k_head_ptr, v_head_ptr, offsets, valid, valid[None, :], scale_log2, acc, peak, total, DIM, DIM_PADDED, False
        )
    for column in range(open_end, end, COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        valid = columns < end
        offsets = row_offsets(table_ptr, columns, valid, block_stride, slot_stride, BLOCK_TOKENS)
        visible = columns[None, :] <= position[:, None]
        acc, peak, total = attend_tile(
            q, k_head_ptr, v_head_ptr, offsets, valid, visible, scale_log2, acc, peak, total, DIM, DIM_PADDED, True
        )

    result, lse = finish(acc, peak, total)
    place = flat_token * kv_heads * GROUP + head
    dims = tl.arange(0, DIM_PADDED)
    tl.store(lse_ptr + place, lse, mask=real)
    tl.store(
        out_ptr + place[:, None] * DIM + dims[None, :],
        result.to(out_ptr.dtype.element_ty),
        mask=real[:, None] & (dims < DIM)[None, :],
    )


def prefill(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    tables: Tensor,
    starts: Tensor,
    contexts: Tensor,
    *,
    scale: float | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal attention of q: [tokens, q_heads, dim], the new tokens of all sequences one after the other.

    Sequence i owns q[starts[i]:starts[i + 1]], and contexts[i] tokens stand before them in its blocks. pools: [blocks,
    block_tokens, kv_heads, dim]; tables: [sequences, max_blocks] int32; starts: [sequences + 1] int32, from 0 to tokens,
    not falling; contexts: [sequences] int32. Returns the output, like q, and the log-sum-exp in base 2: [tokens, q_heads].
    """
    vectors = {"tables": tables, "starts": starts, "contexts": contexts}
    check_place(bool(INTERPRETED), q=q, k_pool=k_pool, v_pool=v_pool, **vectors)
    check_attention(q, k_pool, v_pool, tables)
    tokens, q_heads, dim = q.shape
    block_tokens, kv_heads = k_pool.shape[1:3]
    sequences = tables.shape[0]
    check_vector("starts", starts, sequences + 1, torch.int32)
    check_vector("contexts", contexts, sequences, torch.int32)
    require(sequences > 0 or tokens == 0, "tokens without a sequence", q=q, **vectors)
    out = torch.empty((tokens, q_heads, dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((tokens, q_heads), dtype=torch.float32, device=q.device)
    if tokens == 0 or q_heads == 0:
        return out, lse

    group = q_heads // kv_heads
    tile = tile or prefill_tile(dim, group, q.element_size())
    tile_tokens = tile.rows // group
    # Each sequence can leave one tile partly filled, whatever the lengths are.
    tiles = tokens // tile_tokens + sequences
    scale_log2 = (dim**-0.5 if scale is None else scale) * LOG2_E
    _prefill[(tiles, kv_heads)](
        *(q, k_pool, v_pool, tables, starts, contexts, out, lse, scale_log2, sequences),
        *(*q.stride()[:2], tables.stride(0), *k_pool.stride()[:3]),
        GROUP=group,
        ROWS=tile.rows,
        TOKENS=tile_tokens,
        DIM=dim,
        DIM_PADDED=next_power_of_2(dim),
        BLOCK_TOKENS=block_tokens,
        COLUMNS=tile.columns,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )
    return out, lse
