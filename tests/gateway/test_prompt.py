"""Prompts come out of caches, out of threads, and out of both at once; and are compared with whole ones now and then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.body import look
from gateway.prompt import Prompts
from gateway.request import Kind, Prompt
from gateway.tokenize.cached import CachedTokenizer, Hole
from gateway.tokenize.prompt import Tokenizer
from radix.match import Int32Array
from tests.fakes.tokenizer_folder import write_tokenizer_folder
from tests.gateway.tokenize.test_template import CHATML

LONG = "hello the user, é你🎉 \n" * 150


class Slow(CachedTokenizer):
    """Says that everything takes long, and does it only when `gate` is open."""

    def __init__(self, tokenizer: Tokenizer, **switches: Any) -> None:
        super().__init__(tokenizer, **switches)
        self.gate = threading.Event()
        self.encoded: list[list[str]] = []
        self.threads: set[str] = set()
        self.seconds = 1.0

    def estimate_s(self, characters: int) -> float:
        return self.seconds if characters else 0.0

    def encode(self, holes: Sequence[Hole]) -> list[Int32Array]:
        self.threads.add(threading.current_thread().name)
        self.encoded.append([hole.text for hole in holes])
        assert self.gate.wait(10)
        return super().encode(holes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp("prompts"), template=CHATML))


def body(*contents: str, **fields: Any) -> bytes:
    turns = [{"role": ("user", "assistant")[number % 2], "content": content} for number, content in enumerate(contents)]
    return orjson.dumps({"messages": turns, **fields})


class Asking:
    """Requests to one `Prompts`. taken: what it handed over later."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts
        self.taken: list[Prompt] = []

    def ask(self, raw: bytes) -> Prompt | asyncio.Future[Prompt]:
        return self.prompts.of(look(raw, Kind.CHAT, parse=self.prompts.parse), raw, self.taken.append)

    async def later(self, count: int) -> list[Prompt]:
        async with asyncio.timeout(20):
            while len(self.taken) < count:
                await asyncio.sleep(0.002)
        return self.taken

    async def checked(self, tokenizer: CachedTokenizer, count: int) -> None:
        async with asyncio.timeout(20):
            while tokenizer.counts.checks < count or self.prompts._checks:
                await asyncio.sleep(0.002)


@asynccontextmanager
async def asking(tokenizer: CachedTokenizer, check_every: int = 1_000) -> AsyncIterator[Asking]:
    prompts = Prompts(lambda: tokenizer, configured=True, check_every=check_every)
    try:
        yield Asking(prompts)
    finally:
        prompts.close()


def tokens(prompt: Prompt | asyncio.Future[Prompt]) -> list[int]:
    assert isinstance(prompt, Prompt) and prompt.tokens is not None, prompt
    result: list[int] = prompt.tokens.tolist()
    return result


async def test_what_is_known_and_what_is_short_needs_no_thread(plain: Tokenizer) -> None:
    async with asking(CachedTokenizer(plain)) as client:
        raw = body(LONG, "hi", "hello")
        first = client.ask(raw)
        wanted = plain.chat(orjson.loads(raw)).tolist()
        assert tokens(await first if isinstance(first, asyncio.Future) else first) == wanted
        assert tokens(client.ask(raw)) == wanted


async def test_a_long_text_is_encoded_in_a_thread_and_remembered(plain: Tokenizer) -> None:
    slow = Slow(plain)
    async with asking(slow) as client:
        raw = body(LONG, "hi", "hello")
        assert isinstance(client.ask(raw), asyncio.Future)
        slow.gate.set()
        (prompt,) = await client.later(1)
        assert tokens(prompt) == plain.chat(orjson.loads(raw)).tolist()
        assert slow.threads == {"tokenize_0"}
        assert tokens(client.ask(raw)) == tokens(prompt)
        assert len(slow.encoded) == 1


