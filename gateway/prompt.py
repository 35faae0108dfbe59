"""Get a request's token ids: on the loop where that is quick, in a thread where it would hold up every stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from gateway.errors import NoTokens
from gateway.request import Intent, Kind, Prompt
from radix.match import Int32Array

log = logging.getLogger(__name__)

_INLINE_S = 0.001  # a hop to a thread and back costs 75 us of CPU
_THREADS = 2  # more would take the loop's core when long prompts come together


class PromptTokenizer(Protocol):
    """Turns the fields of a request into ids; thread safe; raises NoTokens."""

    def chat(self, fields: Mapping[str, Any]) -> Int32Array: ...

    def completion(self, fields: Mapping[str, Any]) -> Int32Array: ...

    def estimate_s(self, characters: int) -> float:
        """How long a prompt of that length will take."""
        ...


class Prompts:
    """Makes prompts of intents. A request without ids is served all the same, by load, and the reason goes along (FC-22)."""

    def __init__(self, tokenizer: Callable[[], PromptTokenizer | None], *, configured: bool) -> None:
        self._tokenizer = tokenizer
        self._without = Prompt(None, "loading" if configured else "no_tokenizer")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenize")

    def now(self, intent: Intent, body_bytes: int) -> Prompt | None:
        """The prompt, or None where it takes so long that `later` has to be called."""
        tokenizer = self._tokenizer()
        if tokenizer is None:
            return self._without
        if tokenizer.estimate_s(body_bytes) > _INLINE_S:
            return None
        return _prompt(tokenizer, intent)

    def later(self, intent: Intent, take: Callable[[Prompt], None]) -> asyncio.Future[Prompt]:
        """Compute the prompt in a thread and hand it to `take` on the loop, unless the future is cancelled before."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        future = asyncio.get_running_loop().run_in_executor(self._threads, _prompt, tokenizer, intent)
        future.add_done_callback(partial(_hand_over, take))
        return future

    def close(self) -> None:
        """Start nothing new."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _hand_over(take: Callable[[Prompt], None], future: asyncio.Future[Prompt]) -> None:
    if not future.cancelled():
        take(future.result())


def _prompt(tokenizer: PromptTokenizer, intent: Intent) -> Prompt:
    try:
        encode = tokenizer.chat if intent.kind is Kind.CHAT else tokenizer.completion
        return Prompt(encode(intent.fields))
    except NoTokens as error:
        return Prompt(None, error.reason)
    except Exception as error:  # a template is someone else's program; its text may hold the prompt and is not logged
        log.error("tokenizer raised error=%s", type(error).__name__)
        return Prompt(None, "failed")
