"""What the wrappers hold before a launch: a kernel reads raw addresses, so a wrong shape must never reach it."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.errors import KernelError, ShapeError

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
BLOCK_TOKENS = (16, 32, 64)
MAX_GROUP = 128  # query heads per KV head: all of them share one tile
MAX_DIM = 128  # wider heads spill registers with the tiles that ship


def describe(**tensors: Tensor) -> str:
    """Names with shape, dtype, strides and device, for the text of an error."""
    return " ".join(f"{name}={list(t.shape)}/{t.dtype}/strides{list(t.stride())}/{t.device}" for name, t in tensors.items())


def require(holds: bool, rule: str, **tensors: Tensor) -> None:
    """Raise ShapeError with the rule and the tensors unless it holds."""
    if not holds:
        raise ShapeError(f"{rule}: {describe(**tensors)}")


def check_place(interpreted: bool, **tensors: Tensor) -> None:
    """All tensors on one device, and one that kernels can run on."""
    first = next(iter(tensors.values()))
    require(all(t.device == first.device for t in tensors.values()), "all tensors must be on one device", **tensors)
    if first.device.type != "cuda" and not interpreted:
        raise KernelError(f"Triton kernels need a CUDA device, got {first.device}: use kernels.reference there")


def check_pools(k_pool: Tensor, v_pool: Tensor) -> None:
    """[blocks, block_tokens, kv_heads, dim], equal strides (one set of offsets serves both), last axis contiguous."""
    pools = {"k_pool": k_pool, "v_pool": v_pool}
    require(k_pool.dim() == 4 and k_pool.shape == v_pool.shape, "pools must be 4-D and of equal shape", **pools)
    require(k_pool.dtype in DTYPES and k_pool.dtype == v_pool.dtype, "pools must both be bf16, fp16 or fp32", **pools)
    require(k_pool.stride() == v_pool.stride() and k_pool.stride(3) == 1, "pools need equal strides, last one 1", **pools)
    require(k_pool.shape[1] in BLOCK_TOKENS, f"block_tokens must be one of {BLOCK_TOKENS}", **pools)


def check_attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, tables: Tensor) -> None:
    """Queries [tokens, q_heads, dim] that fit the pools, and block tables [sequences, blocks] of int32."""
    check_pools(k_pool, v_pool)
    heads, dim = k_pool.shape[2:]
    require(q.dim() == 3 and q.shape[2] == dim and q.dtype == k_pool.dtype, "q must fit the pool", q=q, k_pool=k_pool)
    require(q.stride(2) == 1, "q's last axis must be contiguous", q=q)
    grouped = heads > 0 and q.shape[1] % heads == 0 and q.shape[1] // heads <= MAX_GROUP
    require(grouped, f"q_heads must be a multiple of kv_heads, at most {MAX_GROUP} times", q=q, k_pool=k_pool)
    require(16 <= dim <= MAX_DIM and dim % 8 == 0, f"dim must be 16..{MAX_DIM} in steps of 8", q=q)
    require(tables.dim() == 2 and tables.dtype == torch.int32, "tables must be [sequences, blocks] int32", tables=tables)
    require(tables.stride(1) == 1, "a table's blocks must be contiguous", tables=tables)


def check_vector(name: str, vector: Tensor, size: int, dtype: torch.dtype) -> None:
    """A contiguous 1-D tensor of the given size and dtype."""
    fits = vector.shape == (size,) and vector.dtype == dtype and vector.is_contiguous()
    require(fits, f"{name} must be a contiguous [{size}] {dtype}", **{name: vector})
