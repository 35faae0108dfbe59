"""The client side over raw sockets: cuts, pipelining, smuggling, limits, time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest

from gateway.http1.client_side import ClientConnection
from gateway.request import Outcome
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
        later = post({**CHAT, "user": "x" * 200_000})
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
        with pytest.raises(ConnectionError):
            await client.send(post(CHAT) + b"x" * 30_000_000)
    await gateway.quiet()
    assert gateway.placer.outcomes == [Outcome.CLIENT_LEFT]
    assert gateway.plane.budget.waiting == 0


async def test_a_client_that_leaves_behind_pipelined_requests_is_noticed(engine: FakeEngine, gateway: Running) -> None:
    """FC-49, FC-50: reading never pauses behind an open exchange, so the engine is told within a second."""
    left: list[bool] = []

    async def script(call: Call) -> None:
        left.append(await call.left(5))

    engine.script = script
    for number, size in enumerate((100_000, 700_000), start=1):
        async with RawClient(gateway.port) as client:
            client.writer.write(post(CHAT) + post({**CHAT, "user": "x" * size}))
            await _until(partial(_placed, gateway, number))
        await gateway.quiet(1.0)
    await _until(lambda: len(left) == len(engine.calls))
    assert all(left)
    assert set(gateway.placer.outcomes) == {Outcome.CLIENT_LEFT}


async def test_what_waits_on_all_connections_is_bounded(engine: FakeEngine) -> None:
    async def script(call: Call) -> None:
        await call.left(5)

    engine.script = script
    limits = {"bodies_total_bytes": 1_200_000}
    async with running(FakePlacer([replica_at(engine.port)]), given=settings(limits=limits)) as it, AsyncExitStack() as stack:
        for _ in range(4):
            client = await stack.enter_async_context(RawClient(it.port))
            await client.send(post(CHAT), b"x" * 60_000)
        async with asyncio.timeout(20):
            while it.counts.open_connections > 2:
                await asyncio.sleep(0.005)
        assert it.plane.budget.waiting <= 150_000


async def test_a_client_that_does_not_read_its_answers_gets_no_more_of_them(gateway: Running) -> None:
    """What is written and not taken is bounded by the write buffer, however many requests are pipelined."""
    async with RawClient(gateway.port, receive_buffer=4096) as client:
        client.writer.write(get(b"/livez") * 500_000)
        (connection,) = await _clients(gateway, 1)
        await _until(lambda: connection.write_paused)
        seen = gateway.counts.requests[("health", 2)]
        await asyncio.sleep(0.05)
        assert gateway.counts.requests[("health", 2)] == seen
        assert connection._transport.get_write_buffer_size() < 100_000
        assert len(connection._input) < 600_000
        client.reset()
    await gateway.quiet()


async def test_all_pipelined_requests_are_answered_when_the_client_reads_late(gateway: Running) -> None:
    count = 20_000
    async with RawClient(gateway.port, receive_buffer=4096) as client:
        client.writer.write(get(b"/livez") * (count - 1) + get(b"/livez", fields=b"Connection: close\r\n"))
        (connection,) = await _clients(gateway, 1)
        await _until(lambda: connection.write_paused)
        async with asyncio.timeout(20):
            data = await client.reader.read(-1)
        assert data.count(b'{"status":"ok"}') == count


async def test_answers_that_are_added_are_no_sign_of_a_client_that_reads(engine: FakeEngine) -> None:
    """The write limit runs on while the gateway adds to what a client does not take."""
    limits = {"write_stall_s": 0.3}
    async with (
        running(FakePlacer([replica_at(engine.port)]), given=settings(limits=limits)) as it,
        RawClient(it.port, receive_buffer=4096) as client,
    ):
        client.writer.write(get(b"/livez") * 200_000)
        (connection,) = await _clients(it, 1)
        await _until(lambda: connection.write_paused)
        for _ in range(40):
            connection.write(b"x")
            await asyncio.sleep(0.02)
        assert it.counts.open_connections == 0
        assert it.counts.refused == {}  # it would not read the refusal either


async def test_one_turn_of_the_loop_takes_up_one_pipelined_request(gateway: Running) -> None:
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns < 10_000:
            asyncio.get_running_loop().call_soon(turn)

    async with RawClient(gateway.port) as client:
        client.writer.write(get(b"/livez") * 500)
        turn()
        await _until(lambda: gateway.counts.requests.get(("health", 2)) == 500)
        assert turns > 450


def _placed(gateway: Running, count: int) -> bool:
    return len(gateway.placer.tickets) == count


async def _clients(gateway: Running, count: int) -> list[ClientConnection]:
    await _until(lambda: len(gateway.plane._clients) == count)
    return list(gateway.plane._clients)


async def _until(condition: Callable[[], bool], within_s: float = 3.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


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


async def test_tiny_chunks_are_read_in_many_turns_and_refused_when_they_go_on(gateway: Running) -> None:
    """No read of small chunks holds up the loop, and what they are held in is not a multiple of them."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
    few = b'{"user":"' + b"x" * 8_000 + b'"}'
    async with RawClient(gateway.port) as client:
        await client.send(head + b"".join(b"1\r\n%c\r\n" % byte for byte in few) + b"0\r\n\r\n" + post(CHAT))
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
    async with RawClient(gateway.port) as client:
        client.writer.write(head + b"2\r\nxx\r\n" * 100_000)
        reply = await client.answer()
        assert (reply.status, reply.json()["error"]["code"]) == (400, "chunks_too_small")
    await gateway.quiet(3.0)
    assert gateway.plane.budget.held == 0


