"""What one fake engine is: sizes, times, dialect, and what it calls itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from replicas.errors import ReplicaError
from replicas.mock.cost import StepTimes
from replicas.mock.rank import Sizes
from replicas.mock.wire import FORMS

Dialect = Literal["vllm", "sglang", "trunkline"]
DIALECTS: tuple[Dialect, ...] = ("vllm", "sglang", "trunkline")


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    """One engine; those of a fleet are all alike.

    adapters: names of LoRA adapters there from the start. event_form: 'map' or 'array', as newer and older engines write.
    answer_tokens: how long an answer gets when the client does not say. tells_cached: usage has `cached_tokens`.

    Ways to be set up wrongly: tells_block_tokens, a block size its pages name in place of the real one; clock_skew_s, by which
    its clock is ahead.
    """

    model: str = "mock"
    dialect: Dialect = "vllm"
    adapters: tuple[str, ...] = ()
    ranks: int = 1
    sizes: Sizes = field(default_factory=Sizes)
    times: StepTimes = field(default_factory=StepTimes)
    max_model_tokens: int | None = None  # None: as many as the blocks of one rank hold
    answer_tokens: int = 16
    event_form: str = "map"
    topic: str = ""
    buffer_steps: int = 10_000
    tells_cached: bool = True
    tells_block_tokens: int | None = None
    clock_skew_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.event_form not in FORMS:
            raise ReplicaError(f"event_form must be one of {', '.join(FORMS)}, got {self.event_form!r}")
        if self.sizes.groups and self.dialect == "sglang":
            raise ReplicaError("events of the sglang dialect have no cache groups")
        if len(set(self.adapters) | {self.model}) != len(self.adapters) + 1 or not all(self.adapters):
            raise ReplicaError(f"model and adapters need different names, got {self.model!r} and {self.adapters}")

    @property
    def told_block_tokens(self) -> int:
        """The block size its pages name."""
        return self.tells_block_tokens or self.sizes.block_tokens

    @property
    def context_tokens(self) -> int:
        """The longest prompt with its answer."""
        held = self.sizes.num_blocks * self.sizes.block_tokens
        return held if self.max_model_tokens is None else min(held, self.max_model_tokens)
