"""Attention of one new token per sequence over its paged keys and values.

The context of a sequence is cut into splits that run side by side, so that few long sequences still fill the device. Each
split writes a normalised partial result and its log-sum-exp; a second kernel merges them. With one split, the partial result
is the result.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import check_attention, check_place, check_vector, require
from kernels.device import INTERPRETED, LOG2_E, attend_tile, finish, load_rows, row_offsets
from kernels.tiling import Tile, decode_tile, next_power_of_2

MAX_SPLITS = 64
MIN_SPLIT_TOKENS = 256  # below this, starting a program and merging it costs more than the reading it saves
PROGRAMS_WANTED = 4 * 132  # four for each multiprocessor of an H100 or H200


@triton.jit
def _decode(
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lengths_ptr,
    out_ptr,
    lse_ptr,
    scale_log2,
    q_token_stride,
    q_head_stride,
    table_stride,
    block_stride,
    slot_stride,
    head_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    kv_heads = tl.num_programs(1)
    splits = tl.num_programs(2)

    # The rows of the tile are the query heads that share this KV head, so each key is read once for all of them.
    row = tl.arange(0, ROWS)
    real = row < GROUP
    head = kv_head * GROUP + row
    q = load_rows(q_ptr, seq * q_token_stride + head * q_head_stride, real, DIM, DIM_PADDED, True)

    # Lengths are read here and not on the host, so that one recorded launch serves growing sequences.
    length = tl.load(lengths_ptr + seq)
    split_tokens = tl.cdiv(tl.cdiv(length, COLUMNS), splits) * COLUMNS
    first = split * split_tokens
    end = tl.minimum(first + split_tokens, length)
    acc = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    table_ptr = tables_ptr + seq * table_stride
    k_head_ptr = k_ptr + kv_head * head_stride
    v_head_ptr = v_ptr + kv_head * head_stride
    for start in range(first, end, COLUMNS):
        positions = start + tl.arange(0, COLUMNS)
        valid = positions < end
        offsets = row_offsets(table_ptr, positions, valid, block_stride, slot_stride, BLOCK_TOKENS)
        acc, peak, total = attend_tile(
            q, k_head_ptr, v_head_ptr, offsets, valid, valid[None, :], scale_log2, acc, peak, total, DIM, DIM_PADDED, True
        )

    # An empty split comes here too: its zeros and -inf must be written, nobody else does.
    result, lse = finish(acc, peak, total)
    place = (seq * kv_heads * GROUP + head) * splits + split
    dims = tl.arange(0, DIM_PADDED)
    tl.store(lse_ptr + place, lse, mask=real)
    tl.store(
        out_ptr + place[:, None] * DIM + dims[None, :],
        result.to(out_ptr.dtype.element_ty),
        mask=real[:, None] & (dims < DIM)[None, :],
    )


@triton.jit
def _merge(
    partial_ptr,
    partial_lse_ptr,
    out_ptr,
    lse_ptr,
    splits,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS_PADDED)
    dims = tl.arange(0, DIM_PADDED)
    part = row * splits + split
    part_lse = tl.load(partial_lse_ptr + part, mask=split < splits, other=float("-inf"))
    peak = tl.max(part_lse, 0)
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(part_lse - shift)
    total = tl.sum(weights, 0)
    inside = (split < splits)[:, None] & (dims < DIM)[None, :]
    parts = tl.load(partial_ptr + part[:, None] * DIM + dims[None, :], mask=inside, other=0.0)
    seen = total > 0.0
    divisor = tl.where(seen, total, 1.0)
    merged = tl.sum(parts * weights[:, None], 0) / divisor
    tl.store(out_ptr + row * DIM + dims, merged.to(out_ptr.dtype.element_ty), mask=dims < DIM)
    tl.store(lse_ptr + row, tl.where(seen, shift + tl.log2(divisor), float("-inf")))


def choose_splits(sequences: int, kv_heads: int, max_tokens: int) -> int:
    """Enough splits to fill the device, none shorter than is worth a program; from upper bounds the host knows."""
    wanted = triton.cdiv(PROGRAMS_WANTED, max(sequences * kv_heads, 1))
    return int(max(1, min(wanted, max_tokens // MIN_SPLIT_TOKENS, MAX_SPLITS)))


def decode(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    tables: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    splits: int | None = None,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of q: [sequences, q_heads, dim] over the first `lengths` tokens of each sequence's blocks.

    pools: [blocks, block_tokens, kv_heads, dim]; tables: [sequences, max_blocks] int32; lengths: [sequences] int32, in tokens,
    the new one included. Returns the output, like q, and the log-sum-exp in base 2: [sequences, q_heads] float32; a sequence
    of length 0 gives zeros and -inf. `scale` multiplies the scores, 1/sqrt(dim) unless given.
    """
    check_place(bool(INTERPRETED), q=q, k_pool=k_pool, v_pool=v_pool, tables=tables, lengths=lengths)
    check_attention(q, k_pool, v_pool, tables)
    sequences, q_heads, dim = q.shape
    block_tokens, kv_heads = k_pool.shape[1:3]
    require(tables.shape[0] == sequences, "tables need one row per sequence", q=q, tables=tables)
    check_vector("lengths", lengths, sequences, torch.int32)
    out = torch.empty((sequences, q_heads, dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((sequences, q_heads), dtype=torch.float32, device=q.device)
    if sequences == 0 or q_heads == 0:
        return out, lse

    if splits is None:
        splits = choose_splits(sequences, kv_heads, tables.shape[1] * block_tokens)
    require(1 <= splits <= MAX_SPLITS, f"splits must be 1..{MAX_SPLITS}, got {splits}", q=q)
    group = q_heads // kv_heads
    tile = tile or decode_tile(group, q.element_size())
    partial, partial_lse = out, lse
    if splits > 1:
        partial = torch.empty((sequences, q_heads, splits, dim), dtype=torch.float32, device=q.device)
        partial_lse = torch.empty((sequences, q_heads, splits), dtype=torch.float32, device=q.device)
    scale_log2 = (dim**-0.5 if scale is None else scale) * LOG2_E
    _decode[(sequences, kv_heads, splits)](
        *(q, k_pool, v_pool, tables, lengths, partial, partial_lse, scale_log2),
        *(*q.stride()[:2], tables.stride(0), *k_pool.stride()[:3]),
        GROUP=group,
        ROWS=tile.rows,
        DIM=dim,
        DIM_PADDED=next_power_of_2(dim),
        BLOCK_TOKENS=block_tokens,
        COLUMNS=tile.columns,
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )
    if splits > 1:
        _merge[(sequences * q_heads,)](
            *(partial, partial_lse, out, lse, splits),
            DIM=dim,
            DIM_PADDED=next_power_of_2(dim),
            SPLITS_PADDED=next_power_of_2(splits),
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out, lse
