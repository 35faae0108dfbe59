"""The client side over raw sockets: cuts, pipelining, smuggling, limits, time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.fakes.client import CHAT, RawClient, get, post
from tests.fakes.dataplane import Running, running, settings
from tests.fakes.engine import DONE, END, STREAM_HEAD, Call, FakeEngine, always, answer, chunk, event, stream
from tests.fakes.placer import FakePlacer, replica_at
from tests.gateway.http1.test_parse import SMUGGLING

OK = answer(b'{"ok":true}')


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(always(OK)) as fake:
        yield fake
    assert fake.errors == []


@pytest.fixture
async def gateway(engine: FakeEngine) -> AsyncIterator[Running]:
    limits = {"body_bytes": 2_000_000, "head_bytes": 4096}
    async with running(FakePlacer([replica_at(engine.port)]), given=settings(limits=limits)) as it:
        yield it


def chunked(body: bytes, step: int, *, fields: bytes = b"") -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n%s\r\n" % fields
    chunks = [body[i : i + step] for i in range(0, len(body), step)]
    return head + b"".join(b"%X;a=b\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\nX-Trailer: 1\r\n\r\n"


async def test_a_request_may_be_cut_anywhere(engine: FakeEngine, gateway: Running) -> None:
    """FC-41, for requests: heads and bodies in any pieces."""
    raw = post(CHAT, fields=b"X-Tag: 1\r\n")
    async with RawClient(gateway.port) as client:
        for place in range(1, len(raw)):
            await client.send(raw[:place], raw[place:])
            assert (await client.answer()).status == 200
        await client.send(*(raw[i : i + 1] for i in range(len(raw))))
        assert (await client.answer()).json() == {"ok": True}
    assert len(engine.calls) == len(raw)
    assert {call.body for call in engine.calls} == {json.dumps(CHAT).encode()}


async def test_pipelined_requests_are_answered_in_order(engine: FakeEngine, gateway: Running) -> None:
    async def script(call: Call) -> None:
        await call.send(answer(call.body))

    engine.script = script
    bodies = [{**CHAT, "n": number} for number in range(20)]
    async with RawClient(gateway.port) as client:
        await client.send(b"".join(map(post, bodies)))
        for body in bodies:
            assert (await client.answer()).json() == body
    await gateway.quiet()


async def test_a_request_behind_a_running_stream_waits(engine: FakeEngine, gateway: Running) -> None:
    release = asyncio.Event()

    async def script(call: Call) -> None:
        if json.loads(call.body).get("stream"):
            await call.send(STREAM_HEAD, chunk(event("a")))
            await release.wait()
            await call.send(chunk(DONE) + END)
        else:
            await call.send(OK)

    engine.script = script
    async with RawClient(gateway.port) as client:
        # More than is kept for later: the connection has to stop reading, and start again.
        later = post({**CHAT, "user": "x" * 300_000})
        sending = asyncio.ensure_future(client.send(post({**CHAT, "stream": True}) + post(CHAT) + later))
        assert await client.reader.readuntil(b"\n\n") != b""
        await asyncio.sleep(0.02)
        assert len(engine.calls) == 1
        release.set()
        await client.reader.readuntil(END)
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 200
        await sending
    assert len(engine.calls) == 3


async def test_what_is_kept_of_later_requests_is_bounded(engine: FakeEngine, gateway: Running) -> None:
    async def script(call: Call) -> None:
        await call.left(5)

    engine.script = script
    async with RawClient(gateway.port) as client:
        sending = asyncio.ensure_future(client.send(post(CHAT) + b"x" * 30_000_000))
        async with asyncio.timeout(2):
            while not engine.calls:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        (connection,) = gateway.plane._clients
        assert 0 < len(connection._input) < 1_000_000
        assert not sending.done()
        sending.cancel()


@pytest.mark.parametrize("lines", SMUGGLING.values(), ids=SMUGGLING.keys())
async def test_a_smuggled_request_never_reaches_an_engine(lines: list[bytes], engine: FakeEngine, gateway: Running) -> None:
    """FC-61: 400, the connection closes, and what stands behind is not served."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    async with RawClient(gateway.port) as client:
        await client.send(head + b"0\r\n\r\n" + post(CHAT))
        reply = await client.answer()
        assert reply.status == 400
        assert reply.values(b"connection") == [b"close"]
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert await client.closed()
    assert engine.calls == []


