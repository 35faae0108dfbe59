"""Exchanges end to end on loopback: what passes, what is tried again, how each of them ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import cast

import pytest

from gateway.errors import NoReplica, Refusal
from gateway.request import Intent, Outcome, Prompt, Usage
from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import FakeTokenizer, running, settings
from tests.fakes.engine import DONE, END, STREAM_HEAD, Call, FakeEngine, always, answer, chunk, event, stream, usage_event
from tests.fakes.placer import FakePlacer, FakeTicket, replica_at

OK = answer(b'{"ok":true,"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}')
STREAM = {**CHAT, "stream": True}


def dead_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# --- what passes ---


async def test_an_answer_passes_with_our_fields_added() -> None:
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)]), tokenizer=FakeTokenizer()) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        reply = await client.answer()
        ours = {name: value for name, value in reply.fields if name.startswith(b"x-trunkline-")}
        ticket = it.placer.tickets[0]
        assert ours == {
            b"x-trunkline-request-id": ticket.request_id.encode(),
            b"x-trunkline-replica": b"r1",
            b"x-trunkline-rank": b"0",
            b"x-trunkline-policy": b"fake",
            b"x-trunkline-reason": b"policy",
            b"x-trunkline-predicted-cached-tokens": b"16",
            b"x-trunkline-prompt-tokens": b"5",
        }
        assert reply.body == OK.partition(b"\r\n\r\n")[2]
        assert ticket.closes == [(Outcome.OK, Usage(5, 2, 4))]
        assert ticket.first_bytes == 1
        assert it.counts.requests == {("chat", 2): 1}
        assert engine.calls[0].values(b"x-request-id") == [ticket.request_id.encode()]


async def test_our_fields_can_be_switched_off() -> None:
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)]), given=settings(response_headers=False)) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        assert not [name for name, _ in (await client.answer()).fields if name.startswith(b"x-trunkline")]


async def test_an_engine_can_not_speak_for_us() -> None:
    """Its own x-trunkline-* would stand in front of ours; what our replicas say of their cache passes."""
    raw = OK.replace(b"\r\n", b"\r\nX-Trunkline-Replica: evil\r\nx-trunkline-other: 1\r\nX-Trunkline-Cached-Tokens: 3\r\n", 1)
    async with (
        FakeEngine(always(raw)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        reply = await client.answer()
        assert reply.values(b"x-trunkline-replica") == [b"r1"]
        assert reply.values(b"x-trunkline-other") == []
        assert reply.values(b"x-trunkline-cached-tokens") == [b"3"]


async def test_fields_pass_both_ways_separate_and_in_order() -> None:
    """FC-35, FC-36: and the base path, the query and the replica's own host are used."""
    raw = OK.replace(
        b"\r\n", b"\r\nSet-Cookie: a\r\nX-Trace: 1\r\nSet-Cookie: b\r\nX-Trace: 2\r\nConnection: X-S\r\nX-S: 1\r\n", 1
    )
    async with (
        FakeEngine(always(raw)) as engine,
        running(FakePlacer([replica_at(engine.port, base="/base")])) as it,
        RawClient(it.port) as client,
    ):
        fields = b"X-Tag: 1\r\nX-Tag: 2\r\nConnection: X-Mine\r\nX-Mine: 1\r\nX-Request-Id: mine\r\n"
        await client.send(post(CHAT, fields=fields, path=b"/v1/completions?a=b%20c"))
        reply = await client.answer()
        assert reply.values(b"set-cookie") == [b"a", b"b"]
        assert reply.values(b"x-trace") == [b"1", b"2"]
        assert reply.values(b"x-s") == []
        call = engine.calls[0]
        assert call.request_line == b"POST /base/v1/completions?a=b%20c HTTP/1.1"
        assert call.values(b"host") == [b"127.0.0.1:%d" % engine.port]
        assert call.values(b"x-tag") == [b"1", b"2"]
        assert call.values(b"x-mine") == call.values(b"connection") == []
        assert call.values(b"x-request-id") == [b"mine"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[],  "seed":123456789012345678901234567890, "x":{"\xc3\xa9":1e-7},"model":"m" }',
        b'\n{"stream":true,"stream_options":null,"messages":[{"role":"user","content":"\xe6\xbc\xa2"}],"b":1,"a":2}',
    ],
)
async def test_a_body_without_a_rewrite_goes_on_byte_for_byte(body: bytes) -> None:
    """FC-40."""
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(body))
        await client.answer()
        assert engine.calls[0].body == body


