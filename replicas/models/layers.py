"""The parts of a decoder layer as plain functions on torch tensors; every model family is put together from these."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from replicas.models.config import Llama3Scaling


class Attention(Protocol):
    """Writes a layer's new keys and values to the cache, then attends: the one place a step touches cached KV."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [tokens, heads, dim], k and v: [tokens, kv_heads, dim], rotated; the result has the shape of q."""
        ...


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row of x [tokens, size] to a mean square of 1, in float32, then by `weight` [size]."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotary_frequencies(head_dim: int, theta: float, scaling: Llama3Scaling | None) -> Tensor:
    """Radians per position of each pair of dimensions, float32 [head_dim / 2]."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    return frequencies if scaling is None else _stretch(frequencies, scaling)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1's rule: long waves turn `factor` times slower, short ones stay, those between are blended."""
    wavelength = 2 * math.pi / frequencies
    longest_kept = scaling.original_context / scaling.high_freq_factor
    shortest_slowed = scaling.original_context / scaling.low_freq_factor
    blend = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    slowed = torch.where(wavelength > shortest_slowed, frequencies / scaling.factor, between)
    return torch.where(wavelength < longest_kept, frequencies, slowed)


def rotary_tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, both [tokens, 1, head_dim / 2]; made once per step, used by all layers."""
    angles = torch.outer(positions.float(), frequencies).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn dimension i of x [tokens, heads, dim] together with dimension i + dim / 2, by its position's angle."""
    cosine, sine = tables
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