@pytest.mark.parametrize("tools", [False, True], ids=["planned", "cut"])
async def test_requests_with_the_same_new_text_share_one_computation(plain: Tokenizer, tools: bool) -> None:
    slow = Slow(plain)
    fields: dict[str, Any] = {"tools": [{"function": {"name": "w"}}]} if tools else {}
    async with asking(slow) as client:
        bodies = [body(LONG, "hi", f"hello {number}", **fields) for number in range(4)]
        for raw in bodies:
            client.ask(raw)
        slow.gate.set()
        prompts = await client.later(4)
    wanted = sorted(plain.chat(orjson.loads(raw)).tolist() for raw in bodies)
    assert sorted(map(tokens, prompts)) == wanted
    assert sum(LONG in text for texts in slow.encoded for text in texts) == 1


async def test_of_those_who_wait_one_may_leave(plain: Tokenizer) -> None:
    """FC-50: the others get their tokens; when the last has gone the work is not even begun."""
    slow = Slow(plain)
    async with asking(slow) as client:
        blockers = [client.ask(body(f"{number} {LONG}")) for number in range(2)]  # one for each thread
        leaving, staying = client.ask(body(LONG, "a", "b")), client.ask(body(LONG, "a", "b"))
        alone = client.ask(body("nobody waits for this"))
        await asyncio.sleep(0)
        for future in (leaving, alone, *blockers[:1]):
            assert isinstance(future, asyncio.Future)
            future.cancel()
        for _ in range(5):  # turns of the loop that a cancellation takes to reach the thread pool
            await asyncio.sleep(0)
        again = client.ask(body("nobody waits for this"))  # a computation that was given up may not be joined
        slow.gate.set()
        await client.later(3)
        assert isinstance(staying, asyncio.Future) and isinstance(again, asyncio.Future)
        assert tokens(staying.result()) == plain.chat(orjson.loads(body(LONG, "a", "b"))).tolist()
        assert tokens(again.result()) == plain.chat(orjson.loads(body("nobody waits for this"))).tolist()
        assert len(client.taken) == 3
        assert not client.prompts._encoding._jobs
    assert sum("nobody" in text for texts in slow.encoded for text in texts) == 1


async def test_who_comes_as_the_last_one_leaves_is_served(plain: Tokenizer) -> None:
    """FC-50: in the very turn of the loop in which the computation is given up, nobody may join it."""
    slow = Slow(plain)
    async with asking(slow) as client:
        for number in range(2):
            client.ask(body(f"{number} {LONG}"))
        leaving = client.ask(body(LONG))
        assert isinstance(leaving, asyncio.Future)
        for _ in range(3):
            await asyncio.sleep(0)
        leaving.cancel()
        staying = client.ask(body(LONG))
        slow.gate.set()
        await client.later(3)
        assert isinstance(staying, asyncio.Future)
        assert tokens(staying.result()) == plain.chat(orjson.loads(body(LONG))).tolist()


async def test_an_error_in_a_thread_reaches_all_who_wait(plain: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Slow):
        def encode(self, holes: Sequence[Hole]) -> list[Int32Array]:
            super().encode(holes)
            raise RuntimeError("secret prompt")

    failing = Failing(plain)
    async with asking(failing) as client:
        for _ in range(2):
            client.ask(body(LONG))
        failing.gate.set()
        assert [prompt.no_tokens_reason for prompt in await client.later(2)] == ["failed", "failed"]
        assert not client.prompts._encoding._jobs
    assert "RuntimeError" in caplog.text and "secret" not in caplog.text


async def test_templates_with_much_to_do_run_in_a_thread_and_still_share_segments(plain: Tokenizer) -> None:
    cached = CachedTokenizer(plain)
    tools = [{"function": {"name": "w", "parameters": {"x": "y" * 20_000}}}]
    async with asking(cached) as client:
        for number in range(2):
            raw = body(LONG, "hi", f"hello {number}", tools=tools)
            assert isinstance(client.ask(raw), asyncio.Future)
            assert tokens((await client.later(number + 1))[-1]) == plain.chat(orjson.loads(raw)).tolist()
    assert cached.counts.hits["segments"] == 3
    assert cached.counts.misses["segments"] == 4 + 1


@pytest.mark.parametrize(
    ("raw", "reason"),
    [(b'{"messages":[]}', "template"), (b'{"messages":[{"role":"user"},5]}', "shape"), (b'{"messages":[{"role":5}]}', "shape")],
)
async def test_a_body_without_ids_has_a_reason(plain: Tokenizer, raw: bytes, reason: str) -> None:
    """FC-22: on the loop and from a thread."""
    async with asking(CachedTokenizer(plain)) as client:
        assert client.ask(raw) == Prompt(None, reason)
        padded = raw[:-1] + b',"x":"%s"}' % (b"y" * 20_000)
        assert isinstance(client.ask(padded), asyncio.Future)
        assert await client.later(1) == [Prompt(None, reason)]