async def test_our_own_replicas_get_the_ids_in_front() -> None:
    """FC-40: behind the ids stand the client's own bytes."""
    body = json.dumps({"prompt": "hi", "n": 10**25}).encode()
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port, dialect="trunkline")]), tokenizer=FakeTokenizer()) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(body, path=b"/v1/completions"))
        await client.answer()
        assert engine.calls[0].body == b'{"prompt_token_ids":[1,2,3],' + body[1:]


@pytest.mark.parametrize(
    "status", [b"400 Bad Request", b"401 Unauthorized", b"404 Not Found", b"413 Too Large", b"422 Odd", b"500 Oops"]
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_an_engines_refusal_passes_unchanged(status: bytes, streaming: bool) -> None:
    """FC-30, FC-44: status, type and body, also for a request that asked for a stream; no retry."""
    raw = answer(b'{"error":{"message":"no"}}', status, b"Content-Type: application/problem+json\r\n")
    async with FakeEngine(always(raw)) as engine, FakeEngine(always(OK)) as other:
        placer = FakePlacer([replica_at(engine.port), replica_at(other.port, "r2")])
        async with running(placer) as it, RawClient(it.port) as client:
            await client.send(post({**CHAT, "stream": streaming}))
            reply = await client.answer()
            assert reply.status == int(status[:3])
            assert reply.body == b'{"error":{"message":"no"}}'
            assert reply.values(b"content-type") == [b"application/problem+json"]
            assert other.calls == []
            assert placer.outcomes == [Outcome.CLIENT_ERROR if status < b"5" else Outcome.ENGINE_ERROR]
            assert placer.tickets[0].first_bytes == 0
            engine.script = always(OK)
            await client.send(post(CHAT))
            assert (await client.answer()).status == 200


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"gzip, gzip"])
async def test_compressed_answers_pass_as_they_are(coding: bytes) -> None:
    """FC-37: header and bytes agree."""
    raw = answer(b"\x1f\x8bnot really", fields=b"Content-Encoding: %s\r\nContent-Type: application/json\r\n" % coding)
    async with (
        FakeEngine(always(raw)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT, fields=b"Accept-Encoding: gzip\r\n"))
        reply = await client.answer()
        assert (reply.body, reply.values(b"content-encoding")) == (b"\x1f\x8bnot really", [coding])
        assert engine.calls[0].values(b"accept-encoding") == [b"gzip"]