@pytest.mark.parametrize("size", [b"+2", b"0x2", b"2 2", b"", b"2_0", b"-2", b"g"])
async def test_a_wrong_chunk_size_is_refused(size: bytes, engine: FakeEngine, gateway: Running) -> None:
    """FC-61: also in the framing of the body itself."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with RawClient(gateway.port) as client:
        await client.send(head + size + b"\r\n{}\r\n0\r\n\r\n" + post(CHAT))
        assert (await client.answer()).status == 400
        assert await client.closed()
    assert engine.calls == []


@pytest.mark.parametrize("step", [1, 7, 777, 100_000])
async def test_chunked_bodies_go_on_with_a_length(step: int, engine: FakeEngine, gateway: Running) -> None:
    """FC-36: the framing is the gateway's own."""
    body = json.dumps({**CHAT, "user": "é" * 1000}).encode()
    raw = chunked(body, step) + post(CHAT)
    async with RawClient(gateway.port) as client:
        await client.send(*(raw[i : i + step] for i in range(0, len(raw), step)))
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 200
    assert engine.calls[0].body == body
    assert engine.calls[0].values(b"content-length") == [b"%d" % len(body)]
    assert engine.calls[0].values(b"transfer-encoding") == []


async def test_expect_is_answered_before_the_body_and_not_passed_on(engine: FakeEngine, gateway: Running) -> None:
    """FC-38: 100, then the answer."""
    raw = post({**CHAT, "user": "x" * 100_000}, fields=b"Expect: 100-continue\r\n")
    end = raw.index(b"\r\n\r\n") + 4
    async with RawClient(gateway.port) as client:
        await client.send(raw[:end])
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(raw[end:])
        assert (await client.answer()).status == 200
        await client.send(raw)  # the body came with the head: nothing to wait for
        reply = await client.answer()
        assert (reply.status, reply.interim) == (200, [])
    assert engine.calls[0].values(b"expect") == []


@pytest.mark.parametrize("length", [2_000_001, 9_999_999_999])
async def test_a_body_that_is_announced_too_large_is_never_read(length: int, engine: FakeEngine, gateway: Running) -> None:
    """FC-38, FC-39: 413 without 100."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length
    async with RawClient(gateway.port) as client:
        await client.send(head)
        reply = await client.answer()
        assert (reply.status, reply.interim) == (413, [])
        assert str(length) in reply.json()["error"]["message"]
    assert gateway.counts.refused == {"body_too_large": 1}
    assert engine.calls == []


async def test_a_refused_client_that_still_sends_gets_its_answer(gateway: Running) -> None:
    """FC-39: reading goes on for a moment, or the kernel would reset the connection and the answer be lost."""
    raw = chunked(b"x" * 2_300_000, 65_536)
    async with RawClient(gateway.port) as client:
        # All of it before the first look at the answer, as many clients do.
        await client.send(*(raw[i : i + 65_536] for i in range(0, len(raw), 65_536)))
        assert (await client.answer()).status == 413
        assert await client.closed()
    await gateway.quiet(3.0)
    assert gateway.plane.budget.held == 0


async def test_a_client_refused_by_its_head_gets_its_answer_behind_its_body(gateway: Running) -> None:
    for _ in range(10):
        async with RawClient(gateway.port) as client:
            await client.send(post(b"x" * 400_000, path=b"/v1/nothing"))
            await asyncio.sleep(0.01)
            assert (await client.answer()).status == 404
            assert await client.closed()


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 413)])
async def test_the_body_limit_is_exact(extra: int, status: int, gateway: Running) -> None:
    """FC-39: up to the limit all pass, with a length and chunked."""
    body = b'{"messages":[],"user":"' + b"x" * (2_000_000 - 25 + extra) + b'"}'
    assert len(body) == 2_000_000 + extra
    for raw in (post(body), chunked(body, 500_000)):
        async with RawClient(gateway.port) as client:
            sending = asyncio.ensure_future(client.send(raw))
            assert (await client.answer()).status == status
            await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize(
    ("raw", "status", "allowed"),
    [
        (get(b"/v1/chat/completions"), 405, "POST"),
        (get(b"/v1/chat/completions", method=b"DELETE"), 405, "POST"),
        (post(CHAT, path=b"/v1/models"), 405, "GET, HEAD"),
        (post(CHAT, path=b"/v1/embeddings"), 404, ""),
        (get(b"/"), 404, ""),
        (get(b"/health", method=b"BREW"), 501, ""),
    ],
)
async def test_what_is_not_served_is_refused_in_the_shape_of_the_api(
    raw: bytes, status: int, allowed: str, gateway: Running
) -> None:
    async with RawClient(gateway.port) as client:
        await client.send(raw)
        reply = await client.answer(head_only=False)
        assert reply.status == status
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert allowed in reply.json()["error"]["message"]


async def test_head_requests_get_no_body(gateway: Running) -> None:
    """FC-36: but its length, as GET would tell it."""
    async with RawClient(gateway.port) as client:
        await client.send(get(b"/v1/models", method=b"HEAD") + get(b"/v1/models"))
        first, second = await client.answer(head_only=True), await client.answer()
    assert first.values(b"content-length") == second.values(b"content-length") == [b"%d" % len(second.body)]


async def test_a_head_that_is_too_long_is_refused(gateway: Running) -> None:
    for raw in (b"GET /health HTTP/1.1\r\nA: " + b"x" * 5000, get(b"/health", fields=b"A: " + b"x" * 5000 + b"\r\n")):
        async with RawClient(gateway.port) as client:
            await client.send(raw)
            assert (await client.answer()).status == 431
    async with RawClient(gateway.port) as client:
        await client.send(get(b"/health", fields=b"A: b\r\n" * 64))
        assert (await client.answer()).status == 431


@pytest.mark.parametrize("fields", [b"Connection: close\r\n", b"Connection: Close, X-A\r\n"])
async def test_connection_close_is_honoured(fields: bytes, gateway: Running) -> None:
    async with RawClient(gateway.port) as client:
        await client.send(post(CHAT, fields=fields))
        reply = await client.answer()
        assert reply.status == 200
        assert reply.values(b"connection") == [b"close"]
        assert await client.closed()


async def test_an_old_client_is_answered_until_the_connection_ends(engine: FakeEngine, gateway: Running) -> None:
    engine.script = always(stream([event("a"), DONE]))
    async with RawClient(gateway.port) as client:
        await client.send(post({**CHAT, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        reply = await client.answer()
        assert reply.body == event("a") + DONE
        assert reply.values(b"transfer-encoding") == []
        assert await client.closed()


@pytest.mark.parametrize("raw", [b"POST /v1/cha", post(CHAT)[:-3], chunked(b"{}", 1)[:-6]])
async def test_a_request_that_never_ends_times_out(raw: bytes, engine: FakeEngine) -> None:
    """Slow-loris: heads and bodies have limits of their own; one byte now and then does not extend a head's."""
    limits = {"head_s": 0.15, "body_stall_s": 0.15}
    async with (
        running(FakePlacer([replica_at(engine.port)]), given=settings(limits=limits)) as it,
        RawClient(it.port) as client,
    ):
        await client.send(raw)
        assert (await client.answer(within_s=2.0)).status == 408
        assert await client.closed()


