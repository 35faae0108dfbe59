"""Prompts that share starts, as chats do."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_FAMILIES = 40
_TOKENS = range(7, 270)  # of the test tokenizer, without its special ones


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """One prompt. salt: its cache salt, None for most."""

    tokens: list[int]
    salt: str | None


class Prompts:
    """Draws prompts: a family's start, cut somewhere, and a tail of its own."""

    def __init__(self, seed: int) -> None:
        shared = Random(99)  # the same families in every process
        self._families = [shared.choices(_TOKENS, k=shared.randint(100, 600)) for _ in range(_FAMILIES)]
        self._random = Random(seed)

    def draw(self) -> PromptTokens:
        """One more."""
        chance = self._random
        family = chance.choice(self._families)
        start = family[: chance.randint(0, len(family))] if chance.random() < 0.3 else family
        tail = chance.choices(_TOKENS, k=chance.randint(1, 120))
        return PromptTokens(start + tail, f"tenant{chance.randrange(3)}" if chance.random() < 0.1 else None)
