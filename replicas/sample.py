"""Choose the next token of a sequence from its logits.

Each request owns its random generator and draws exactly one number per token, so that what it gets does not depend on who else is
in the batch, nor on preemption.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import torch

from replicas.sampling import Sampling

_LIKELY = 512  # tokens that nearly always hold what top_p asks for


def finite_rows(logits: torch.Tensor) -> list[bool]:
    """For each row of logits [rows, vocabulary]: does it hold numbers only."""
    finite: list[bool] = torch.isfinite(logits.sum(dim=-1)).tolist()  # one bad number spoils it; asking each takes far longer
    return finite


class Sampler:
    """One sequence's way of choosing."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.plain_greedy = sampling.greedy and not sampling.penalized
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._generator = torch.Generator().manual_seed(seed % 2**63)

    def pick(self, logits: torch.Tensor, tokens: Sequence[int], prompt_tokens: int, banned: frozenset[int] = frozenset()) -> int:
        """The next token after `tokens`, of which the first `prompt_tokens` are the prompt. logits: float32 [vocabulary]."""
        row = logits.double()
        if self.sampling.penalized:
            row = self._penalize(row, tokens, prompt_tokens)
        if banned:
            row[list(banned)] = -math.inf
        if self.sampling.greedy:
            return int(row.argmax())
        return self._draw(row / self.sampling.temperature)

    def _penalize(self, row: torch.Tensor, tokens: Sequence[int], prompt_tokens: int) -> torch.Tensor:
        sampling = self.sampling
        if sampling.repetition_penalty != 1.0:
            seen = torch.tensor(sorted(set(tokens)), dtype=torch.int64)
            values = row[seen]
            row[seen] = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
        generated = torch.tensor(list(tokens[prompt_tokens:]), dtype=torch.int64)
        counts = torch.bincount(generated, minlength=len(row)).double()
        return row - counts * sampling.frequency_penalty - (counts > 0) * sampling.presence_penalty

    def _draw(self, row: torch.Tensor) -> int:
        """One token by the inverse of the cumulative probability, after min_p, top_k and top_p. row: float64 [vocabulary]."""
        sampling = self.sampling
        if sampling.min_p > 0:
            row = row.masked_fill(row < row.max() + math.log(sampling.min_p), -math.inf)
        shares = torch.softmax(row, dim=0)
        ids = None
        if 0 < sampling.top_k < len(row):
            shares, ids = shares.topk(sampling.top_k)
            shares /= shares.sum()
        elif sampling.top_p < 1:
            shares, ids = _most_likely(shares, sampling.top_p)
        cumulative = shares.cumsum(0)
        kept = len(cumulative)
        if sampling.top_p < 1:  # the smallest set that reaches top_p; shares are sorted here
            kept = min(int(torch.searchsorted(cumulative, sampling.top_p)) + 1, kept)
        at = torch.rand(1, generator=self._generator, dtype=torch.float64) * cumulative[kept - 1]
        index = min(int(torch.searchsorted(cumulative, at, right=True)), kept - 1)
        return index if ids is None else int(ids[index])


def _most_likely(shares: torch.Tensor, reach: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest shares, falling, at least until they add up to `reach`, and their ids; sorting all takes ten times as long."""
    largest, ids = shares.topk(min(_LIKELY, len(shares)))
    if float(largest.sum()) > reach:
        return largest, ids
    return shares.sort(descending=True, stable=True)
