"""The data plane as a whole: local answers, barriers, aborted requests, draining, keys."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import random

import pytest

from gateway.auth import Caller, Keys
from gateway.forward import Exchange
from gateway.plane import DataPlane
from gateway.request import Outcome, TrafficCounts
from tests.fakes.client import CHAT, RawClient, get, post
from tests.fakes.dataplane import FakeTokenizer, running, settings
from tests.fakes.engine import DONE, END, STREAM_HEAD, Call, FakeEngine, always, answer, chunk, event, stream
from tests.fakes.placer import FakePlacer, replica_at

OK = answer(b'{"ok":true}')
STREAM = {**CHAT, "stream": True}


async def test_questions_about_the_gateway_are_answered_here() -> None:
    async with running(FakePlacer([])) as it, RawClient(it.port) as client:
        await client.send(get(b"/v1/models") + get(b"/health") + get(b"/livez"))
        models = (await client.answer()).json()
        assert models["object"] == "list"
        assert [(model["id"], model["object"]) for model in models["data"]] == [("m", "model")]
        assert (await client.answer()).json() == {"status": "ok"}
        assert (await client.answer()).json() == {"status": "ok"}
        assert it.counts.requests == {("models", 2): 1, ("health", 2): 2}


async def test_requests_are_counted_under_closed_labels() -> None:
    """FC-62: neither paths nor models become labels."""
    async with FakeEngine(always(OK)) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        for number in range(50):
            async with RawClient(it.port) as client:
                await client.send(post({**CHAT, "model": f"m{number}"}) + get(b"/p%d" % number))
                assert (await client.answer()).status == 200
                assert (await client.answer()).status == 404
        assert it.counts.requests == {("chat", 2): 50, ("none", 4): 50}
        assert it.counts.refused == {"unknown_path": 50}


async def test_without_a_tokenizer_requests_go_by_load() -> None:
    """FC-22: and the reason goes along."""
    for given, reason in ((settings(), "no_tokenizer"), (settings(tokenizer="somewhere"), "loading")):
        async with FakeEngine(always(OK)) as engine, running(FakePlacer([replica_at(engine.port)]), given=given) as it:
            async with RawClient(it.port) as client:
                await client.send(post(CHAT))
                assert (await client.answer()).status == 200
            assert it.placer.tickets[0].prompt.no_tokens_reason == reason


async def test_a_tokenizer_that_raises_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """FC-22, FC-59: counted, logged without the text."""

    def work() -> None:
        raise ValueError("prompt text")

    for seconds in (0.0, 0.5):
        async with (
            FakeEngine(always(OK)) as engine,
            running(FakePlacer([replica_at(engine.port)]), tokenizer=FakeTokenizer(seconds, work)) as it,
            RawClient(it.port) as client,
        ):
            await client.send(post(CHAT))
            assert (await client.answer()).status == 200
            assert it.placer.tickets[0].prompt.no_tokens_reason == "failed"
    assert "ValueError" in caplog.text
    assert "prompt text" not in caplog.text


async def test_an_exception_of_our_own_is_an_answer_and_leaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """FC-29, FC-59: 500 before the first byte; the text of the exception is not logged."""
    async with FakeEngine(always(OK)) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        it.placer.error = RuntimeError("sk-secret")
        async with RawClient(it.port) as client:
            await client.send(post(CHAT))
            reply = await client.answer()
            assert (reply.status, reply.json()["error"]["message"]) == (500, "internal error")
            assert await client.closed()
        await it.quiet()
        assert it.counts.internal_errors == 1
        it.placer.error = None
        async with RawClient(it.port) as client:
            await client.send(post(CHAT))
            assert (await client.answer()).status == 200
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_an_exception_after_the_first_byte_cuts_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-29: the ticket is closed all the same, once."""

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD + chunk(event("a")))
        await asyncio.sleep(0.01)
        monkeypatch.setattr("gateway.stream.Relay.feed", lambda self, data: 1 / 0)
        await call.send(chunk(event("b")))
        assert await call.left()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        async with RawClient(it.port) as client:
            await client.send(post(STREAM))
            assert not (await client.answer()).complete
        await it.quiet()
        assert it.placer.outcomes == [Outcome.CUT]
        assert it.counts.internal_errors == 1
        assert engine.errors == []


