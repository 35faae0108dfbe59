"""The answers in the shapes of the OpenAI API, encoded to the bytes that leave."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort"]  # abort: somebody asked the engine to stop it

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def fields(self, cached: bool = True) -> dict[str, object]:
        """As the API writes them. cached: not left out."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens} if cached else None,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """One complete answer."""

    text: str
    finish_reason: FinishReason


class ChatShape:
    """Answers of /v1/chat/completions; one object per request, for its id and time.

    tells_cached: the counts say how many tokens were cached.
    """

    def __init__(self, model: str, request_id: str | None = None, *, tells_cached: bool = True) -> None:
        self._head = _head("chatcmpl-", model, request_id)
        self._cached = tells_cached

    def opening(self, index: int) -> bytes | None:
        """The event before the first text of a choice."""
        return self._chunk({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def delta(self, index: int, text: str) -> bytes:
        """The event of one piece of text."""
        return self._chunk({"index": index, "delta": {"content": text}, "finish_reason": None})

    def closing(self, index: int, reason: FinishReason) -> bytes:
        """The event that ends a choice."""
        return self._chunk({"index": index, "delta": {}, "finish_reason": reason})

    def usage(self, usage: Usage) -> bytes:
        """The event of the token counts, without choices."""
        return _event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage.fields(self._cached)})

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The answer in one piece."""
        listed = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text},
                "logprobs": None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return _encode({**self._head, "object": "chat.completion", "choices": listed, "usage": usage.fields(self._cached)})

    def _chunk(self, choice: dict[str, object]) -> bytes:
        return _event({**self._head, "object": "chat.completion.chunk", "choices": [choice]})


class CompletionShape:
    """Answers of /v1/completions; one object per request, for its id and time.

    tells_cached: the counts say how many tokens were cached.
    """

    def __init__(self, model: str, request_id: str | None = None, *, tells_cached: bool = True) -> None:
        self._head = {**_head("cmpl-", model, request_id), "object": "text_completion"}
        self._cached = tells_cached

    def opening(self, index: int) -> bytes | None:
        """Completions have no event before the first text."""
        return None

    def delta(self, index: int, text: str) -> bytes:
        """The event of one piece of text."""
        return self._chunk({"index": index, "text": text, "logprobs": None, "finish_reason": None})

    def closing(self, index: int, reason: FinishReason) -> bytes:
        """The event that ends a choice."""
        return self._chunk({"index": index, "text": "", "logprobs": None, "finish_reason": reason})

    def usage(self, usage: Usage) -> bytes:
        """The event of the token counts, without choices."""
        return _event({**self._head, "choices": [], "usage": usage.fields(self._cached)})

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The answer in one piece."""
        listed = [
            {"index": index, "text": choice.text, "logprobs": None, "finish_reason": choice.finish_reason}
            for index, choice in enumerate(choices)
        ]
        return _encode({**self._head, "choices": listed, "usage": usage.fields(self._cached)})

    def _chunk(self, choice: dict[str, object]) -> bytes:
        return _event({**self._head, "choices": [choice]})


Shape = ChatShape | CompletionShape


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> bytes:
    """An error as the API writes it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return _encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_event(status: int, message: str) -> bytes:
    """An error in the middle of a stream."""
    return b"data: " + error_body(status, message) + b"\n\n"


def _head(prefix: str, model: str, request_id: str | None) -> dict[str, object]:
    return {"id": prefix + (request_id or uuid.uuid4().hex), "created": int(time.time()), "model": model}


def _event(fields: dict[str, object]) -> bytes:
    return b"data: " + _encode(fields) + b"\n\n"
