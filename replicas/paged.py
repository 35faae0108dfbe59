"""Paged KV on torch: the pool, and attention of one step's slices over it.

`PagedAttention` is the one class that knows how pages become keys and values; a kernel for another device takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from replicas.errors import ReplicaError
from replicas.models.config import LlamaConfig
from replicas.step import Slice

# Decoding sequences share one padded attention call as long as its keys stay this small. Attention with a call per sequence
# takes 1.9x the time at 8 x 64 tokens of SmolLM2; above a few MB the gathered pages leave the cache and a call takes up to 2.8x.
_GATHERED_KEY_BYTES = 1 << 20


class KvPool:
    """The keys and values of all layers: for each layer two tensors [num_blocks, block_tokens, kv_heads, head_dim]."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype, num_blocks: int, block_tokens: int) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ReplicaError(f"num_blocks and block_tokens must be at least 1, got {num_blocks} and {block_tokens}")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.key_bytes = config.kv_heads * config.head_dim * dtype.itemsize  # of one token in one layer
        # Zeros, not empty: a masked position still enters the sum with weight 0, and 0 times a stray NaN is NaN.
        shape = (2, config.layers, num_blocks, block_tokens, config.kv_heads, config.head_dim)
        # From numpy, because it asks the system for zeroed pages and so touches none of them now.
        memory = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
        self.keys, self.values = torch.from_numpy(memory).view(dtype).view(shape).unbind(0)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put k and v [tokens, kv_heads, head_dim] at `slots` [tokens]: block number * block_tokens + place in the block."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, k)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, v)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `blocks` [sequences, n], both [sequences, kv_heads, n * block_tokens, head_dim]."""
        return _pages(self.keys[layer], blocks), _pages(self.values[layer], blocks)


def _pages(pool: Tensor, blocks: Tensor) -> Tensor:
    sequences, count = blocks.shape
    _, block_tokens, heads, dim = pool.shape
    return pool.index_select(0, blocks.flatten()).view(sequences, count * block_tokens, heads, dim).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Several tokens of one sequence: rows first..end of the step, on the pages of everything up to the last of them."""

    first: int
    end: int
    blocks: Tensor | None  # [1, n]; None where nothing is cached and the step's own keys are all there is
    mask: Tensor | None  # [tokens, n * block_tokens]: 0, or -inf for what comes later


@dataclass(frozen=True, slots=True)
class Decodes:
    """One token each of several sequences of like length, padded to the longest."""

    rows: Tensor  # [sequences]
    blocks: Tensor  # [sequences, n]; padding names block 0, which the mask hides
    mask: Tensor  # [sequences, 1, 1, n * block_tokens]: 0, or -inf beyond the sequence


class PagedAttention:
    """Attention of one step: built once from its slices, then called by every layer in turn."""

    def __init__(self, pool: KvPool, slices: Sequence[Slice], dtype: torch.dtype) -> None:
        self._pool = pool
        self._dtype = dtype
        self.positions, self._slots, rows = _layout(slices, pool)
        placed = list(zip(rows, slices, strict=True))
        self._prefills = [self._prefill(row, part) for row, part in placed if len(part.tokens) > 1]
        single = [(row, part) for row, part in placed if len(part.tokens) == 1]
        self._decodes = [self._decode(members) for members in _alike(single, most_tokens=_GATHERED_KEY_BYTES // pool.key_bytes)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v to the pool and attend; q: [tokens, heads, dim] of all slices, one after another."""
        self._pool.write(layer, self._slots, k, v)
        out = torch.empty_like(q)
        for part in self._prefills:
            rows = slice(part.first, part.end)
            out[rows] = self._attend_prefill(layer, part, q[rows], k[rows], v[rows])
        for group in self._decodes:
            out.index_copy_(0, group.rows, self._attend_decodes(layer, group, q.index_select(0, group.rows)))
        return out

    def _attend_prefill(self, layer: int, part: Prefill, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries = q.transpose(0, 1).unsqueeze(0)
        if part.blocks is None:
            keys, values = k.transpose(0, 1).unsqueeze(0), v.transpose(0, 1).unsqueeze(0)
            attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        else:
            keys, values = self._pool.gather(layer, part.blocks)
            attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=part.mask, enable_gqa=True)
        return attended[0].transpose(0, 1)

    def _attend_decodes(self, layer: int, group: Decodes, q: Tensor) -> Tensor:
        keys, values = self._pool.gather(layer, group.blocks)
        # The heads that share a kv head stand as rows of one query: no copy of the keys per head.
        queries = q.view(q.shape[0], keys.shape[1], -1, q.shape[2])
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=group.mask).reshape(q.shape)

    def _prefill(self, row: int, part: Slice) -> Prefill:
        count = len(part.tokens)
        if part.start == 0:
            return Prefill(row, row + count, None, None)
        blocks = torch.tensor([_used(part, self._pool.block_tokens)])
        mask = torch.full((count, blocks.shape[1] * self._pool.block_tokens), -torch.inf, dtype=self._dtype)
        return Prefill(row, row + count, blocks, mask.triu(part.start + 1))

    def _decode(self, members: Sequence[tuple[int, Slice]]) -> Decodes:
        used = [_used(part, self._pool.block_tokens) for _, part in members]
        longest = max(map(len, used))
        places = torch.arange(longest * self._pool.block_tokens)
        starts = torch.tensor([part.start for _, part in members])
        hidden = places > starts.unsqueeze(1)
        return Decodes(
            rows=torch.tensor([row for row, _ in members]),
            blocks=torch.tensor([[*blocks, *[0] * (longest - len(blocks))] for blocks in used]),
            mask=torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)[:, None, None],
        )