async def test_announced_bytes_take_nothing_from_others(engine: FakeEngine) -> None:
    limits = {"body_bytes": 1_000_000, "bodies_total_bytes": 2_000_000}
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 1000000\r\n\r\nx"
    async with running(FakePlacer([replica_at(engine.port)]), given=settings(limits=limits)) as it, AsyncExitStack() as stack:
        for _ in range(20):
            client = await stack.enter_async_context(RawClient(it.port))
            await client.send(head)
        await _until(lambda: it.plane.budget.held == 20)
        other = await stack.enter_async_context(RawClient(it.port))
        await other.send(post({**CHAT, "user": "x" * 900_000}))
        assert (await other.answer()).status == 200


@pytest.mark.parametrize("path", [b"/livez", b"/health", b"/v1/models"])
async def test_questions_to_the_gateway_take_no_body_to_speak_of(path: bytes, gateway: Running) -> None:
    small = b"GET %s HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\n{}" % path
    async with RawClient(gateway.port) as client:
        await client.send(small)
        assert (await client.answer()).status == 200
    for framing in (b"Content-Length: 4097\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n1001\r\n"):
        async with RawClient(gateway.port) as client:
            await client.send(b"GET %s HTTP/1.1\r\nHost: g\r\n" % path + framing)
            assert (await client.answer()).status == 413
            assert await client.closed()


async def test_a_body_that_trickles_makes_no_progress(engine: FakeEngine) -> None:
    """One byte now and then holds nothing for longer than the limit."""
    limits = {"body_stall_s": 0.3}
    async with (
        running(FakePlacer([replica_at(engine.port)]), given=settings(limits=limits)) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post({**CHAT, "user": "x" * 1000})[:-900])
        answer = asyncio.ensure_future(client.answer(within_s=2.0))
        while not answer.done():
            client.writer.write(b"x")
            await asyncio.sleep(0.03)
        assert (await answer).status == 408


async def test_a_body_that_comes_fast_enough_may_take_longer_than_the_limit(engine: FakeEngine) -> None:
    limits = {"body_stall_s": 0.3}
    raw = post({**CHAT, "user": "x" * 300_000})
    async with (
        running(FakePlacer([replica_at(engine.port)]), given=settings(limits=limits)) as it,
        RawClient(it.port) as client,
    ):
        for start in range(0, len(raw), 15_000):
            await client.send(raw[start : start + 15_000])
            await asyncio.sleep(0.03)
        assert (await client.answer()).status == 200


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
        (post(CHAT, path=b"/v1/fine_tuning"), 404, ""),
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


@pytest.mark.parametrize("path", [b"/nothing", b"/v1/completions"])
async def test_head_requests_that_are_refused_get_no_body_either(path: bytes, gateway: Running) -> None:
    async with RawClient(gateway.port) as client:
        await client.send(get(path, method=b"HEAD") + get(b"/livez"))
        assert (await client.answer(head_only=True)).status in (404, 405)
        assert (await client.answer()).status == 200


async def test_a_refused_head_without_a_body_leaves_the_connection_open(gateway: Running) -> None:
    shots = (get(b"/nothing"), get(b"/v1/completions"), get(b"/nothing", fields=b"Content-Length: 0\r\n"))
    async with RawClient(gateway.port) as client:
        await client.send(b"".join(shots) + post(CHAT))
        assert [(await client.answer()).status for _ in range(4)] == [404, 405, 404, 200]
        await client.send(get(b"/nothing", fields=b"Connection: close\r\n"))
        assert (await client.answer()).values(b"connection") == [b"close"]
        assert await client.closed()


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
        async with asyncio.timeout(20):
            while not gateway.plane.budget.held:
                await asyncio.sleep(0.005)
    await gateway.quiet()
    assert gateway.plane.budget.held == 0
