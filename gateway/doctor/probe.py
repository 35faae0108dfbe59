"""Small requests to one engine that show what no page tells: is a prompt found again, do events come, are its ids ours."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import aiohttp
import numpy as np

from gateway.doctor.client import EngineAnswer, EngineClient
from gateway.doctor.types import Parity, Probed
from gateway.errors import NoTokens
from radix.match import Int32Array

_USUAL_BLOCK_TOKENS = 16
_BLOCKS = 3
_MOST_WORDS = 2048
_EVENTS_S = 3.0  # as long as events may take, and a worker to be told of them
_LOOK_S = 0.05

# Texts on which templates and tokenizers differ when they do: roles, several turns, digits, scripts, white space.
_CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name 3 rivers, please."}],
    [
        {"role": "user", "content": "Hello!  How are you?"},
        {"role": "assistant", "content": "Fine.\n\nAnd you?"},
        {"role": "user", "content": "Ça va, 123456 ≈ 1e5 \U0001f642"},
    ],
)
_TEXT = "The 2nd line\n\tis indented: naïve café, 今天天气, x_1 += 0xff  # ok"


class WholeTokenizer(Protocol):
    """Our side of the comparison: `gateway.tokenize.cached.CachedTokenizer`."""

    def whole(self, fields: Mapping[str, Any], *, chat: bool) -> Int32Array: ...


async def send_twice(
    client: EngineClient, model: str, block_tokens: int, *, ranks: int, batches: Callable[[], int | None]
) -> Probed:
    """Send one prompt of a few blocks twice, for one token each; raises what asking raises.

    batches: of events heard so far from rank 0, None where none are followed.
    """
    before = batches()
    fields = {"model": model, "prompt": _prompt(block_tokens), "max_tokens": 1, "temperature": 0}
    headers = {"x-data-parallel-rank": "0"} if ranks > 1 else {}
    first = await client.post("/v1/completions", fields, headers)
    if first.status != 200:
        return Probed(first.status, _message(first))
    new = await _new_batches(before, batches)
    second = await client.post("/v1/completions", fields, headers)
    if second.status != 200:
        return Probed(second.status, _message(second))
    prompt_tokens, cached = _usage(second)
    return Probed(200, "", prompt_tokens, cached, cached is not None, new)


async def _new_batches(before: int | None, batches: Callable[[], int | None]) -> int | None:
    if before is None:
        return None
    for _ in range(int(_EVENTS_S / _LOOK_S)):
        now = batches()
        if now is None or now > before:
            return None if now is None else now - before
        await asyncio.sleep(_LOOK_S)
    return 0


def _prompt(block_tokens: int) -> str:
    """Words nobody has sent before; each is a token at least."""
    words = min(_BLOCKS * (block_tokens or _USUAL_BLOCK_TOKENS) + 1, _MOST_WORDS)
    return " ".join(secrets.token_hex(2) for _ in range(words))


def _usage(answer: EngineAnswer) -> tuple[int | None, int | None]:
    """(prompt tokens, cached tokens), None where it does not say."""
    body = answer.json()
    usage = body.get("usage") if isinstance(body, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt_tokens = usage.get("prompt_tokens")
    return (prompt_tokens if isinstance(prompt_tokens, int) else None, cached if isinstance(cached, int) else None)


def _message(answer: EngineAnswer) -> str:
    """What an error says, cut short; nothing of one about the key, which some engines repeat (FC-59)."""
    if answer.status in (401, 403):
        return "it wants another key"
    body = answer.json()
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or "")[:200]


async def compare_tokens(client: EngineClient, model: str, tokenizer: WholeTokenizer) -> tuple[tuple[Parity, ...], str | None]:
    """Our test texts in both sides' ids, and why the rest could not be compared."""
    found: list[Parity] = []
    for fields in _bodies():
        chat = "messages" in fields
        try:
            answer = await client.post("/tokenize", {"model": model, **fields})
            told = answer.json()
            theirs = told.get("tokens") if isinstance(told, dict) else None
            if answer.status != 200 or not isinstance(theirs, list):
                return tuple(found), f"/tokenize answered {answer.status} to {'a chat' if chat else 'a text'}"
            ours = await asyncio.to_thread(tokenizer.whole, fields, chat=chat)
        except NoTokens as error:
            return tuple(found), f"our tokenizer: {error.reason}"
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return tuple(found), f"/tokenize: {type(error).__name__}"
        found.append(parity(chat, theirs, ours))
    return tuple(found), None


def _bodies() -> Iterator[dict[str, Any]]:
    """Of a completion and of chats."""
    yield {"prompt": _TEXT}
    for messages in _CHATS:
        yield {"messages": messages, "add_generation_prompt": True}


def parity(chat: bool, theirs: list[Any], ours: Int32Array) -> Parity:
    """Compare two lists of ids."""
    length = min(len(theirs), len(ours))
    different = np.flatnonzero(np.asarray(theirs[:length]) != ours[:length]) if length else np.zeros(0, np.int64)
    return Parity(chat, len(theirs), len(ours), int(different[0]) if len(different) else None)