async def test_answers_without_a_body_stay_so() -> None:
    """FC-36."""
    raw = b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"
    async with (
        FakeEngine(always(raw)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        for _ in range(2):
            await client.send(post(CHAT))
            reply = await client.answer()
            assert reply.status == 204
            assert reply.values(b"content-length") == reply.values(b"transfer-encoding") == []
        assert engine.connections == 1


async def test_interim_answers_are_swallowed() -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK
    async with (
        FakeEngine(always(*(raw[i : i + 1] for i in range(len(raw))))) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        reply = await client.answer()
        assert (reply.status, reply.interim) == (200, [])


# --- streams and counts ---


async def test_a_stream_arrives_whole_for_a_cut_at_every_byte() -> None:
    """FC-41: over real sockets, head included, one byte per write as well."""
    events = [event("é"), event("漢"), event("🦜"), DONE]
    raw = stream(events)
    cuts = [[raw[:place], raw[place:]] for place in range(1, len(raw))] + [[raw[i : i + 1] for i in range(len(raw))]]

    async def script(call: Call) -> None:
        await call.send(*cuts[len(engine.calls) - 1])

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        for _ in cuts:
            await client.send(post({**STREAM, "stream_options": {}}))
            reply = await client.answer()
            assert reply.complete
            assert reply.body == b"".join(events)
        assert engine.connections == 1
        assert set(it.placer.outcomes) == {Outcome.OK}


@pytest.mark.parametrize(
    ("options", "meter", "asked", "seen"),
    [
        ({}, True, True, False),
        ({}, False, False, True),
        ({"stream_options": {"include_usage": True}}, True, True, True),
        ({"stream_options": {"include_usage": False}}, True, False, True),
        ({"stream_options": None}, True, False, True),
    ],
)
async def test_counts_are_seen_by_those_who_asked(options: dict[str, object], meter: bool, asked: bool, seen: bool) -> None:
    """FC-42: what the gateway asks for on its own account it takes out again; the terminator stays last."""

    async def script(call: Call) -> None:
        wanted = (json.loads(call.body).get("stream_options") or {}).get("include_usage")
        assert bool(wanted) is asked
        # This engine reports in any case, so that taking out what was not asked for would show.
        await call.send(stream([event("a"), event("b"), usage_event(7, 2, 4), DONE]))

    async with (
        FakeEngine(script) as engine,
        running(FakePlacer([replica_at(engine.port)]), given=settings(meter_streams=meter)) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post({**STREAM, **options}, fields=b"Accept-Encoding: gzip\r\n"))
        reply = await client.answer()
        body = event("a") + event("b") + (usage_event(7, 2, 4) if seen else b"") + DONE
        assert (reply.body, reply.complete) == (body, True)
        assert it.placer.tickets[0].closes == [(Outcome.OK, Usage(7, 2, 4))]
        assert engine.errors == []
        # What has to be looked into must not come compressed.
        assert engine.calls[0].values(b"accept-encoding") == ([] if not options and meter else [b"gzip"])


async def test_an_answer_without_a_length_is_complete_when_the_engine_closes() -> None:
    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b'{"ok"', b":true}")
        call.close()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        for _ in range(20):
            await client.send(post(CHAT))
            reply = await client.answer()
            assert (reply.json(), reply.complete) == ({"ok": True}, True)
        assert it.placer.outcomes == [Outcome.OK] * 20


# --- failures before the first byte ---


async def test_a_dead_engine_is_left_for_another() -> None:
    """FC-43: counted against it."""
    async with FakeEngine(always(OK)) as engine:
        placer = FakePlacer([replica_at(dead_port(), "dead"), replica_at(engine.port)])
        async with running(placer) as it, RawClient(it.port) as client:
            await client.send(post(CHAT))
            reply = await client.answer()
            assert (reply.status, reply.values(b"x-trunkline-replica")) == (200, [b"r1"])
            assert placer.tickets[0].faults == ["dead"]
            assert it.counts.retries == 1


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-le"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_an_engine_that_dies_before_it_answers_is_left_for_another(sent: bytes, how: str) -> None:
    """FC-43: after 0 bytes, and while its head is incomplete."""

    async def script(call: Call) -> None:
        await call.send(sent)
        getattr(call, how)()

    async with FakeEngine(script) as bad, FakeEngine(always(OK)) as good:
        placer = FakePlacer([replica_at(bad.port, "bad"), replica_at(good.port)])
        async with running(placer) as it, RawClient(it.port) as client:
            await client.send(post(CHAT))
            assert (await client.answer()).status == 200
            assert placer.tickets[0].faults == ["bad"]
            assert placer.outcomes == [Outcome.OK]


async def test_tries_are_bounded() -> None:
    placer = FakePlacer([replica_at(dead_port(), f"dead{number}") for number in range(5)])
    async with running(placer, given=settings(limits={"attempts": 2})) as it, RawClient(it.port) as client:
        await client.send(post(CHAT))
        reply = await client.answer()
        assert reply.status == 502
        assert reply.json()["error"]["code"] == "engine_unreachable"
        assert len(placer.tickets[0].tried) == 2
        assert placer.outcomes == [Outcome.ENGINE_ERROR]
        await client.send(post(CHAT))  # a refusal of this kind leaves the connection usable
        assert (await client.answer()).status == 502


@pytest.mark.parametrize("status", [b"503 Full", b"429 Too Many Requests"])
async def test_a_full_engine_is_asked_to_step_aside(status: bytes) -> None:
    """FC-31: another one answers; no fault."""
    full = answer(b'{"error":"queue full"}', status, b"Retry-After: 7\r\n")
    async with FakeEngine(always(full)) as busy, FakeEngine(always(OK)) as free:
        placer = FakePlacer([replica_at(busy.port, "busy"), replica_at(free.port)])
        async with running(placer) as it, RawClient(it.port) as client:
            for _ in range(3):
                await client.send(post(CHAT))
                assert (await client.answer()).status == 200
            assert all(ticket.faults == [] for ticket in placer.tickets)
            assert busy.connections == 1


async def test_when_all_are_full_the_answer_passes_unchanged() -> None:
    """FC-31: with its Retry-After; and the replica is used again as soon as it answers."""
    full = answer(b'{"error":"queue full"}', b"503 Full", b"Retry-After: 7\r\n")
    async with (
        FakeEngine(always(full)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        for _ in range(10):
            await client.send(post(CHAT))
            reply = await client.answer()
            assert (reply.status, reply.body, reply.values(b"retry-after")) == (503, b'{"error":"queue full"}', [b"7"])
        engine.script = always(OK)
        await client.send(post(CHAT))
        assert (await client.answer()).status == 200
        assert it.placer.outcomes == [Outcome.ENGINE_ERROR] * 10 + [Outcome.OK]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(NoReplica("m", 3.0), 503, "no_replica"), (Refusal(404, "no such model", code="model_not_found"), 404, "model_not_found")],
)
async def test_a_request_nobody_can_take_is_refused(error: Exception, status: int, code: str) -> None:
    """FC-33: at once, with a JSON body."""
    placer = FakePlacer([])
    placer.error = error
    async with running(placer) as it, RawClient(it.port) as client:
        await client.send(post(CHAT))
        reply = await client.answer()
        assert (reply.status, reply.json()["error"]["code"]) == (status, code)
        assert reply.values(b"retry-after") == ([b"3"] if status == 503 else [])
        assert it.counts.refused == {code: 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000,
    ],
)
async def test_an_answer_that_is_not_http_is_a_bad_gateway(raw: bytes) -> None:
    async with (
        FakeEngine(always(raw)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        assert (await client.answer()).status == 502
        assert it.placer.outcomes == [Outcome.ENGINE_ERROR]


async def test_an_engine_that_never_answers_times_out() -> None:
    """FC-46: before the first byte, by its own limit."""

    async def script(call: Call) -> None:
        await call.left(5)

    async with FakeEngine(script) as engine:
        placer = FakePlacer([replica_at(engine.port)])
        async with running(placer, given=settings(limits={"first_byte_s": 0.1})) as it, RawClient(it.port) as client:
            await client.send(post(CHAT))
            assert (await client.answer(within_s=2)).status == 504
            assert placer.outcomes == [Outcome.ENGINE_ERROR]
            async with asyncio.timeout(20):
                while engine.open:
                    await asyncio.sleep(0.005)


async def test_a_replica_that_can_not_be_connected_in_time_counts_as_dead() -> None:
    """FC-46: connecting has a limit of its own."""
    with socket.socket() as full, socket.socket() as filler:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        filler.setblocking(False)
        filler.connect_ex(full.getsockname())
        with socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(full.getsockname())
            placer = FakePlacer([replica_at(full.getsockname()[1])])
            async with running(placer, given=settings(limits={"connect_s": 0.1})) as it, RawClient(it.port) as client:
                await client.send(post(CHAT))
                assert (await client.answer(within_s=2)).status == 502


# --- failures after it ---


@pytest.mark.parametrize("how", ["reset", "close", "end without terminator"])
@pytest.mark.parametrize("torn", [b"", b'data: {"half', b'40\r\ndata: {"half'], ids=["clean", "torn event", "torn chunk"])
async def test_a_stream_that_breaks_ends_in_one_error_event(how: str, torn: bytes) -> None:
    """FC-43, FC-45: no retry; a well-formed event, then an end that HTTP shows as incomplete."""

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD, *(chunk(event(str(number))) for number in range(5)))
        if torn:
            await call.send(chunk(torn) if not torn.startswith(b"40") else torn)
        await asyncio.sleep(0.01)
        if how == "end without terminator" and not torn.startswith(b"40"):
            await call.send(END)
        elif how == "reset":
            call.reset()
        else:
            call.close()

    async with FakeEngine(script) as engine, FakeEngine(always(OK)) as other:
        placer = FakePlacer([replica_at(engine.port), replica_at(other.port, "r2")])
        async with running(placer) as it, RawClient(it.port) as client:
            await client.send(post(STREAM))
            reply = await client.answer()
            assert not reply.complete
            assert reply.events[:5] == [event(str(number)).strip() for number in range(5)]
            assert len(reply.events) == 6
            assert json.loads(reply.events[5].removeprefix(b"data: "))["error"]["code"] == "stream_cut"
            assert b"[DONE]" not in reply.body
            assert other.calls == []
            assert placer.outcomes == [Outcome.CUT]
            assert placer.tickets[0].faults == []


async def test_an_answer_that_breaks_is_cut_where_it_is() -> None:
    """FC-45, not streaming: the length tells that something is missing."""

    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b'{"half"')
        call.close()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        await client.send(post(CHAT))
        reply = await client.answer()
        assert (reply.complete, reply.body) == (False, b'{"half"')
        assert it.placer.outcomes == [Outcome.CUT]


@pytest.mark.parametrize(
    ("head", "half"),
    [
        (b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(b'{"half"')),
        (b"Content-Type: application/json\r\n\r\n", b'{"half"'),
        (b"Content-Type: text/event-stream\r\n\r\n", b"data: " + b"x" * 300_000),  # too long for an error event
    ],
    ids=["chunked", "close-delimited", "long event"],
)
async def test_a_cut_answer_is_no_whole_one_for_a_client_that_reads_to_the_end(head: bytes, half: bytes) -> None:
    """FC-45: where only the end of the connection ends an answer, a cut one ends in a reset."""
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\n" + head, half)
        await go_on.wait()
        call.reset()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        await client.send(post(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        await client.reader.readuntil(b"\r\n\r\n")
        wanted = len(half) if b"chunked" not in head else len(b'{"half"')
        got = 0
        while got < wanted:
            got += len(await client.reader.read(65536))
        go_on.set()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(1), 2)
        await it.quiet()
        assert it.placer.outcomes == [Outcome.CUT]


async def test_an_error_event_reaches_a_client_that_reads_to_the_end() -> None:
    """FC-45: the engine has told of its failure; a reset could throw that away."""
    error = b'data: {"error":{"message":"out of memory"}}\n\n'

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD, chunk(error))
        call.close()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        await client.send(post(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        reply = await client.answer()
        assert (reply.body, reply.complete) == (error, True)
        assert it.placer.outcomes == [Outcome.CUT]


async def test_an_error_event_of_the_engine_passes_and_counts_as_failed() -> None:
    """FC-45: one error event, the engine's own; without the terminator, as it came."""
    error = b'data: {"error":{"message":"out of memory"}}\n\n'
    async with (
        FakeEngine(always(stream([event("a"), error]))) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(STREAM))
        reply = await client.answer()
        assert reply.body == event("a") + error
        assert it.placer.outcomes == [Outcome.CUT]


async def test_a_stream_that_falls_silent_is_ended_and_a_slow_one_is_not() -> None:
    """FC-46: silence between bytes is limited, the whole stream is not."""

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD)
        for number in range(8):  # longer than the limit as a whole
            await asyncio.sleep(0.05)
            await call.send(chunk(event(str(number))))
        await call.left(5)

    async with FakeEngine(script) as engine:
        placer = FakePlacer([replica_at(engine.port)])
        async with running(placer, given=settings(limits={"silence_s": 0.2})) as it, RawClient(it.port) as client:
            await client.send(post(STREAM))
            reply = await client.answer(within_s=3)
            assert (len(reply.events), reply.complete) == (9, False)
            assert placer.outcomes == [Outcome.CUT]


# --- clients that leave or are slow ---


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_a_stream_stops_the_engine(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """FC-49: within a second, and it is no error."""
    left = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD, *(chunk(event(str(number))) for number in range(5)))
        if await call.left(1.0):
            left.set()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        async with RawClient(it.port) as client:
            await client.send(post(STREAM))
            await client.reader.readuntil(b'"4"')
            client.reset() if how == "reset" else client.writer.close()
            async with asyncio.timeout(20):
                await left.wait()
        await it.quiet()
        assert it.placer.outcomes == [Outcome.CLIENT_LEFT]
        assert it.plane.idle_engine_connections == 0
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_client_that_leaves_while_it_waits_stops_the_engine() -> None:
    """FC-50: before the engine's head."""
    left = asyncio.Event()

    async def script(call: Call) -> None:
        if await call.left(1.0):
            left.set()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        async with RawClient(it.port) as client:
            await client.send(post(CHAT))
            async with asyncio.timeout(20):
                while not engine.calls:
                    await asyncio.sleep(0.005)
        async with asyncio.timeout(20):
            await left.wait()
        await it.quiet()
        assert it.placer.outcomes == [Outcome.CLIENT_LEFT]


async def test_a_client_that_leaves_while_its_prompt_is_tokenized_sends_nothing() -> None:
    """FC-50: the thread ends its work, the result is for nobody."""
    working, go_on = threading.Event(), threading.Event()

    def work() -> None:
        working.set()
        go_on.wait(5)

    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)]), tokenizer=FakeTokenizer(0.5, work)) as it,
    ):
        async with RawClient(it.port) as client:
            await client.send(post(CHAT))
            await asyncio.to_thread(working.wait, 2)
        await it.quiet()
        go_on.set()
        async with RawClient(it.port) as client:
            await client.send(post(CHAT))
            assert (await client.answer()).status == 200
        assert len(engine.calls) == 1
        assert it.placer.outcomes == [Outcome.OK]


