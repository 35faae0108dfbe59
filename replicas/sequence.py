"""One prompt on its way through the engine: its tokens, its blocks, and how far its KV is written."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    """Where a sequence is; `ENDED` covers finished, cancelled and failed."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and what was generated after it.

    tokens: 32-bit ids, the prompt first. blocks: its block numbers, in order. written: leading tokens whose KV lies in `blocks`.
    committed: leading blocks the pool knows as hits. cached_tokens: prompt tokens found in the cache when it was first
    admitted, None before.
    """

    tokens: array[int]
    prompt_tokens: int
    salt: str | None = None
    blocks: list[int] = field(default_factory=list)
    written: int = 0
    committed: int = 0
    cached_tokens: int | None = None
    state: State = State.WAITING

    @classmethod
    def of_prompt(cls, prompt: array[int], salt: str | None = None) -> Sequence:
        """A sequence at its start; the prompt is copied."""
        return cls(array("i", prompt), len(prompt), salt)

    @property
    def pending(self) -> int:
        """Tokens whose KV is still to be computed; 1 while decoding, more during prefill."""
        return len(self.tokens) - self.written

    @property
    def generated(self) -> int:
        """Tokens after the prompt."""
        return len(self.tokens) - self.prompt_tokens
