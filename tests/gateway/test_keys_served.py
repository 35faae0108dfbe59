"""Keys and their limits on the data plane: what holds at once, what is given back, and a file that changes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.auth import Allowance, Caller, Keys
from gateway.control.key_metrics import KeyCollector
from gateway.errors import ConfigError
from gateway.key_file import KeyFile
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import FakeTokenizer, running
from tests.fakes.engine import STREAM_HEAD, Call, FakeEngine, always, answer, chunk, event, stream, usage_event
from tests.fakes.placer import FakePlacer, replica_at

OK = answer(b'{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":16}}}')
STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def keys_for(**allowances: Allowance) -> Keys:
    return Keys({bytes.fromhex(digest(name)): Caller(name, allowance) for name, allowance in allowances.items()})


def shown(key: str) -> bytes:
    return b"Authorization: Bearer %s\r\n" % key.encode()


async def test_a_key_that_was_taken_away_is_refused_on_an_open_connection() -> None:
    """The head was remembered with its key; a stream that is open goes on."""
    goes_on = asyncio.Event()

    async def script(call: Call) -> None:
        if b'"stream":true' in call.body.replace(b" ", b""):
            await call.send(STREAM_HEAD + chunk(event("a")))
            await goes_on.wait()
            await call.send(*stream([usage_event(30, 2, 0)])[len(STREAM_HEAD) :].splitlines(keepends=True))
        else:
            await call.send(OK)

    async with (
        FakeEngine(script) as engine,
        running(FakePlacer([replica_at(engine.port)]), keys=keys_for(alice=Allowance())) as it,
        RawClient(it.port) as client,
        RawClient(it.port) as streaming,
    ):
        await streaming.send(post(STREAM, fields=shown("alice")))
        for _ in range(2):
            await client.send(post(CHAT, fields=shown("alice")))
            assert (await client.answer()).status == 200
        async with asyncio.timeout(20):
            while it.plane.quotas.counts(9)["alice"].in_flight != 1:
                await asyncio.sleep(0.005)
        it.plane.set_keys(keys_for(bob=Allowance()))
        await client.send(post(CHAT, fields=shown("alice")))
        assert (await client.answer()).status == 401
        goes_on.set()
        assert (await streaming.answer()).status == 200
        async with RawClient(it.port) as other:
            await other.send(post(CHAT, fields=shown("bob")))
            assert (await other.answer()).status == 200
        assert it.plane.quotas.counts(9)["alice"].in_flight == 0


async def test_a_limit_is_named_with_the_time_to_come_back_and_others_go_on() -> None:
    keys = keys_for(alice=Allowance(requests_per_minute=6), bob=Allowance())
    async with FakeEngine(always(OK)) as engine, running(FakePlacer([replica_at(engine.port)]), keys=keys) as it:
        async with RawClient(it.port) as client:
            await client.send(post(CHAT, fields=shown("alice")) * 2)
            assert (await client.answer()).status == 200
            reply = await client.answer()
            assert (reply.status, reply.json()["error"]["code"]) == (429, "key_requests_per_minute")
            assert 1 <= int(reply.values(b"retry-after")[0]) <= 10
            await client.send(post(CHAT, fields=shown("bob")))
            assert (await client.answer()).status == 200
        assert len(engine.calls) == 2
        assert it.counts.refused == {"key_requests_per_minute": 1}
        page = _page(it.plane.quotas)
    assert 'trunkline_key_requests_total{key="alice",status="2xx"} 1.0' in page
    assert 'trunkline_key_refused_total{key="alice",limit="requests_per_minute"} 1.0' in page
    assert 'trunkline_key_tokens_total{key="bob",kind="cached"} 16.0' in page
    assert 'trunkline_key_tokens_total{key="bob",kind="output"} 12.0' in page
    assert 'trunkline_key_in_flight{key="alice"} 0.0' in page


def _page(quotas: object) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(KeyCollector(quotas))  # type: ignore[arg-type]
    return generate_latest(registry).decode()


@pytest.mark.parametrize("end", ["close", "reset", "finish", "cut", "refused"])
async def test_a_place_among_those_at_once_comes_back_on_every_path(end: str) -> None:
    """FC-29, FC-49."""

    async def script(call: Call) -> None:
        if end == "refused":
            await call.send(answer(b'{"error":{}}', b"400 Bad Request"))
        elif end == "cut":
            await call.send(STREAM_HEAD + chunk(event("a")))
            call.reset()
        elif end == "finish":
            await call.send(stream([event("a"), usage_event(3, 1, 0)]))
        else:
            await call.send(STREAM_HEAD + chunk(event("a")))
            await call.left(20)

    keys = keys_for(alice=Allowance(concurrent=1))
    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)]), keys=keys) as it:
        for _ in range(3):
            async with RawClient(it.port) as client:
                await client.send(post(STREAM, fields=shown("alice")))
                if end in ("close", "reset"):
                    async with asyncio.timeout(20):
                        while not it.plane.open_exchanges or it.plane.quotas.counts(1)["alice"].in_flight != 1:
                            await asyncio.sleep(0.002)
                    async with RawClient(it.port) as second:
                        await second.send(post(CHAT, fields=shown("alice")))
                        assert (await second.answer()).status == 429
                    if end == "reset":
                        client.reset()
                elif end != "cut":
                    await client.answer()
            async with asyncio.timeout(20):
                while it.plane.quotas.counts(1)["alice"].in_flight:
                    await asyncio.sleep(0.002)


async def test_tokens_are_charged_before_an_engine_is_asked() -> None:
    keys = keys_for(alice=Allowance(tokens_per_minute=6))
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)]), tokenizer=FakeTokenizer(), keys=keys) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT, fields=shown("alice")) * 2)
        assert (await client.answer()).status == 200
        reply = await client.answer()
        assert (reply.status, reply.json()["error"]["code"]) == (429, "key_tokens_per_minute")
        assert len(engine.calls) == 1


def test_a_file_that_changed_is_read_and_a_bad_one_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FC-59: nor is anything of it told."""
    path = tmp_path / "keys"
    path.write_text(f"alice:{digest('a')}\n", encoding="utf-8")
    told: list[Keys] = []
    file = KeyFile(path, told.append)
    path.write_text("sk-a-key-by-mistake\n", encoding="utf-8")
    with caplog.at_level(logging.INFO):
        file.look()
        assert told == []
        assert file.keys.caller(b"a").name == "alice"
        path.unlink()
        file.look()
        assert told == []
        path.write_text(f"bob:{digest('b')}\n", encoding="utf-8")
        file.look()
    assert [keys.caller(b"b").name for keys in told] == ["bob"]
    assert "mistake" not in caplog.text
    assert caplog.text.count("the old keys stay") == 2
    with pytest.raises(ConfigError):
        KeyFile(tmp_path / "none")


async def test_a_file_is_looked_at_every_second(tmp_path: Path) -> None:
    path, new = tmp_path / "keys", tmp_path / "new"
    path.write_text(f"alice:{digest('a')}\n", encoding="utf-8")
    told: list[Keys] = []
    file = KeyFile(path, told.append)
    task = asyncio.create_task(file.keep())
    new.write_text(f"carol:{digest('c')}\n", encoding="utf-8")
    new.replace(path)  # as secrets are exchanged: never half written
    async with asyncio.timeout(20):
        while not told:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert told[0].caller(b"c").name == "carol"
