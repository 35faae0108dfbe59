"""Each API over real sockets: what engines get, what clients get, and what is made of failures."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from gateway.auth import Caller, Keys
from gateway.request import Kind, Outcome, Usage
from tests.fakes.client import RawClient, get, post
from tests.fakes.dataplane import FakeTokenizer, running, settings
from tests.fakes.engine import END, STREAM_HEAD, Call, FakeEngine, always, answer, chunk, stream
from tests.fakes.placer import FakePlacer, replica_at
from tests.gateway.apis.test_streams import CASES, MESSAGES, NAMES, RESPONSES, Case

MESSAGE: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[Kind, tuple[bytes, dict[str, Any]]] = {
    Kind.MESSAGES: (b"/v1/messages", MESSAGE),
    Kind.RESPONSES: (b"/v1/responses", {"model": "m", "input": "hi"}),
    Kind.GENERATE: (b"/generate", {"text": "hi"}),
}
OK = answer(b'{"id":"resp_1","ok":true}')


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/v1/responses", Kind.RESPONSES, b'{"input":"hi",  "new":1.00000000000000000001}'),
        ("/v1/messages", Kind.MESSAGES, b'{"messages":[{"role":"user","content":"hi"}], "b":1,"a":2 }'),
        ("/v1/messages/count_tokens", Kind.COUNT_TOKENS, b'{"messages":[]}'),
        ("/v1/embeddings", Kind.EMBEDDINGS, b'{"input":[["odd"]]}'),
        ("/v1/rerank", Kind.RERANK, b'{"query":"q","documents":["\xe6\xbc\xa2"]}'),
        ("/rerank", Kind.RERANK, b"{}"),
        ("/tokenize", Kind.TOKENIZE, b'{"prompt":"x"}'),
        ("/detokenize", Kind.DETOKENIZE, b'{"tokens":[1]}'),
        ("/generate", Kind.GENERATE, b'{"text":"x","sampling_params":{"max_new_tokens":1}}'),
        ("/inference/v1/generate", Kind.TOKENS, b'{"token_ids":[1,2]}'),
        ("/score", Kind.PASS_THROUGH, b"\x00 anything \xff"),
    ],
)
@pytest.mark.parametrize("dialect", ["openai", "trunkline"])
async def test_a_request_goes_on_byte_for_byte(path: str, kind: Kind, body: bytes, dialect: str) -> None:
    """FC-40: no API is translated, and ids go in front of chats and completions only."""
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port, dialect=dialect)]), tokenizer=FakeTokenizer()) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(body, path=path.encode() + b"?x=1"))
        reply = await client.answer()
        assert (reply.status, reply.body) == (200, b'{"id":"resp_1","ok":true}')
        assert (engine.calls[0].body, engine.calls[0].request_line) == (body, b"POST %s?x=1 HTTP/1.1" % path.encode())
        ticket = it.placer.tickets[0]
        assert ticket.intent.kind is kind
        has_prompt = kind in (Kind.RESPONSES, Kind.MESSAGES, Kind.GENERATE, Kind.TOKENS)
        assert (ticket.prompt.tokens is not None) is has_prompt
        assert ticket.prompt.no_tokens_reason == (None if has_prompt else "no_prompt")
        assert it.counts.requests == {(kind.value, 2): 1}


@pytest.mark.parametrize("case", CASES, ids=NAMES)
async def test_a_stream_is_counted_and_never_asked_for_more(case: Case) -> None:
    """FC-42: `stream_options` belongs to chats and completions; these APIs count by themselves."""
    path, body = BODIES[case.kind]
    async with (
        FakeEngine(always(stream(case.events))) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post({**body, "stream": True}, path=path))
        reply = await client.answer()
        assert (reply.body, reply.complete) == (b"".join(case.events), True)
        assert json.loads(engine.calls[0].body) == {**body, "stream": True}
        assert it.placer.tickets[0].closes == [(Outcome.OK, case.usage)]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize("how", ["reset", "close", "end without terminator"])
async def test_a_stream_that_breaks_ends_in_one_error_event_of_its_api(case: Case, how: str) -> None:
    """FC-43, FC-45."""

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD, chunk(case.events[0]), chunk(b"data: {half"))
        await asyncio.sleep(0.01)
        if how == "end without terminator":
            await call.send(END)
        elif how == "reset":
            call.reset()
        else:
            call.close()

    path, body = BODIES[case.kind]
    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        await client.send(post({**body, "stream": True}, path=path))
        reply = await client.answer()
        assert not reply.complete
        assert len(reply.events) == 2
        data = json.loads(reply.events[1].split(b"data: ")[1])
        error = data if case.kind is Kind.RESPONSES else data["error"]
        name, wanted = {
            Kind.MESSAGES: (b"event: error\n", {"type": "api_error"}),
            Kind.RESPONSES: (b"event: error\n", {"type": "error", "code": "stream_cut"}),
            Kind.GENERATE: (b"data: ", {"code": "stream_cut"}),
        }[case.kind]
        assert reply.events[1].startswith(name)
        assert wanted.items() <= error.items()
        assert it.placer.outcomes == [Outcome.CUT]


@pytest.mark.parametrize(
    ("raw", "status", "kind"),
    [
        (get(b"/v1/messages"), 405, "invalid_request_error"),
        (post(b"{", path=b"/v1/messages"), 400, "invalid_request_error"),
        (post(MESSAGE, path=b"/v1/messages", fields=b"x-api-key: wrong\r\n"), 401, "authentication_error"),
        (post(b"x" * 2000, path=b"/v1/messages"), 413, "request_too_large"),
        (post(MESSAGE, path=b"/v1/messages"), 503, "overloaded_error"),
        (post(b"[]", path=b"/v1/messages/count_tokens"), 400, "invalid_request_error"),
    ],
)
async def test_the_gateways_refusals_have_the_shape_of_the_api(raw: bytes, status: int, kind: str) -> None:
    """Wherever they are made: before the body, while it comes, behind it."""
    keys = Keys({hashlib.sha256(b"right").digest(): Caller("a")})
    if b"x-api-key" not in raw:
        raw = raw.replace(b"\r\n", b"\r\nx-api-key: right\r\n", 1)
    given = settings(limits={"body_bytes": 1000})
    async with running(FakePlacer([]), given=given, keys=keys) as it, RawClient(it.port) as client:
        await client.send(raw)
        reply = await client.answer()
        assert reply.status == status
        assert reply.json().keys() == {"type", "error"}
        assert (reply.json()["type"], reply.json()["error"]["type"]) == ("error", kind)


@pytest.mark.parametrize("field", [b"x-api-key: sk-1", b"Authorization: Bearer sk-1", b"api-key: sk-1"])
async def test_a_key_is_taken_from_the_field_of_either_kind_of_client(field: bytes) -> None:
    """FC-60: and goes no further."""
    keys = Keys({hashlib.sha256(b"sk-1").digest(): Caller("a")})
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port, api_key="engine's")]), keys=keys) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(MESSAGE, path=b"/v1/messages", fields=field + b"\r\nanthropic-version: 2023-06-01\r\n"))
        assert (await client.answer()).status == 200
        assert b"sk-1" not in engine.calls[0].head
        assert engine.calls[0].values(b"authorization") == [b"Bearer engine's"]
        assert engine.calls[0].values(b"anthropic-version") == [b"2023-06-01"]


# --- what engines keep ---


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_is_remembered_with_its_replica(streamed: bool) -> None:
    raw = stream(RESPONSES.events) if streamed else OK
    async with (
        FakeEngine(always(raw)) as engine,
        running(FakePlacer([replica_at(engine.port, "r7")])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post({"input": "x", "stream": streamed}, path=b"/v1/responses"))
        await client.answer()
        engine.script = always(answer(b"{}"))
        follow = {"input": "y", "previous_response_id": "resp_1"}
        await client.send(post(follow, path=b"/v1/responses"))
        await client.answer()
        await client.send(get(b"/v1/responses/resp_1"))
        assert (await client.answer()).status == 200
        assert [(ticket.intent.pin, ticket.intent.seeks) for ticket in it.placer.tickets] == [
            (None, False),
            ("r7", False),
            ("r7", False),
        ]
        assert engine.calls[2].request_line == b"GET /v1/responses/resp_1 HTTP/1.1"
        it.plane.forget("r7")
        await client.send(get(b"/v1/responses/resp_1"))
        await client.answer()
        assert (it.placer.tickets[3].intent.pin, it.placer.tickets[3].intent.seeks) == (None, True)


async def test_a_response_nobody_is_known_to_have_is_looked_for() -> None:
    """Beyond the attempts of other requests; the last 404 is the answer when all say so."""
    missing = always(answer(b'{"error":{}}', b"404 Not Found"))
    async with (
        FakeEngine(missing) as first,
        FakeEngine(missing) as second,
        FakeEngine(missing) as third,
        FakeEngine(OK_IT) as last,
    ):
        engines = [first, second, third, last]
        placer = FakePlacer([replica_at(engine.port, f"r{number}") for number, engine in enumerate(engines)])
        async with running(placer, given=settings(limits={"attempts": 1})) as it, RawClient(it.port) as client:
            await client.send(get(b"/v1/responses/resp_1"))
            reply = await client.answer()
            assert (reply.status, reply.values(b"x-trunkline-replica")) == (200, [b"r3"])
            assert [len(engine.calls) for engine in engines] == [1, 1, 1, 1]
            await client.send(get(b"/v1/responses/resp_1"))
            assert (await client.answer()).status == 404  # this placer heeds no pins
            assert it.placer.tickets[1].intent.pin == "r3"
            last.script = missing
            await client.send(get(b"/v1/responses/resp_2"))
            reply = await client.answer()
            assert (reply.status, reply.body) == (404, b'{"error":{}}')
            assert placer.outcomes == [Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_ERROR]
            assert [ticket.faults for ticket in placer.tickets] == [[], [], []]


async def OK_IT(call: Call) -> None:
    await call.send(OK)


async def test_other_404s_are_not_tried_elsewhere() -> None:
    """FC-30."""
    missing = always(answer(b'{"error":{}}', b"404 Not Found"))
    async with FakeEngine(missing) as engine, FakeEngine(OK_IT) as other:
        placer = FakePlacer([replica_at(engine.port), replica_at(other.port, "r2")])
        async with running(placer) as it, RawClient(it.port) as client:
            for path, (_, body) in (("/v1/responses", BODIES[Kind.RESPONSES]), ("/v1/messages", BODIES[Kind.MESSAGES])):
                await client.send(post(body, path=path.encode()))
                assert (await client.answer()).status == 404
        assert other.calls == []


# --- what passes through ---


async def test_a_form_passes_with_its_bytes_and_its_model() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nalias\r\n' + (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff\r\n--b--\r\n'
    )
    raw = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    given = settings(models={"aliases": {"alias": "whisper"}})
    async with (
        FakeEngine(always(OK)) as engine,
        running(FakePlacer([replica_at(engine.port)]), given=given) as it,
        RawClient(it.port) as client,
    ):
        await client.send(raw + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert (await client.answer()).status == 200
        assert it.placer.tickets[0].intent.model == "whisper"
        assert engine.calls[0].body == body.replace(b"alias", b"whisper")
        assert engine.calls[0].values(b"content-type") == [b"multipart/form-data; boundary=b"]


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"])
async def test_any_method_passes(method: bytes) -> None:
    """FC-36: the answer to HEAD announces a body and has none, and the next answer is not taken for it."""
    head = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 25\r\n\r\n"
    raw = head if method == b"HEAD" else OK
    async with (
        FakeEngine(always(raw)) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        for _ in range(2):
            await client.send(get(b"/v1/audio/voices?model=m", method=method))
            reply = await client.answer(head_only=method == b"HEAD")
            assert (reply.status, reply.complete) == (200, True)
        assert [call.request_line.split(b" ")[0] for call in engine.calls] == [method] * 2
        assert engine.connections == 1
        assert it.placer.outcomes == [Outcome.OK] * 2
        assert it.placer.tickets[0].intent.model == "m"


async def test_what_is_not_listed_does_not_pass() -> None:
    """FC-58 in spirit: nobody administers engines through the data plane."""
    async with FakeEngine(always(OK)) as engine, running(FakePlacer([replica_at(engine.port)])) as it:
        for path in (b"/flush_cache", b"/v1/audio/%2e%2e/%2e%2e/flush_cache", b"/v1/audio/../../sleep", b"/v1/other"):
            async with RawClient(it.port) as client:
                await client.send(post(b"{}", path=path))
                assert (await client.answer()).status == 404
        assert engine.calls == []
        assert it.counts.refused == {"unknown_path": 4}


async def test_a_stream_that_passes_unread_is_cut_without_an_event() -> None:
    """FC-45: what would be an event of its API is not known; the framing says that it is incomplete."""

    async def script(call: Call) -> None:
        await call.send(STREAM_HEAD, chunk(b"data: 1\n\n"))
        call.close()

    async with FakeEngine(script) as engine, running(FakePlacer([replica_at(engine.port)])) as it, RawClient(it.port) as client:
        await client.send(post(b'{"stream":true}', path=b"/v1/audio/speech"))
        reply = await client.answer()
        assert (reply.body, reply.complete) == (b"data: 1\n\n", False)
        await it.quiet(20)
        assert it.placer.outcomes == [Outcome.CUT]


# --- questions ---


async def test_one_model_is_told_of() -> None:
    given = settings(models={"aliases": {"org/alias": "m"}})
    async with running(FakePlacer([]), given=given) as it, RawClient(it.port) as client:
        await client.send(get(b"/v1/models/org%2Falias") + get(b"/v1/models/org/alias") + get(b"/v1/models/x"))
        for _ in range(2):
            card = (await client.answer()).json()
            assert (card["id"], card["root"], card["object"]) == ("org/alias", "m", "model")
        missing = await client.answer()
        assert (missing.status, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert it.counts.requests == {("models", 2): 2, ("models", 4): 1}


async def test_counts_of_an_answer_in_one_piece() -> None:
    body = {"id": "m", "content": [], "usage": {"input_tokens": 3, "cache_read_input_tokens": 16, "output_tokens": 7}}
    async with (
        FakeEngine(always(answer(json.dumps(body).encode()))) as engine,
        running(FakePlacer([replica_at(engine.port)])) as it,
        RawClient(it.port) as client,
    ):
        await client.send(post(MESSAGE, path=b"/v1/messages"))
        await client.answer()
        assert it.placer.tickets[0].closes == [(Outcome.OK, Usage(19, 7, 16))]
        assert MESSAGES.usage == Usage(19, 7, 16)
