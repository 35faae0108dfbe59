"""What the kernels share on the device: the dot, the softmax step, and reading rows of a paged pool.

Attention scores are kept in base 2 (`log2(e)` is folded into the scale), because the hardware's exponential is `exp2`.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# (device code is Triton's own language: its values have no Python types)

from __future__ import annotations

import triton
import triton.language as tl

# Triton chooses between compiler and interpreter when a function is decorated, so the flag is read once, here, beside them.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
LOG2_E = 1.4426950408889634


@triton.jit
def dot(a, b, acc):
    """acc + a @ b with a float32 accumulator; a: [m, k], b: [k, n]."""
    if INTERPRETED:
        # The interpreter holds bfloat16 as uint16 and would multiply the bit patterns, without any error.
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    # float32 operands must not be rounded to TF32; the word changes nothing for the half precisions.
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def row_offsets(table_ptr, positions, valid, block_stride, slot_stride, BLOCK_TOKENS: tl.constexpr):
    """Where the rows of `positions` lie in the pool, in elements; int64 from the first multiply (FC-64)."""
    blocks = tl.load(table_ptr + positions // BLOCK_TOKENS, mask=valid, other=0).to(tl.int64)
    slots = (positions % BLOCK_TOKENS).to(tl.int64)
    return blocks * block_stride + slots * slot_stride


@triton.jit
def load_rows(base_ptr, offsets, valid, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, MASKED: tl.constexpr):
    """A [rows, DIM_PADDED] tile; zero where `valid` is false (if MASKED) and beyond DIM."""
    dims = tl.arange(0, DIM_PADDED)
    pointers = base_ptr + offsets[:, None] + dims[None, :]
    # Four forms, so that the common one (full tile, power of two) carries no predicate at all.
    if MASKED and DIM == DIM_PADDED:
        rows = tl.load(pointers, mask=valid[:, None], other=0.0)
    elif MASKED:
        rows = tl.load(pointers, mask=valid[:, None] & (dims < DIM)[None, :], other=0.0)
    elif DIM == DIM_PADDED:
        rows = tl.load(pointers)
    else:
        rows = tl.load(pointers, mask=(dims < DIM)[None, :], other=0.0)
    return rows


@triton.jit
def softmax_step(scores, peak, total):
    """Fold a tile of base-2 scores into each row's running peak and total: weights, decay of the past, peak, total."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # A row that has met only masked columns: -inf minus -inf would be NaN.
    shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(peak - shift)
    return weights, decay, new_peak, total * decay + tl.sum(weights, 1)


@triton.jit
def attend_tile(
    q,
    k_ptr,
    v_ptr,
    offsets,
    valid,
    visible,
    scale_log2,
    acc,
    peak,
    total,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One tile of keys and values: new acc, peak, total.

    q: [rows, DIM_PADDED]; offsets, valid: [columns]; visible: broadcasts to [rows, columns], read only if MASKED.
    """
    k = load_rows(k_ptr, offsets, valid, DIM, DIM_PADDED, MASKED)
    scores = dot(q, tl.trans(k), tl.zeros([q.shape[0], k.shape[0]], tl.float32)) * scale_log2
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    weights, decay, peak, total = softmax_step(scores, peak, total)
    v = load_rows(v_ptr, offsets, valid, DIM, DIM_PADDED, MASKED)
    acc = dot(weights.to(v.dtype), v, acc * decay[:, None])
    return acc, peak, total


@triton.jit
def finish(acc, peak, total):
    """Normalised rows and their log-sum-exp in base 2; a row that saw nothing gives zeros and -inf."""
    seen = total > 0.0
    divisor = tl.where(seen, total, 1.0)
    lse = tl.where(seen, peak + tl.log2(divisor), float("-inf"))
    return acc / divisor[:, None], lse
