"""Clients that speak TLS get what clients in the clear get: the same strictness, limits and flow control, and a visible end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from gateway.config import ListenTls
from gateway.tls import Certificates, Swapped
from tests.fakes.certificates import Authority, Pair, has_openssl
from tests.fakes.client import CHAT, RawClient, get, post
from tests.fakes.dataplane import Running, running, settings
from tests.fakes.engine import DONE, END, STREAM_HEAD, Call, FakeEngine, always, answer, chunk, event, stream
from tests.fakes.placer import FakePlacer, replica_at

pytestmark = pytest.mark.skipif(not has_openssl(), reason="needs openssl")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


@pytest.fixture
def trusted(authority: Authority) -> ssl.SSLContext:
    return authority.trusted()


def context_of(pair: Pair, **values: Any) -> Swapped:
    return Certificates().server(ListenTls(str(pair.cert), str(pair.key), **values), "listen.tls")


@asynccontextmanager
async def before(engine: FakeEngine, pair: Pair, *, handshake_s: float = 10.0, **limits: float) -> AsyncIterator[Running]:
    placer = FakePlacer([replica_at(engine.port)])
    given = settings(limits=limits)
    async with running(placer, given=given, tls=context_of(pair), handshake_s=handshake_s) as it:
        yield it


async def alive(port: int, tls: ssl.SSLContext) -> int:
    """The status of one small request on a connection of its own."""
    async with RawClient(port, tls=tls) as client:
        await client.send(get(b"/health"))
        return (await client.answer()).status


@pytest.fixture
def streaming() -> FakeEngine:
    return FakeEngine(always(stream([event("a"), event("b"), DONE])))


async def test_requests_one_after_another_and_streams(pair: Pair, trusted: ssl.SSLContext, streaming: FakeEngine) -> None:
    async with streaming as engine, before(engine, pair) as it, RawClient(it.port, tls=trusted) as client:
        for _ in range(3):
            await client.send(post({**CHAT, "stream": True}))
            reply = await client.answer()
            assert (reply.status, reply.complete, reply.events[-1]) == (200, True, b"data: [DONE]")
        await client.send(post(CHAT) + get(b"/v1/models") + post(b"{"))
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 400]
        assert client.writer.get_extra_info("ssl_object").version() == "TLSv1.3"


async def test_a_large_body_arrives_whole_and_a_large_answer_too(pair: Pair, trusted: ssl.SSLContext) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 3_000_000 + b'"}]}'
    big = b'{"text":"' + b"y" * 5_000_000 + b'"}'
    async with FakeEngine(always(answer(big))) as engine, before(engine, pair) as it, RawClient(it.port, tls=trusted) as client:
        await client.send(post(body))
        reply = await client.answer(within_s=20)
        assert reply.body == big
        assert engine.calls[0].body == body


SMUGGLED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n%s\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: +5\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
    ],
)
async def test_shapes_that_can_be_read_in_two_ways_are_refused(pair: Pair, trusted: ssl.SSLContext, fields: bytes) -> None:
    """FC-61."""
    async with FakeEngine(always(answer(b"{}"))) as engine, before(engine, pair) as it:
        async with RawClient(it.port, tls=trusted) as client:
            await client.send(SMUGGLED % fields)
            reply = await client.answer()
            assert (reply.status, reply.values(b"connection")) == (400, [b"close"])
        assert engine.calls == []


async def test_a_body_too_large_gets_its_answer_before_the_end(pair: Pair, trusted: ssl.SSLContext) -> None:
    """TLS has no half-closed state: the answer is read, then the connection ends."""
    async with FakeEngine(always(answer(b"{}"))) as engine, before(engine, pair, body_bytes=1000) as it:
        async with RawClient(it.port, tls=trusted) as client:
            head = post(b"x" * 200_000)
            await client.send(head[:5000])
            assert (await client.answer()).status == 413
            assert await client.closed(within_s=20)
        await it.quiet(20)


async def test_a_slow_reader_slows_its_engine(pair: Pair, trusted: ssl.SSLContext) -> None:
    """FC-51: nothing piles up in the gateway."""
    sent = 0

    async def script(call: Call) -> None:
        nonlocal sent
        call.writer.write(STREAM_HEAD)
        try:
            for _ in range(2000):
                call.writer.write(chunk(event("z" * 16_000)))
                await call.writer.drain()
                sent += 16_000
        except ConnectionError:
            return
        call.writer.write(chunk(DONE) + END)

    async with FakeEngine(script) as engine, before(engine, pair) as it:
        client = RawClient(it.port, tls=trusted, receive_buffer=32_768)
        async with client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(post({**CHAT, "stream": True}))
            seen = -1
            async with asyncio.timeout(20):
                while sent == 0 or sent != seen:  # until it stands still
                    seen = sent
                    await asyncio.sleep(0.1)
            assert sent < 16_000_000
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            reply = await client.answer(within_s=20)
            assert reply.complete
            assert len(reply.body) > 32_000_000


async def test_a_client_that_leaves_ends_its_request(pair: Pair, trusted: ssl.SSLContext) -> None:
    """FC-49: by the end of TLS, and by the end of TCP without it."""
    gone = asyncio.Queue[bool]()

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD, chunk(event("a")))
        gone.put_nowait(await call.left(20))

    async with FakeEngine(script) as engine, before(engine, pair) as it:
        for leave in ("close", "abort"):
            async with RawClient(it.port, tls=trusted) as client:
                await client.send(post({**CHAT, "stream": True}))
                await client.reader.readuntil(b"data: ")
                client.writer.close() if leave == "close" else client.writer.transport.abort()
                assert await asyncio.wait_for(gone.get(), 20)
        await it.quiet(20)


async def test_an_answer_that_only_its_end_delimits_is_cut_visibly(pair: Pair, trusted: ssl.SSLContext) -> None:
    """FC-45: an orderly end of TLS would be the end of the answer."""

    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhalf an ans")
        call.reset()

    async with FakeEngine(script) as engine, before(engine, pair) as it, RawClient(it.port, tls=trusted) as client:
        await client.send(b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asyncio.wait_for(client.reader.read(), 20)


async def test_a_handshake_has_its_time(pair: Pair) -> None:
    async with (
        FakeEngine(always(answer(b"{}"))) as engine,
        before(engine, pair, handshake_s=0.2) as it,
        RawClient(it.port) as client,
    ):
        assert await client.closed(within_s=20)


async def test_plain_http_on_the_port_is_no_answer_and_no_noise(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    async with FakeEngine(always(answer(b"{}"))) as engine, before(engine, pair) as it:
        async with RawClient(it.port) as client:
            await client.send(get(b"/health"))
            data = await asyncio.wait_for(client.reader.read(), 20)
            assert not data.startswith(b"HTTP/")
        await it.quiet(20)
        assert caplog.records == []


async def test_handshakes_beyond_all_bounds_are_cut_off(pair: Pair, trusted: ssl.SSLContext) -> None:
    context = context_of(pair)
    context.most = 2
    placer = FakePlacer([])
    async with running(placer, tls=context) as it:
        async with RawClient(it.port), RawClient(it.port):
            await asyncio.sleep(0.05)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await alive(it.port, trusted)
        status = 0
        async with asyncio.timeout(20):
            while not status:
                with suppress(ConnectionError, ssl.SSLError):
                    status = await alive(it.port, trusted)
        assert status == 200


async def test_only_clients_with_a_certificate_where_that_is_asked(authority: Authority, pair: Pair, tmp_path: Any) -> None:
    other = Authority(tmp_path, "other")
    context = context_of(pair, client_ca=str(authority.pair.cert), min_version="1.3")
    async with running(FakePlacer([]), tls=context) as it:
        assert await alive(it.port, authority.trusted(authority.issue("client"))) == 200
        for shown in (None, other.issue("client")):
            with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
                await alive(it.port, authority.trusted(shown))
        old = authority.trusted(authority.issue("client"))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await alive(it.port, old)


async def test_a_client_that_offers_http2_gets_http1(pair: Pair, trusted: ssl.SSLContext) -> None:
    trusted.set_alpn_protocols(["h2", "http/1.1"])
    async with running(FakePlacer([]), tls=context_of(pair)) as it, RawClient(it.port, tls=trusted) as client:
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        sock: socket.socket = client.writer.get_extra_info("socket")
        assert sock is not None