async def test_long_prompts_are_tokenized_beside_the_loop() -> None:
    """FC-53: the loop serves others meanwhile."""
    go_on = threading.Event()

    def work() -> None:
        go_on.wait(5)

    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)]), tokenizer=FakeTokenizer(0.5, work)) as it,
        RawClient(it.port) as slow,
        RawClient(it.port) as quick,
    ):
        await slow.send(post(CHAT))
        await quick.send(b"GET /health HTTP/1.1\r\nHost: g\r\n\r\n")
        assert (await quick.answer()).status == 200
        assert engine.calls == []
        go_on.set()
        assert (await slow.answer()).values(b"x-trunkline-prompt-tokens") == [b"5"]


async def test_a_client_that_does_not_read_slows_the_engine() -> None:
    """FC-51: what is held for it is bounded; it is dropped after its limit; a connection that ended paused is not deaf."""
    sent = 0
    piece = chunk(event("x" * 1000))

    async def script(call: Call) -> None:
        nonlocal sent
        await call.send(STREAM_HEAD)
        while sent < 64_000_000:
            call.writer.write(piece)
            await call.writer.drain()
            sent += len(piece)

    async with FakeEngine(script) as engine:
        placer = FakePlacer([replica_at(engine.port)])
        async with running(placer, given=settings(limits={"write_stall_s": 0.3})) as it:
            async with RawClient(it.port, receive_buffer=4096) as client:
                cast(asyncio.Transport, client.writer.transport).pause_reading()
                await client.send(post(STREAM))
                await it.quiet(4.0)
                assert placer.outcomes == [Outcome.CLIENT_LEFT]
            assert sent < 16_000_000


