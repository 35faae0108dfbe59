"""Prompts of each API through the caches, the threads and the comparison with the whole: always the ids of the same chat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from gateway.apis.asked import Asked
from gateway.apis.stored import StoredResponses
from gateway.config import Limits
from gateway.http1.parse import parse_head
from gateway.prompt import Prompts
from gateway.request import Kind, Prompt
from gateway.tokenize.cached import CachedTokenizer
from gateway.tokenize.lift import LiftedStrings
from gateway.tokenize.prompt import Tokenizer
from tests.fakes.tokenizer_folder import write_tokenizer_folder
from tests.gateway.tokenize.test_template import CHATML

LONG = "hello the user, é你🎉 \n" * 250
HEAD = parse_head(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", Limits().head_fields)[0]
USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": LONG}
CHAT = {"messages": [SYSTEM, USER]}

# (kind, body, body of the chat or completion with the same ids)
SAME: list[tuple[Kind, dict[str, Any], dict[str, Any]]] = [
    (Kind.MESSAGES, {"system": LONG, "messages": [USER]}, CHAT),
    (Kind.MESSAGES, {"system": [{"type": "text", "text": LONG}], "messages": [USER]}, CHAT),
    (Kind.MESSAGES, {"system": LONG, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, CHAT),
    (Kind.RESPONSES, {"instructions": LONG, "input": "hi"}, CHAT),
    (Kind.RESPONSES, {"input": [SYSTEM, {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}, CHAT),
    (
        Kind.RESPONSES,
        {"instructions": "hi", "input": LONG},
        {"messages": [{**SYSTEM, "content": "hi"}, {**USER, "content": LONG}]},
    ),
    (Kind.GENERATE, {"text": LONG}, {"prompt": LONG}),
    (Kind.TOKENS, {"token_ids": [3, 1, 2]}, {"prompt": [3, 1, 2]}),
]
IDS = [f"{kind.value}-{number}" for number, (kind, _, _) in enumerate(SAME)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp("apis"), template=CHATML))


@asynccontextmanager
async def prompts_of(cached: CachedTokenizer, check_every: int) -> AsyncIterator[Prompts]:
    prompts = Prompts(lambda: cached, configured=True, check_every=check_every)
    try:
        yield prompts
    finally:
        prompts.close()


async def ask(prompts: Prompts, kind: Kind, body: dict[str, Any]) -> Prompt:
    intent, raw = Asked({}, prompts.parse, StoredResponses()).read(kind, HEAD, orjson.dumps(body))
    got = prompts.of(intent, raw, lambda prompt: None)
    return await got if isinstance(got, asyncio.Future) else got


@pytest.mark.parametrize(("kind", "body", "same"), SAME, ids=IDS)
@pytest.mark.parametrize("caches", [True, False])
async def test_ids_are_those_of_the_chat_an_engine_makes_of_it(
    plain: Tokenizer, kind: Kind, body: dict[str, Any], same: dict[str, Any], caches: bool
) -> None:
    """FC-22: from the template, from the caches, and from the body's bytes when they are compared."""
    cached = CachedTokenizer(plain, plan=caches, segments=caches, lift=caches)
    wanted = (plain.chat(same) if "messages" in same else plain.completion(same)).tolist()
    async with prompts_of(cached, check_every=1) as prompts:
        for _ in range(3):
            prompt = await ask(prompts, kind, body)
            assert prompt.tokens is not None, prompt.no_tokens_reason
            assert prompt.tokens.tolist() == wanted
        async with asyncio.timeout(20):
            while cached.counts.checks < 3 or prompts._checks:
                await asyncio.sleep(0.002)
    assert (cached.counts.checks, cached.counts.differences) == (3, 0)
    if caches and "messages" in same:
        assert cached.counts.hits["plan"] > 0  # plain turns: no template was run


async def test_a_turn_known_from_one_api_is_known_in_all(plain: Tokenizer) -> None:
    cached = CachedTokenizer(plain)
    async with prompts_of(cached, check_every=1_000) as prompts:
        await ask(prompts, Kind.CHAT, CHAT)
        misses = cached.counts.misses["plan"]
        for kind, body, same in SAME:
            if same is CHAT:
                await ask(prompts, kind, body)
        assert cached.counts.misses["plan"] == misses


async def test_a_planted_difference_is_found_from_the_body_of_messages(plain: Tokenizer) -> None:
    cached = CachedTokenizer(plain)
    async with prompts_of(cached, check_every=2) as prompts:
        await ask(prompts, Kind.MESSAGES, SAME[0][1])
        for key in list(cached.cache._entries):
            ids = cached.cache.get(key)
            assert ids is not None
            cached.cache.put(key, ids + 1)
        await ask(prompts, Kind.MESSAGES, SAME[0][1])
        async with asyncio.timeout(20):
            while cached.counts.checks < 1 or prompts._checks:
                await asyncio.sleep(0.002)
    assert cached.counts.differences == 1


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (Kind.MESSAGES, {"messages": [USER], "tools": [{"name": "f"}]}, "tools"),
        (Kind.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "images"),
        (Kind.RESPONSES, {"input": "x", "previous_response_id": "resp_1"}, "state"),
        (Kind.EMBEDDINGS, {"input": "x"}, "no_prompt"),
        (Kind.COUNT_TOKENS, {"messages": [USER]}, "no_prompt"),
        (Kind.TOKENIZE, {"prompt": "x"}, "no_prompt"),
        (Kind.PASS_THROUGH, {"prompt": "x"}, "no_prompt"),
    ],
)
async def test_why_there_are_no_ids_is_told(plain: Tokenizer, kind: Kind, body: dict[str, Any], reason: str) -> None:
    """FC-22."""
    async with prompts_of(CachedTokenizer(plain), check_every=1) as prompts:
        assert await ask(prompts, kind, body) == Prompt(None, reason)


@pytest.mark.parametrize(
    "body",
    [
        {"system": [{"type": "text", "text": LONG}], "messages": [USER]},
        {"input": LONG},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": LONG}]}]},
        {"input": [{"role": "user", "content": LONG}]},
        {"prompt": LONG},
        {"text": LONG, "input": [LONG]},
        {"system": LONG, "messages": [{"role": "user", "content": LONG}]},
    ],
)
def test_long_texts_are_recognised_where_each_api_has_them(body: dict[str, Any]) -> None:
    """And a body that has one elsewhere is parsed whole: what comes out is the same."""
    strings, raw = LiftedStrings(1 << 20), orjson.dumps(body)
    parsed: list[int] = []

    def loads(data: bytes) -> Any:
        parsed.append(len(data))
        return orjson.loads(data)

    for _ in range(2):
        assert strings.parse(raw, loads) == body
    assert strings.hits == 1
    assert parsed[1] < len(raw)