async def test_requests_aborted_at_random_points_leave_nothing_behind() -> None:
    """FC-29: while tokenizing, connecting, waiting, streaming, and with engines that fail; every count returns to zero."""
    rng = random.Random(1)

    async def script(call: Call) -> None:
        turn = rng.random()
        if turn < 0.1:
            call.reset()
        elif turn < 0.2:
            await call.send(answer(b"{}", b"503 Full"))
        elif turn < 0.3:
            await call.left(0.05)
            call.close()
        else:
            await call.send(STREAM_HEAD)
            for number in range(10):
                await call.send(chunk(event(str(number))))
                await asyncio.sleep(0.001)
            await call.send(chunk(DONE) + END)

    async def one(port: int) -> None:
        raw = post({**STREAM, "user": "x" * rng.choice((0, 50_000))})
        async with RawClient(port) as client:
            await client.send(raw[: rng.choice((len(raw), len(raw), len(raw) // 2, 10))])
            await asyncio.sleep(rng.random() * 0.02)
            if rng.random() < 0.3:
                client.reset()

    seconds = itertools.cycle((0.0, 0.0, 0.5))

    class Tokenizer(FakeTokenizer):
        def estimate_s(self, characters: int) -> float:
            return next(seconds)

    async with FakeEngine(script) as first, FakeEngine(script) as second:
        placer = FakePlacer([replica_at(first.port), replica_at(second.port, "r2")])
        async with running(placer, tokenizer=Tokenizer()) as it:
            for _ in range(20):
                await asyncio.gather(*(one(it.port) for _ in range(50)))
            await it.quiet(5.0)
            assert it.plane.budget.held == 0
            assert it.counts.internal_errors == 0
            assert all(len(ticket.closes) == 1 for ticket in placer.tickets)
            assert Outcome.CLIENT_LEFT in placer.outcomes
            async with asyncio.timeout(20):
                while first.open + second.open > it.plane.idle_engine_connections:
                    await asyncio.sleep(0.01)
        assert first.errors == second.errors == []


async def test_an_exchange_ends_once_whoever_says_so() -> None:
    """FC-29: the ticket is closed by the first, the others find nothing to do."""

    async def script(call: Call) -> None:
        await call.left(5)

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        async with RawClient(it.port) as client:
            await client.send(post(CHAT))
            async with asyncio.timeout(20):
                while not engine.calls:
                    await asyncio.sleep(0.005)
            (exchange,) = it.plane._floor.exchanges
            assert isinstance(exchange, Exchange)
            exchange.client_left()
            exchange.stop()
            exchange.engine_silent()
            exchange.connect_failed(OSError())
            exchange.engine_closed(clean=False)
            exchange.failed_inside(ValueError())
        assert it.placer.outcomes == [Outcome.CLIENT_LEFT]
        assert it.counts.requests == {("chat", 4): 1}


# --- the end of a gateway ---


async def test_draining_lets_short_streams_finish_and_ends_long_ones() -> None:
    """FC-57: new requests are refused; at the limit the rest get an error event."""
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD + chunk(event("a")))
        if b'"short"' in call.body:
            await go_on.wait()
            await call.send(chunk(DONE) + END)
        else:
            await call.left(5)

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        async with (
            RawClient(it.port) as short,
            RawClient(it.port) as long,
            RawClient(it.port) as late,
            RawClient(it.port) as idle,
        ):
            await short.send(post({**STREAM, "user": "short"}))
            await long.send(post({**STREAM, "user": "long"}))
            for client in (short, long):
                await client.reader.readuntil(b'"a"')
            await idle.send(get(b"/health"))
            assert (await idle.answer()).status == 200
            draining = asyncio.ensure_future(it.plane.drain(0.3))
            await asyncio.sleep(0.01)
            for client, raw in ((late, post(CHAT)), (idle, get(b"/health"))):
                await client.send(raw)
                reply = await client.answer()
                assert (reply.status, reply.values(b"connection")) == (503, [b"close"])
                assert await client.closed()
            go_on.set()
            rest = await asyncio.wait_for(short.reader.read(-1), 0.25)  # its end closes the connection as well
            assert rest.endswith(chunk(DONE) + END)
            await draining
            rest = await asyncio.wait_for(long.reader.read(-1), 1)
            assert b'"error"' in rest
            assert not rest.endswith(END)
        await it.quiet()
        assert it.placer.outcomes == [Outcome.OK, Outcome.CUT]
        assert len(engine.calls) == 2


async def test_draining_waits_for_bodies_that_are_coming_and_refuses_the_rest() -> None:
    """FC-57: an upload at the time of the signal is served when it ends in time, else answered 503."""
    raw = post(CHAT)
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as quick,
        RawClient(it.port) as stuck,
    ):
        for client in (quick, stuck):
            await client.send(raw[:-5])
        async with asyncio.timeout(20):
            while sum(client.uploading for client in it.plane._clients) < 2:
                await asyncio.sleep(0.005)
        draining = asyncio.ensure_future(it.plane.drain(0.3))
        await asyncio.sleep(0.02)
        await quick.send(raw[-5:])
        assert (await quick.answer()).status == 200
        reply = await stuck.answer()
        assert (reply.status, reply.values(b"connection")) == (503, [b"close"])
        assert not draining.done()  # the process stays until the answer was taken
        stuck.reset()
        async with asyncio.timeout(20):
            await draining


async def test_draining_an_idle_gateway_takes_no_time() -> None:
    async with running(FakePlacer([])) as it:
        async with asyncio.timeout(0.2):
            await it.plane.drain(30)


async def test_closing_ends_everything() -> None:
    """FC-57, the second signal: no listener, no connection and no task stays."""
    never = asyncio.Event()

    async def script(call: Call) -> None:
        await call.left(5)
        never.set()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        async with RawClient(it.port) as waiting, RawClient(it.port) as idle:
            await waiting.send(post(CHAT))
            async with asyncio.timeout(20):
                while not engine.calls:
                    await asyncio.sleep(0.005)
            it.plane.close()
            assert (await waiting.answer()).status == 503
            assert await idle.closed()
            async with asyncio.timeout(20):
                await never.wait()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", it.port)


# --- keys ---


def keys_for(*names: str) -> Keys:
    return Keys({hashlib.sha256(f"sk-{name}-0123456789".encode()).digest(): Caller(name) for name in names})


async def test_requests_need_a_known_key_and_health_does_not() -> None:
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)]), keys=keys_for("alice")) as it,
    ):
        for field in (b"Authorization: Bearer %s", b"X-Api-Key: %s", b"Api-Key: %s"):
            for key, status in ((b"sk-alice-0123456789", 200), (b"sk-alice-0123456780", 401), (b"", 401)):
                async with RawClient(it.port) as client:
                    await client.send(post(CHAT, fields=field % key + b"\r\nExpect: 100-continue\r\n"))
                    reply = await client.answer()
                    assert (reply.status, reply.interim) == (status, [])
        async with RawClient(it.port) as client:
            await client.send(get(b"/health") + get(b"/v1/models"))
            assert (await client.answer()).status == 200
            assert (await client.answer()).status == 401
        assert it.counts.refused == {"invalid_api_key": 3, "no_api_key": 4}


