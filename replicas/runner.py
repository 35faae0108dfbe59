"""The engine's way to the model: owns the KV pool, turns a step's slices into one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch

from replicas.errors import ReplicaError
from replicas.models.llama import Llama
from replicas.models.load import load_model
from replicas.paged import KvPool, PagedAttention
from replicas.step import Slice


class TorchRunner:
    """Runs a model on the CPU with torch; see `replicas.step.Runner`."""

    def __init__(self, model: Llama) -> None:
        self._model = model
        self._pool: KvPool | None = None
        self.vocab_size = model.config.vocab_size
        self.max_context = model.config.max_context
        self.eos_token_ids = model.config.eos_token_ids

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory of one token's keys and values in all layers, in bytes."""
        config = self._model.config
        return 2 * config.layers * config.kv_heads * config.head_dim * self._model.dtype.itemsize

    def allocate(self, num_blocks: int, block_tokens: int) -> None:
        """Make the KV pool, dropping what an earlier one held; the system gives its memory as blocks are first written."""
        self._pool = KvPool(self._model.config, self._model.dtype, num_blocks, block_tokens)

    def step(self, slices: Sequence[Slice]) -> torch.Tensor:
        """Compute all slices in one forward pass; float32 logits [slices that want them, vocab_size], in order."""
        if self._pool is None:
            raise ReplicaError("step was called before allocate: there is no KV pool")
        for part in slices:
            if part.start + len(part.tokens) > self.max_context:
                raise ReplicaError(
                    f"position {part.start + len(part.tokens) - 1} is beyond the model's {self.max_context} tokens"
                )
        if not slices:
            return torch.empty(0, self.vocab_size)
        with torch.inference_mode():
            logits = self._forward(slices, self._pool)
        return logits.clone()  # a plain tensor: a sampler may work on it in place, which inference tensors forbid

    def _forward(self, slices: Sequence[Slice], pool: KvPool) -> torch.Tensor:
        attention = PagedAttention(pool, slices, self._model.dtype)
        tokens = torch.tensor(list(chain.from_iterable(part.tokens for part in slices)))
        hidden = self._model.hidden(tokens, attention.positions, attention)
        wanted: list[int] = []
        end = 0
        for part in slices:
            end += len(part.tokens)
            if part.wants_logits:
                wanted.append(end - 1)
        # The head is a fifth of a SmolLM2 step's weights: only the rows asked for pass it.
        return self._model.logits(hidden[wanted])


def load_runner(
    model: str, *, threads: int = 1, dtype: str = "float32", progress: Callable[[str], None] | None = None
) -> TorchRunner:
    """A runner for 'smollm2' (fetched on first use, with `progress` told how far), 'tiny', or a Hugging Face Llama folder.

    threads: of torch's operators in this whole process; more than the free cores makes a step slower, not faster.
    """
    if threads < 1:
        raise ReplicaError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)
    return TorchRunner(load_model(model, dtype=dtype, progress=progress))