@pytest.mark.parametrize("tools", [False, True], ids=["planned", "cut"])
async def test_a_wrong_entry_is_found_and_everything_dropped(
    plain: Tokenizer, caplog: pytest.LogCaptureFixture, tools: bool
) -> None:
    """FC-22: one planted id in one entry; the log has counts, not the prompt."""
    cached = CachedTokenizer(plain)
    fields: dict[str, Any] = {"tools": [{"function": {"name": "w"}}]} if tools else {}
    raw = body(LONG, "hi", "hello secret", **fields)
    wanted = plain.chat(orjson.loads(raw)).tolist()
    async with asking(cached, check_every=2) as client:
        assert tokens(client.ask(raw)) == wanted
        assert cached.counts.checks == 0
        key = next(iter(cached.cache._entries))
        wrong = np.array(cached.cache.get(key))
        wrong[0] += 1
        cached.cache.put(key, wrong)
        assert tokens(client.ask(raw)) != wanted  # the second request is compared
        await client.checked(cached, 1)
        assert cached.counts.differences == 1
        assert (len(cached.cache), cached.lifted is not None and len(cached.lifted)) == (0, 0)
        for _ in range(2):
            assert tokens(client.ask(raw)) == wanted
        await client.checked(cached, 2)
    assert cached.counts.differences == 1
    assert "token caches differ" in caplog.text and "secret" not in caplog.text and "hello" not in caplog.text


async def test_a_wrong_lifted_text_is_found(plain: Tokenizer) -> None:
    """The comparison starts from the body's bytes, not from what was made of them."""
    cached = CachedTokenizer(plain)
    assert cached.lifted is not None
    raw = body(LONG, "hi", "hello")
    async with asking(cached, check_every=3) as client:
        for _ in range(2):
            client.ask(raw)
        (known,) = cached.lifted._by_mark.values()
        known.text = known.text[:-2] + "xx"
        client.ask(raw)
        await client.checked(cached, 1)
    assert cached.counts.differences == 1


async def test_right_ids_are_compared_without_a_word(plain: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    cached = CachedTokenizer(plain)
    async with asking(cached, check_every=2) as client:
        for number in range(20):
            client.ask(body(LONG, "hi", f"hello {number}"))
        await client.checked(cached, 10)
    assert (cached.counts.checks, cached.counts.differences) == (10, 0)
    assert len(cached.cache) > 20 and not caplog.records


@pytest.mark.parametrize("planted", [False, True])
async def test_a_template_that_tells_the_time_is_asked_again(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """Midnight between a request and its comparison is no fault of the caches; a wrong entry still is one."""
    template = "{{ strftime_now('%d') + '<|im_end|>' }}" + CHATML
    tokenizer = Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp("clock"), template=template))
    cached = CachedTokenizer(tokenizer)
    assert cached.plan is None and cached.reads_clock
    days = iter(range(10, 99))
    template_now = tokenizer.template._templates["default"].environment.globals  # type: ignore[union-attr]
    async with asking(cached, check_every=2) as client:
        client.ask(body("hello"))
        if planted:
            for key in list(cached.cache._entries):
                ids = cached.cache.get(key)
                assert ids is not None
                cached.cache.put(key, ids + 1)
        ticking = iter([next(days), 11, 11])
        monkeypatch.setitem(template_now, "strftime_now", lambda form: str(next(ticking)))
        client.ask(body("hello"))
        await client.checked(cached, 1)
    assert cached.counts.differences == int(planted)


async def test_without_a_tokenizer_there_is_a_reason() -> None:
    for configured, reason in ((True, "loading"), (False, "no_tokenizer")):
        prompts = Prompts(lambda: None, configured=configured)
        raw = body("hello")
        assert prompts.parse(raw, orjson.loads) == orjson.loads(raw)
        assert prompts.of(look(raw, Kind.CHAT), raw, lambda prompt: None) == Prompt(None, reason)
        prompts.close()