def _used(part: Slice, block_tokens: int) -> list[int]:
    """The blocks that hold positions up to the slice's last; a sequence may already own more."""
    return list(part.blocks[: -(-(part.start + len(part.tokens)) // block_tokens)])


def _alike(placed: Sequence[tuple[int, Slice]], most_tokens: int) -> list[list[tuple[int, Slice]]]:
    """Group one-token slices by length, so that a group padded to its longest holds at most `most_tokens`, or is one slice."""
    groups: list[list[tuple[int, Slice]]] = []
    for row, part in sorted(placed, key=lambda item: item[1].start):
        if groups and (len(groups[-1]) + 1) * (part.start + 1) <= most_tokens:
            groups[-1].append((row, part))
        else:
            groups.append([(row, part)])
    return groups


def _layout(slices: Sequence[Slice], pool: KvPool) -> tuple[Tensor, Tensor, list[int]]:
    """Position and slot of every token of the step, both int64 [tokens], and each slice's first row."""
    positions: list[npt.NDArray[np.int64]] = []
    slots: list[npt.NDArray[np.int64]] = []
    rows: list[int] = []
    total = 0
    for part in slices:
        end = part.start + len(part.tokens)
        blocks = np.asarray(part.blocks, dtype=np.int64)
        if part.start < 0 or len(part.tokens) == 0 or len(blocks) * pool.block_tokens < end:
            raise ReplicaError(
                f"a slice of {len(part.tokens)} tokens from position {part.start} has {len(blocks)} blocks of {pool.block_tokens}"
            )
        if blocks.min() < 0 or blocks.max() >= pool.num_blocks:
            raise ReplicaError(f"a slice names block {blocks.min()} or {blocks.max()}; the pool has 0 to {pool.num_blocks - 1}")
        place = np.arange(part.start, end)
        positions.append(place)
        slots.append(blocks[place // pool.block_tokens] * pool.block_tokens + place % pool.block_tokens)
        rows.append(total)
        total += len(part.tokens)
    return torch.from_numpy(np.concatenate(positions)), torch.from_numpy(np.concatenate(slots)), rows