async def test_a_bad_key_gets_no_hundred_and_no_body_is_read() -> None:
    """FC-38: 401 before the body."""
    async with running(FakePlacer([]), keys=keys_for("alice")) as it, RawClient(it.port) as client:
        raw = post(CHAT, fields=b"Expect: 100-continue\r\nAuthorization: Bearer nope\r\n")
        await client.send(raw[: raw.index(b"\r\n\r\n") + 4])
        reply = await client.answer()
        assert (reply.status, reply.interim) == (401, [])


async def test_no_piece_of_a_key_shows_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    """FC-59: every error path at debug level, keys in every place a client may put one."""
    caplog.set_level(logging.DEBUG)
    key = "sk-Qw3rTyZx91"
    pieces = [key[start : start + 6] for start in range(len(key) - 5)]
    seen = b""

    async def script(call: Call) -> None:
        turn = len(engine.calls) % 5
        if turn == 0:
            call.reset()
        elif turn == 1:
            await call.send(b"nonsense\r\n\r\n")
        elif turn == 2:
            await call.send(STREAM_HEAD + chunk(event("a")))
            call.close()
        elif turn == 3:
            await call.send(answer(b"{}", b"500 Oops"))
        else:
            await call.send(OK)

    raw_key = key.encode()
    fields = b"Authorization: Bearer %s\r\nX-Api-Key: %s\r\nApi-Key: %s\r\n" % (raw_key, raw_key, raw_key)
    shots = [
        post({**STREAM, "user": key}, fields=fields, path=b"/v1/chat/completions?api_key=" + raw_key),
        post({**CHAT, "model": [key]}, fields=fields),
        post(b'{"model": "' + raw_key, fields=fields),
        post({**CHAT, "messages": key}, fields=fields),
        post(CHAT, fields=fields, path=b"/v1/" + raw_key),
        post(CHAT, fields=fields, path=b"http://u:%s@gateway/v1/nothing" % raw_key),
        post(CHAT, fields=fields + b"Expect: " + raw_key + b"\r\n"),
        post(CHAT, fields=fields + b"X-Trunkline-Priority: " + raw_key + b"\r\n"),
        post(CHAT, fields=fields + raw_key + b"\r\n"),
        post(CHAT, fields=fields + b"Content-Length: " + raw_key + b"\r\n"),
        get(b"/v1/chat/completions?key=" + raw_key, fields=fields),
        raw_key + b" / HTTP/1.1\r\n\r\n",
    ]
    keys = Keys({hashlib.sha256(raw_key).digest(): Caller("alice")})
    async with FakeEngine(script) as engine:
        for known in (keys, keys_for("bob"), None):
            async with running(FakePlacer([replica_at(engine.port), replica_at(engine.port, "r2")]), keys=known) as it:
                for raw in [shots[0]] * 6 + shots:
                    async with RawClient(it.port) as client:
                        await client.send(raw)
                        reply = await client.answer()
                        seen += b"".join(name + value for name, value in reply.fields) + reply.body
                seen += repr((it.counts, it.plane.heads, list(it.plane.heads._memo.values()))).encode()
                await it.quiet()
    text = caplog.text + seen.decode()
    assert [piece for piece in pieces if piece in text] == []
    assert engine.errors == []


async def test_two_planes_do_not_share_anything() -> None:
    async with (
        FakeEngine(always(stream([event("a"), DONE]))) as engine,
        running(FakePlacer([replica_at(engine.port)])) as one,
        running(FakePlacer([replica_at(engine.port)])) as two,
    ):
        assert one.port != two.port
        for it in (one, two):
            async with RawClient(it.port) as client:
                await client.send(post(STREAM))
                assert (await client.answer()).complete
        assert one.counts.requests == two.counts.requests == {("chat", 2): 1}


async def test_a_taken_port_is_an_error() -> None:
    async with running(FakePlacer([])) as it:
        plane = DataPlane(settings(), FakePlacer([]), lambda: None, None, TrafficCounts(), models=list)
        with pytest.raises(OSError, match="in use"):
            await plane.start("127.0.0.1", it.port)
        plane.close()
