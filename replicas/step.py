"""The seam between the engine's bookkeeping and the model: one step's work, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Slice:
    """One sequence's part of one step.

    tokens: ids to compute now, at positions start .. start+len-1; the KV of positions below `start` already lies in `blocks`.
    blocks: block numbers covering at least start+len(tokens) positions. wants_logits: the last token's logits are needed.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    wants_logits: bool


class Runner(Protocol):
    """Runs the model on paged KV. When `step` returns, the KV of all its tokens is written."""

    vocab_size: int
    max_context: int  # tokens
    eos_token_ids: frozenset[int]

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory of one token's keys and values in all layers, in bytes."""
        ...

    def allocate(self, num_blocks: int, block_tokens: int) -> None:
        """Make the KV pool; block numbers 0..num_blocks-1 are valid in `step`."""
        ...

    def step(self, slices: Sequence[Slice]) -> torch.Tensor:
        """Compute all slices in one forward pass; float32 logits [slices that want them, vocab_size], in order."""
        ...
