"""One request between the server's loop and the engine's thread: what it asks, what comes back, and how to leave."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from replicas.errors import ReplicaError
from replicas.openai_shapes import FinishReason
from replicas.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What to generate: one answer per prompt (32-bit token ids), each of at most `max_tokens`.

    min_tokens: none of the ends below may come before. stop: strings that end the text and are not part of it. stop_ids: tokens
    that end it and give no text; the end-of-sequence ids are among them unless the client wants to go on after them.
    salt: prompts share cached KV only under the same salt.
    """

    prompts: tuple[array[int], ...]
    sampling: Sampling
    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """New text of the answer to prompt `index`; the first one of each prompt comes with its first token, even without text.

    generated: tokens so far. cached_tokens: prompt tokens whose KV was found. finish_reason: set on the last output.
    """

    index: int
    text: str
    generated: int
    cached_tokens: int
    finish_reason: FinishReason | None = None


class RequestHandle:
    """The loop's end of a request: iterate over its outputs; call `cancel` when nobody listens any more.

    All methods belong to the loop's thread.
    """

    def __init__(self, generation: Generation, cancel: Callable[[RequestHandle], None]) -> None:
        self.generation = generation
        self.prompt_tokens = sum(len(prompt) for prompt in generation.prompts)
        self._cached = [0] * len(generation.prompts)
        self._generated = [0] * len(generation.prompts)
        self._open = len(generation.prompts)
        self._cancel = cancel
        self._arrived: asyncio.Queue[Output | ReplicaError] = asyncio.Queue()

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the cache, of the prompts whose first output came out of the iterator."""
        return sum(self._cached)

    @property
    def completion_tokens(self) -> int:
        """Generated tokens of the outputs that came out of the iterator."""
        return sum(self._generated)

    @property
    def finished(self) -> bool:
        """Every prompt has its whole answer, or the request failed."""
        return self._open == 0

    def deliver(self, item: Output | ReplicaError) -> None:
        """Called for each output in order, or once with the error that ended the request."""
        self._arrived.put_nowait(item)

    def __aiter__(self) -> RequestHandle:
        return self

    async def __anext__(self) -> Output:
        """The next output of any prompt; raises the engine's error when the request failed."""
        if self.finished:
            raise StopAsyncIteration
        item = await self._arrived.get()
        if isinstance(item, ReplicaError):
            raise item
        self._cached[item.index] = item.cached_tokens
        self._generated[item.index] = item.generated
        if item.finish_reason is not None:
            self._open -= 1
        return item

    def cancel(self) -> None:
        """Stop generating at the next step's border; does nothing after the end."""
        if not self.finished:
            self._open = 0
            self._cancel(self)
