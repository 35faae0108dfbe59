"""A runner without a model: the next token is a hash of the token history as it reads it back from its KV pool.

A wrong block table, a hit on something never written or a block overwritten by somebody else therefore gives wrong tokens or an
error, exactly where a real model would give wrong text.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from replicas.step import Slice

_UNWRITTEN = -1


def next_token(history: Sequence[int] | np.ndarray, vocab_size: int) -> int:
    """What the fake model says after `history`; never one of the first two ids, which are its end-of-sequence tokens."""
    digest = hashlib.blake2b(np.asarray(history, dtype=np.int32).tobytes(), digest_size=8).digest()
    return 2 + int.from_bytes(digest, "big") % (vocab_size - 2)


def generate(prompt: Sequence[int], count: int, vocab_size: int = 256) -> list[int]:
    """The greedy answer to a prompt, without any engine."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history, vocab_size))
    return history[len(prompt) :]


class FakeRunner:
    """Scripted logits over a KV pool of token ids.

    before_step: called with the slices ahead of each step; it may block, raise, or note what came. eos_after: history length at
    which the model ends the text. tamper: may change the logits [rows, vocabulary] of a step.
    """

    def __init__(self, vocab_size: int = 256, max_context: int = 4096) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.eos_token_ids = frozenset({0})
        self.kv_bytes_per_token = 4
        self.before_step: Callable[[Sequence[Slice]], None] = lambda slices: None
        self.tamper: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits
        self.eos_after: int | None = None
        self.steps: list[list[Slice]] = []
        self.threads: set[str] = set()

    def allocate(self, num_blocks: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._pool = np.full(num_blocks * block_tokens, _UNWRITTEN, dtype=np.int32)

    def step(self, slices: Sequence[Slice]) -> torch.Tensor:
        self.steps.append(list(slices))
        self.threads.add(threading.current_thread().name)
        self.before_step(slices)
        tables = [self._slots(one) for one in slices]
        for one, slots in zip(slices, tables, strict=True):
            self._pool[slots[one.start :]] = one.tokens
        wanted = [slots for one, slots in zip(slices, tables, strict=True) if one.wants_logits]
        logits = torch.zeros(len(wanted), self.vocab_size)
        for row, slots in enumerate(wanted):
            logits[row, self._answer(self._pool[slots])] = 10.0
        return self.tamper(logits)

    def _slots(self, one: Slice) -> np.ndarray:
        positions = np.arange(one.start + len(one.tokens))
        blocks = np.asarray(one.blocks)
        return blocks[positions // self._block_tokens] * self._block_tokens + positions % self._block_tokens

    def _answer(self, history: np.ndarray) -> int:
        assert (history != _UNWRITTEN).all(), "a hit on KV that was never written"
        if self.eos_after is not None and len(history) >= self.eos_after:
            return 0
        return next_token(history, self.vocab_size)
