"""How far one answer is: tokens into text, and when it ends. No threads, no model."""

from __future__ import annotations

import torch

from replicas.detokenize import Decode, Detokenizer, StopStrings
from replicas.generation import Output, RequestHandle
from replicas.openai_shapes import FinishReason
from replicas.sample import Sampler
from replicas.sequence import Sequence


class Progress:
    """The answer to one prompt of a request."""

    def __init__(self, handle: RequestHandle, index: int, decode: Decode) -> None:
        self.handle = handle
        self.index = index
        self.sequence = Sequence.of_prompt(handle.generation.prompts[index], handle.generation.salt)
        self.sampler = Sampler(handle.generation.sampling)
        self._text = Detokenizer(decode)
        self._stops = StopStrings(handle.generation.stop)

    @property
    def banned(self) -> frozenset[int]:
        """Tokens that must not come next, because the answer is still too short to end."""
        generation = self.handle.generation
        return generation.stop_ids if self.sequence.generated < generation.min_tokens else frozenset()

    def pick(self, logits: torch.Tensor, likeliest: int) -> int:
        """The next token. logits: float32 [vocabulary]; likeliest: the place of their maximum."""
        banned = self.banned
        if self.sampler.plain_greedy and not banned:
            return likeliest
        return self.sampler.pick(logits, self.sequence.tokens, self.sequence.prompt_tokens, banned)

    def advance(self) -> Output | None:
        """Account for the newest token of the sequence; None when it changes nothing that a client can see."""
        generation, sequence = self.handle.generation, self.sequence
        token, generated = sequence.tokens[-1], sequence.generated
        reason: FinishReason | None = None
        text = ""
        if token in generation.stop_ids:
            reason = "stop"
        else:
            text, reached = self._cut(self._text.push(token))
            if reached:
                return self._output(text, "stop")
            if generated >= generation.max_tokens:
                reason = "length"
        if reason is not None:
            rest, reached = self._cut(self._text.flush())
            reason = "stop" if reached else reason
            return self._output(text + rest + self._stops.release(), reason)
        return self._output(text, None) if text or generated == 1 else None

    def _cut(self, piece: str) -> tuple[str, bool]:
        if self.sequence.generated <= self.handle.generation.min_tokens:
            return piece, False
        return self._stops.push(piece)

    def _output(self, text: str, reason: FinishReason | None) -> Output:
        return Output(self.index, text, self.sequence.generated, self.sequence.cached_tokens or 0, reason)
