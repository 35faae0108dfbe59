"""The torch twin of each kernel: the same arguments and results, written to be obviously right rather than fast.

Twins run on any device. `compute` is the type the arithmetic is done in: float64 makes a twin the judge of the kernels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def store_kv(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """Twin of `kernels.store_kv.store_kv`."""
    written = slots >= 0
    block_tokens = k_pool.shape[1]
    block, place = slots[written] // block_tokens, slots[written] % block_tokens
    k_pool[block, place] = k[written]
    v_pool[block, place] = v[written]


def gather(pool: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` tokens of one sequence as [length, kv_heads, dim]; table: [max_blocks]."""
    blocks = -(-length // pool.shape[1])
    return pool[table[:blocks].long()].flatten(0, 1)[:length]


def attend(
    q: Tensor, k: Tensor, v: Tensor, context: int, scale: float | None = None, compute: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Causal attention of one sequence's new tokens, in `compute`: output [new, q_heads, dim] and base-2 lse [new, q_heads].

    q: [new, q_heads, dim]; k, v: [context + new, kv_heads, dim]. Query i stands at position context + i.
    """
    new, q_heads, dim = q.shape
    group = q_heads // k.shape[1]
    keys = k.to(compute).repeat_interleave(group, dim=1)
    values = v.to(compute).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.to(compute), keys) * (dim**-0.5 if scale is None else scale)
    position = context + torch.arange(new, device=q.device)
    later = torch.arange(k.shape[0], device=q.device)[None, :] > position[:, None]
    scores = scores.masked_fill(later, -math.inf)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), values)
    return out, (scores.logsumexp(dim=-1) / math.log(2)).T


def decode(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    tables: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    compute: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Twin of `kernels.decode.decode`; reads the lengths on the host."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
    for row, length in enumerate(lengths.tolist()):
        if length:
            k, v = gather(k_pool, tables[row], length), gather(v_pool, tables[row], length)
            part, part_lse = attend(q[row : row + 1], k, v, length - 1, scale, compute)
            out[row], lse[row] = part[0].to(q.dtype), part_lse[0].float()
    return out, lse


def prefill(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    tables: Tensor,
    starts: Tensor,
    contexts: Tensor,
    *,
    scale: float | None = None,
    compute: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Twin of `kernels.prefill.prefill`; reads starts and contexts on the host."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    bounds = starts.tolist()
    for row, (first, end, context) in enumerate(zip(bounds, bounds[1:], contexts.tolist(), strict=False)):
        if end > first:
            length = context + end - first
            k, v = gather(k_pool, tables[row], length), gather(v_pool, tables[row], length)
            part, part_lse = attend(q[first:end], k, v, context, scale, compute)
            out[first:end], lse[first:end] = part.to(q.dtype), part_lse.float()
    return out, lse
