"""Get a request's token ids: on the loop where that is quick, in a thread where it would hold up every stream.

What is known of a prompt comes out of caches; only the rest is encoded. Every so many requests one is tokenized again as a
whole, off the loop, and compared: a difference empties the caches and is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import numpy as np
import orjson

from gateway.apis.prompt_fields import Read
from gateway.apis.table import API
from gateway.encoding import Encoding
from gateway.errors import NoTokens
from gateway.request import Intent, Prompt
from gateway.tokenize import reasons
from gateway.tokenize.cached import CacheCounts, Draft, Hole
from gateway.tokenize.lift import LiftedStrings
from gateway.tokenize.prompt import PromptText
from radix.match import Int32Array

log = logging.getLogger(__name__)

_INLINE_S = 0.001  # a hop to a thread and back costs 75 us of CPU
_NO_PROMPT = Prompt(None, reasons.NO_PROMPT)
_THREADS = 2  # more would take the loop's core when long prompts come together
CHECK_EVERY = 1_000


class PromptTokenizer(Protocol):
    """Turns the fields of a request into ids, as `tokenize.cached.CachedTokenizer` does."""

    counts: CacheCounts

    @property
    def reads_clock(self) -> bool: ...

    @property
    def lifted(self) -> LiftedStrings | None: ...

    def planned(self, fields: Mapping[str, Any]) -> Draft | None: ...

    def reads_here(self, fields: Mapping[str, Any], body_bytes: int, *, chat: bool) -> bool: ...

    def read(self, fields: Mapping[str, Any], *, chat: bool) -> PromptText | Int32Array: ...

    def cut(self, prompt: PromptText | Int32Array) -> Draft: ...

    def encode(self, holes: Sequence[Hole]) -> list[Int32Array]: ...

    def remember(self, hole: Hole, ids: Int32Array) -> None: ...

    def joined(self, draft: Draft) -> Int32Array: ...

    def whole(self, fields: Mapping[str, Any], *, chat: bool) -> Int32Array: ...

    def estimate_s(self, characters: int) -> float: ...

    def drop(self) -> None: ...


class Prompts:
    """Makes prompts of intents. A request without ids is served all the same, by load, and the reason goes along (FC-22)."""

    def __init__(
        self, tokenizer: Callable[[], PromptTokenizer | None], *, configured: bool, check_every: int = CHECK_EVERY
    ) -> None:
        self._tokenizer = tokenizer
        self._without = Prompt(None, "loading" if configured else "no_tokenizer")
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenize")
        self._encoding = Encoding(self._threads)
        self._check_every = check_every
        self._until_check = check_every
        self._checks: set[asyncio.Task[None]] = set()

    def parse(self, body: bytes, loads: Callable[[bytes], Any]) -> Any:
        """What `loads(body)` returns or raises, for less where long texts of the body are known."""
        tokenizer = self._tokenizer()
        lifted = tokenizer.lifted if tokenizer is not None else None
        return loads(body) if lifted is None else lifted.parse(body, loads)

    def of(self, intent: Intent, body: bytes, take: Callable[[Prompt], None]) -> Prompt | asyncio.Future[Prompt]:
        """The prompt; or, where it takes long, a future of it, which hands it to `take` unless it is cancelled before."""
        read = API[intent.kind].prompt
        if read is None:
            return _NO_PROMPT
        tokenizer = self._tokenizer()
        if tokenizer is None:
            return self._without
        try:
            fields, chat = read(intent.fields)
            draft = tokenizer.planned(fields) if chat else None
            if draft is None and tokenizer.reads_here(fields, len(body), chat=chat):
                draft = tokenizer.cut(tokenizer.read(fields, chat=chat))
            if draft is not None and (not draft.holes or tokenizer.estimate_s(draft.characters) <= _INLINE_S):
                return self._here(tokenizer, draft, read, body)
        except Exception as error:
            return _without_ids(error)
        task = asyncio.ensure_future(self._elsewhere(tokenizer, draft, intent.fields, read, body))
        task.add_done_callback(partial(_hand_over, take))
        return task

    def close(self) -> None:
        """Start nothing new."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for check in self._checks:
            check.cancel()

    def _here(self, tokenizer: PromptTokenizer, draft: Draft, read: Read, body: bytes) -> Prompt:
        if draft.holes:
            for hole, ids in zip(draft.holes, tokenizer.encode(draft.holes), strict=True):
                draft.parts[hole.slot] = ids
                tokenizer.remember(hole, ids)
        return self._done(tokenizer, draft, read, body)

    async def _elsewhere(
        self, tokenizer: PromptTokenizer, draft: Draft | None, body_fields: Mapping[str, Any], read: Read, body: bytes
    ) -> Prompt:
        loop = asyncio.get_running_loop()
        try:
            if draft is None:
                fields, chat = read(body_fields)
                render = partial(tokenizer.read, fields, chat=chat)
                draft = tokenizer.cut(await loop.run_in_executor(self._threads, render))
            if draft.holes and tokenizer.estimate_s(draft.characters) > _INLINE_S:
                await self._encoding.fill(tokenizer, draft)
                return self._done(tokenizer, draft, read, body)
            return self._here(tokenizer, draft, read, body)
        except Exception as error:
            return _without_ids(error)

    def _done(self, tokenizer: PromptTokenizer, draft: Draft, read: Read, body: bytes) -> Prompt:
        ids = tokenizer.joined(draft)
        self._until_check -= 1
        if self._until_check <= 0:
            self._until_check = self._check_every
            check = asyncio.ensure_future(self._check(tokenizer, read, body, ids))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        return Prompt(ids)

    async def _check(self, tokenizer: PromptTokenizer, read: Read, body: bytes, ids: Int32Array) -> None:
        """Compare with the ids of the whole prompt, from the body on."""
        tokenizer.counts.checks += 1
        try:
            same = await self._is_whole(tokenizer, read, body, ids)
        except NoTokens:
            same = False
        except Exception as error:  # not what it says, which may hold the prompt
            log.error("token cache check failed error=%s", type(error).__name__)
            return
        if not same:
            tokenizer.counts.differences += 1
            tokenizer.drop()
            log.error("token caches differ from the whole prompt got=%d action=dropped", len(ids))

    async def _is_whole(self, tokenizer: PromptTokenizer, read: Read, body: bytes, ids: Int32Array) -> bool:
        loop = asyncio.get_running_loop()

        def from_the_body() -> Int32Array:
            fields, chat = read(orjson.loads(body))
            return tokenizer.whole(fields, chat=chat)

        whole = await loop.run_in_executor(self._threads, from_the_body)
        if np.array_equal(whole, ids) or not tokenizer.reads_clock:
            return np.array_equal(whole, ids)
        # Perhaps only the hour has struck: ask the caches again.
        fields, chat = read(self.parse(body, orjson.loads))
        draft = tokenizer.cut(tokenizer.read(fields, chat=chat))
        if draft.holes:
            await self._encoding.fill(tokenizer, draft)
        return np.array_equal(whole, tokenizer.joined(draft))


def _hand_over(take: Callable[[Prompt], None], future: asyncio.Future[Prompt]) -> None:
    if not future.cancelled():
        take(future.result())


def _without_ids(error: Exception) -> Prompt:
    if isinstance(error, NoTokens):
        return Prompt(None, error.reason)
    # A template is someone else's program; what it raises may hold the prompt and is not logged.
    log.error("tokenizer raised error=%s", type(error).__name__)
    return Prompt(None, "failed")