async def test_a_slow_client_gets_all_of_it_and_the_connection_stays_usable() -> None:
    events = [event("x" * 1000) for _ in range(2000)] + [DONE]

    async with (
        FakeEngine(always(stream(events))) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port, receive_buffer=4096) as client,
    ):
        for _ in range(2):
            await client.send(post(STREAM))
            await asyncio.sleep(0.1)  # the gateway has to pause reading from the engine meanwhile
            reply = await client.answer()
            assert reply.complete
            assert reply.body == b"".join(events)
        assert engine.connections == 1


async def test_a_pause_that_came_before_there_was_an_engine_is_applied_to_it() -> None:
    """FC-51: the client's side may fill up while its request is still being placed."""

    class Pausing(FakePlacer):
        def place(self, intent: Intent, prompt: Prompt, request_id: str) -> FakeTicket:
            (connection,) = it.plane._clients
            connection.pause_writing()
            return super().place(intent, prompt, request_id)

    async with (
        FakeEngine(always(OK)) as engine,
        running(Pausing([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(CHAT))
        async with asyncio.timeout(20):
            while not engine.calls:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        assert it.plane.open_exchanges == 1
        (connection,) = it.plane._clients
        connection.resume_writing()
        assert (await client.answer()).status == 200


# --- keys ---


@pytest.mark.parametrize(
    ("api_key", "pass_on", "authorization", "x_api_key"),
    [
        (None, False, [], []),
        ("", False, [], []),
        ("sk-engine", False, [b"Bearer sk-engine"], []),
        ("sk-engine", True, [b"Bearer sk-engine"], []),
        (None, True, [b"Bearer sk-client"], [b"sk-client-2"]),
    ],
)
async def test_the_clients_key_stays_here_unless_told_otherwise(
    api_key: str | None, pass_on: bool, authorization: list[bytes], x_api_key: list[bytes]
) -> None:
    """FC-60."""
    async with FakeEngine(always(OK)) as engine:
        placer = FakePlacer([replica_at(engine.port, api_key=api_key)])
        async with running(placer, given=settings(pass_authorization=pass_on)) as it, RawClient(it.port) as client:
            await client.send(post(CHAT, fields=b"Authorization: Bearer sk-client\r\nX-Api-Key: sk-client-2\r\n"))
            assert (await client.answer()).status == 200
            assert engine.calls[0].values(b"authorization") == authorization
            assert engine.calls[0].values(b"x-api-key") == x_api_key
