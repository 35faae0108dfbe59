"""The doctor's own requests: bounded, with the replica's key and nothing that shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gateway.dialects import dialect_named
from gateway.doctor.client import EngineClient
from gateway.doctor.engine import ask_engine
from gateway.doctor.probe import compare_tokens, send_twice
from gateway.fleet import Address, Replica
from gateway.health import Facts

KEY = "sk-very-secret-123456"


class Engine:
    """Answers from `pages`; remembers what it was asked."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, dict(request.headers), body))
        status, page = self.pages.get(request.path, (404, {}))
        if isinstance(page, str):
            return web.Response(status=status, text=page)
        return web.json_response(page, status=status)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.port = runner.addresses[0][1]
    yield engine
    await runner.cleanup()


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    replica = Replica("r", Address.parse(f"http://127.0.0.1:{engine.port}"), dialect_named("openai"), KEY)
    async with ClientSession() as session:
        yield EngineClient(session, replica)


async def test_a_refused_key_is_not_repeated(engine: Engine, client: EngineClient) -> None:
    """FC-59: engines write the key they refuse into their error."""
    engine.pages["/v1/completions"] = (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    probed = await send_twice(client, "m", 16, ranks=1, batches=lambda: None)
    assert probed.status == 401
    assert not any(KEY[at : at + 6] in probed.error for at in range(len(KEY) - 5))
    assert engine.asked[0][1]["Authorization"] == f"Bearer {KEY}"


async def test_a_probe_is_two_equal_prompts_of_a_token_each_and_of_no_words_sent_before(
    engine: Engine, client: EngineClient
) -> None:
    usage = {"prompt_tokens": 60, "prompt_tokens_details": {"cached_tokens": 48}}
    engine.pages["/v1/completions"] = (200, {"usage": usage})
    heard = iter((5, 5, 7))
    probed = await send_twice(client, "m", 16, ranks=2, batches=lambda: next(heard))
    assert (probed.prompt_tokens, probed.cached_tokens, probed.tells_cached, probed.new_batches) == (60, 48, True, 2)
    (_, headers, first), (_, _, second) = engine.asked
    assert first == second
    assert (first["max_tokens"], headers["x-data-parallel-rank"]) == (1, "0")
    assert len(first["prompt"].split()) == 49
    await send_twice(client, "m", 100_000, ranks=1, batches=lambda: None)
    assert engine.asked[-1][2]["prompt"] != first["prompt"]
    assert len(engine.asked[-1][2]["prompt"].split()) == 2048


async def test_pages_say_what_an_engine_is(engine: Engine, client: EngineClient) -> None:
    cards = [{"id": "m", "owned_by": "vllm", "root": "/m"}, {"id": "sql", "parent": "m", "root": "/sql"}, {"no": "id"}]
    engine.pages["/v1/models"] = (200, {"data": cards})
    engine.pages["/metrics"] = (200, 'vllm:cache_config_info{block_size="32",enable_prefix_caching="False",engine="0"} 1\n')
    facts = await ask_engine(client, Facts())
    assert (facts.kind, facts.block_tokens, facts.caching) == ("vllm", 32, False)
    assert [(card.name, card.root, card.parent) for card in facts.cards] == [("m", "/m", None), ("sql", "/sql", "m")]
    assert facts.skew_s is not None
    assert abs(facts.skew_s) < 5
    cards[0]["owned_by"] = "sglang"
    info = {"page_size": 1, "disable_radix_cache": True, "enable_cache_report": False}
    engine.pages["/server_info"] = (200, info)
    facts = await ask_engine(client, Facts())
    assert (facts.kind, facts.block_tokens, facts.caching, facts.tells_cached) == ("sglang", 1, False, False)
    cards[0]["owned_by"] = "tensorrt_llm"
    engine.asked.clear()
    await ask_engine(client, Facts())
    assert [path for path, _, _ in engine.asked] == ["/v1/models"]  # its /metrics can be read once only


async def test_an_endless_page_is_not_read_to_its_end(engine: Engine, client: EngineClient) -> None:
    engine.pages["/v1/models"] = (200, {"data": ["x" * (5 << 20)]})
    with pytest.raises(ValueError, match="more than 4194304 bytes"):
        await ask_engine(client, Facts())


async def test_an_engine_that_does_not_tokenize_is_told(engine: Engine, client: EngineClient) -> None:
    class Ours:
        def whole(self, fields: Any, *, chat: bool) -> Any:
            raise AssertionError(fields)

    assert await compare_tokens(client, "m", Ours()) == ((), "/tokenize answered 404 to a text")
