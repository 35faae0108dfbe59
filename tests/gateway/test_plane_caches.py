"""Token caches in the data plane: what is remembered changes neither the bytes that engines get nor the ids of a prompt."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.config import TokenizerCaches
from gateway.tokenize.cached import CachedTokenizer
from gateway.tokenize.load import load_tokenizer
from gateway.tokenize.prompt import Tokenizer
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import running, settings
from tests.fakes.engine import FakeEngine, always, answer
from tests.fakes.placer import FakePlacer, replica_at
from tests.fakes.tokenizer_folder import write_tokenizer_folder
from tests.gateway.tokenize.test_template import CHATML

OK = answer(b'{"ok":true}')
LONG = 'hello "the" user, é你🎉 \\ \n' * 150


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp("plane"), template=CHATML))


def chat(*contents: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content} for content in contents]}


BODIES = [
    orjson.dumps(chat(LONG, "hi")),
    json.dumps(chat(LONG, "hi"), indent=2).encode(),
    json.dumps(chat([{"type": "text", "text": LONG}]), ensure_ascii=False).encode(),
    orjson.dumps(chat("first"))[:-1] + b"," + orjson.dumps(chat(LONG))[1:],  # every key twice
    b" " + orjson.dumps({**chat(LONG), "stream": False, "x": {"content": LONG}}) + b"\n",
]


@pytest.mark.parametrize("dialect", ["openai", "trunkline"])
async def test_engines_get_the_clients_own_bytes(plain: Tokenizer, dialect: str) -> None:
    """FC-40: also the second and third time, when hardly anything of a body is parsed. FC-22: and the ids are the same."""
    cached = CachedTokenizer(plain)
    async with FakeEngine(always(OK)) as engine:
        placer = FakePlacer([replica_at(engine.port, dialect=dialect)])
        async with running(placer, tokenizer=cached) as it, RawClient(it.port) as client:
            for body in BODIES * 3:
                await client.send(post(body))
                assert (await client.answer()).status == 200
                received = engine.calls[-1].body
                wanted = plain.chat(orjson.loads(body)).tolist()
                prompt = it.placer.tickets[-1].prompt
                assert prompt.tokens is not None and prompt.tokens.tolist() == wanted
                if dialect == "openai":
                    assert received == body
                else:
                    assert received.endswith(body[body.index(b"{") + 1 :])
                    assert orjson.loads(received) == {**orjson.loads(body), "prompt_token_ids": wanted}
    assert cached.lifted is not None and cached.lifted.hits >= 8


@pytest.mark.parametrize("name", ["plan", "segments", "lift"])
def test_each_cache_has_its_switch(tmp_path: Path, name: str) -> None:
    """And one that is off remembers nothing."""
    folder = write_tokenizer_folder(tmp_path, template=CHATML)
    everything = load_tokenizer(folder, TokenizerCaches())
    assert everything.caches == ("plan", "segments", "lift")
    assert everything.cache.budget_bytes == 32 * 1024 * 1024
    without = load_tokenizer(folder, settings(tokenizer_caches={name: False, "budget_mib": 2}).tokenizer_caches)
    assert without.caches == tuple(other for other in everything.caches if other != name)
    assert without.cache.budget_bytes == 1024 * 1024


async def test_a_broken_body_is_refused_as_ever(plain: Tokenizer) -> None:
    body = BODIES[0]
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)]), tokenizer=CachedTokenizer(plain)) as it,
    ):
        for broken in (body, body[:-1], body + b"]", body.replace(b'"hi"', b"hi"), b"[" + body + b"]", body):
            async with RawClient(it.port) as client:
                await client.send(post(broken))
                assert (await client.answer()).status == (200 if broken == body else 400)
    assert len(engine.calls) == 2


async def test_clients_that_leave_while_their_prompt_is_encoded_leave_nothing_behind(plain: Tokenizer) -> None:
    """FC-29, FC-50: twenty with one new text, half of them gone: one computation, the others are served."""

    class Slow(CachedTokenizer):
        def estimate_s(self, characters: int) -> float:
            return 1.0

    cached = Slow(plain)
    body = orjson.dumps(chat(LONG, "a new one"))
    async with FakeEngine(always(OK)) as engine, running(FakePlacer([replica_at(engine.port)]), tokenizer=cached) as it:
        clients = [RawClient(it.port) for _ in range(20)]
        for client in clients:
            await client.__aenter__()
            await client.send(post(body))
        for client in clients[::2]:
            client.writer.transport.abort()
        answers = await asyncio.gather(*(client.answer() for client in clients[1::2]))
        assert [one.status for one in answers] == [200] * 10
        for client in clients:
            await client.__aexit__()
        await it.quiet()
        async with RawClient(it.port) as client:
            await client.send(post(CHAT))
            assert (await client.answer()).status == 200
