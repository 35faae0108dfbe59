"""What a request says about how its tokens are chosen. No torch: requests are read without it."""

from __future__ import annotations

from dataclasses import dataclass

_GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen. temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and neutral penalties switch each of them off.

    seed: None draws a fresh one. Penalties as in the OpenAI API; repetition counts the prompt too.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def greedy(self) -> bool:
        """Takes the most likely token."""
        return self.temperature < _GREEDY_BELOW

    @property
    def penalized(self) -> bool:
        """Looks at what was generated before."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1.0