async def test_an_idle_connection_is_closed(engine: FakeEngine) -> None:
    limits = {"keep_alive_s": 0.15}
    async with (
        running(FakePlacer([replica_at(engine.port)]), given=settings(limits=limits)) as it,
        RawClient(it.port) as client,
    ):
        await client.send(get(b"/health"))
        assert (await client.answer()).status == 200
        assert await client.closed(2.0)


async def test_connections_are_bounded(engine: FakeEngine) -> None:
    async with (
        running(FakePlacer([replica_at(engine.port)]), given=settings(limits={"connections": 1})) as it,
        RawClient(it.port) as first,
    ):
        await first.send(get(b"/health"))
        assert (await first.answer()).status == 200
        async with RawClient(it.port) as second:
            assert (await second.answer()).status == 503
            assert await second.closed()
        await first.send(get(b"/health"))
        assert (await first.answer()).status == 200


async def test_a_line_end_too_many_is_forgiven(gateway: Running) -> None:
    async with RawClient(gateway.port) as client:
        await client.send(post(CHAT) + b"\r\n" + post(CHAT))
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 200


async def test_bodies_are_not_held_once_they_are_answered(engine: FakeEngine, gateway: Running) -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD + chunk(event("a")))
        await go_on.wait()
        await call.send(chunk(DONE) + END)

    engine.script = script
    async with RawClient(gateway.port) as client:
        await client.send(post({**CHAT, "user": "x" * 100_000}))
        await client.reader.readuntil(b'"a"')
        assert gateway.plane.open_exchanges == 1
        assert gateway.plane.budget.held == 0  # nothing can be sent again: a long stream does not hold its body
        go_on.set()
        await client.reader.readuntil(END)
    engine.script = always(OK)
    async with RawClient(gateway.port) as client:
        await client.send(post({**CHAT, "user": "x" * 100_000}))
        assert (await client.answer()).status == 200
        assert gateway.plane.budget.held == 0
    async with RawClient(gateway.port) as client:
        await client.send(post({**CHAT, "user": "x" * 100_000})[:50_000])
        async with asyncio.timeout(1):
            while not gateway.plane.budget.held:
                await asyncio.sleep(0.005)
    await gateway.quiet()
    assert gateway.plane.budget.held == 0
