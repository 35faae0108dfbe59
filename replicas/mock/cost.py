"""How long a step takes: prompts at so many tokens per second, at least one pass over the weights, a little for each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from replicas.errors import ReplicaError

_CATCH_UP_S = 0.05  # how far steps may lag behind their times and still be made up for


def due_at(last_due: float, now: float, step_s: float) -> float:
    """When a step ends that follows one that was due at `last_due`: a loop that was held up makes up for a little of it.

    So rates stay as they are told on a busy machine, and no burst follows a long pause. All on one clock, in seconds.
    """
    return max(last_due, now - _CATCH_UP_S) + step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one engine step; a figure of speech for a GPU, not a measurement of one.

    prefill_tokens_per_s: prompt tokens. decode_s: the floor of every step, one pass over the weights, hidden behind a longer
    prefill. sequence_s: for each sequence in the step. scale: stretches all of it; 0 means no waiting at all.
    """

    prefill_tokens_per_s: float = 20_000.0
    decode_s: float = 0.01
    sequence_s: float = 0.0002
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.prefill_tokens_per_s <= 0:
            raise ReplicaError(f"prefill_tokens_per_s must be positive, got {self.prefill_tokens_per_s}")
        if min(self.decode_s, self.sequence_s, self.scale) < 0:
            raise ReplicaError(f"times must not be negative: {self.decode_s=} {self.sequence_s=} {self.scale=}")

    def step_s(self, *, prefill_tokens: int, sequences: int) -> float:
        """Seconds of a step that computes so many prompt tokens and has so many sequences in it, decoding ones included."""
        return self.scale * (max(prefill_tokens / self.prefill_tokens_per_s, self.decode_s) + self.sequence_s * sequences)
