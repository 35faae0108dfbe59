"""FC-64: pools of more than 2^31 elements, with block ids at their far end.

The pool is a reserved mapping that takes memory only where it is touched. It starts in the middle of the mapping, so an offset
that wraps at 32 bits reads zeros or writes in front of the pool, and does not crash the test process.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.decode import decode
from kernels.prefill import prefill
from kernels.store_kv import store_kv
from kernels.tiling import Tile
from tests.kernels.cases import check_close

BLOCK_TOKENS, HEADS, DIM, GROUP = 16, 2, 64, 3
BLOCK_ELEMENTS = BLOCK_TOKENS * HEADS * DIM
FIRST_FAR_BLOCK = 2**31 // BLOCK_ELEMENTS
BLOCKS = FIRST_FAR_BLOCK + 12
TILE = Tile(16, 32, 4, 2)

Store = Callable[..., None]
Attention = Callable[..., tuple[Tensor, Tensor]]


def reserve(elements: int) -> Tensor:
    """A float16 tensor over memory that is promised by nobody and zero where not written."""
    no_reserve = 0x4000  # MAP_NORESERVE of Linux; not every Python we support names it
    mapping = mmap.mmap(-1, elements * 2, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
    return torch.frombuffer(mapping, dtype=torch.float16)


@pytest.fixture
def pools() -> tuple[Tensor, Tensor]:
    """Keys and values, each behind 2^31 elements that a wrapped offset would hit."""
    shape = (BLOCKS, BLOCK_TOKENS, HEADS, DIM)
    k_pool, v_pool = (reserve(2**31 + BLOCKS * BLOCK_ELEMENTS)[2**31 :].view(shape) for _ in range(2))
    return k_pool, v_pool


def filled(store: Store, pools: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Write 70 and 33 tokens into far blocks with `store`; block tables and lengths."""
    torch.manual_seed(0)
    tables = (FIRST_FAR_BLOCK + torch.randperm(12)[:10].view(2, 5)).to(torch.int32)
    lengths = torch.tensor([70, 33], dtype=torch.int32)
    for table, length in zip(tables, lengths.tolist(), strict=True):
        position = torch.arange(length)
        slots = table[position // BLOCK_TOKENS].long() * BLOCK_TOKENS + position % BLOCK_TOKENS
        k, v = torch.randn(2, length, HEADS, DIM).to(torch.float16)
        store(k, v, *pools, slots)
        assert torch.equal(pools[0].flatten(0, 1)[slots], k)
        assert torch.equal(pools[1].flatten(0, 1)[slots], v)
    return tables, lengths


def check_far(store: Store, decode: Attention, prefill: Attention, pools: tuple[Tensor, Tensor]) -> None:
    """All three kernels on far blocks; shared with the mutants."""
    tables, lengths = filled(store, pools)
    q = torch.randn(2, HEADS * GROUP, DIM).to(torch.float16)
    got = decode(q, *pools, tables, lengths, splits=2, tile=TILE)
    check_close(got, reference.decode(q, *pools, tables, lengths), torch.float16)
    q = torch.randn(25, HEADS * GROUP, DIM).to(torch.float16)
    starts = torch.tensor([0, 20, 25], dtype=torch.int32)
    contexts = lengths - starts.diff()
    got = prefill(q, *pools, tables, starts, contexts, tile=TILE)
    check_close(got, reference.prefill(q, *pools, tables, starts, contexts), torch.float16)


def test_far_blocks_are_written_and_read(pools: tuple[Tensor, Tensor]) -> None:
    """FC-64: cache write, decode and prefill with block ids beyond 2^31 elements."""
    assert pools[0].numel() > 2**31
    check_far(store_kv, decode, prefill, pools)
