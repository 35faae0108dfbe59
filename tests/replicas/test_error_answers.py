"""Whatever a handler raises, a client gets the API's error body; and an engine that died answers 503 everywhere."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import ClientPayloadError, web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from gateway.tokenize.prompt import Tokenizer
from replicas.engine import Engine, EngineSettings
from replicas.error_answers import errors_in_api_shape
from replicas.errors import BadRequest, EngineStopped, StepFailed, UnknownModel, brief
from replicas.openai_shapes import CompletionShape
from replicas.server import Identity, Server
from replicas.step import Slice
from tests.fakes.replica_process import TEMPLATE, VOCABULARY
from tests.fakes.runner import FakeRunner
from tests.fakes.tokenizer_folder import write_tokenizer_folder


async def answer_to(error: BaseException) -> web.Response:
    async def fail(request: web.Request) -> web.StreamResponse:
        raise error

    answer = await errors_in_api_shape(make_mocked_request("POST", "/v1/completions"), fail)
    assert isinstance(answer, web.Response)
    return answer


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadRequest("no", "prompt"), 400),
        (UnknownModel("no"), 404),
        (web.HTTPRequestEntityTooLarge(max_size=1), 413),
        (StepFailed("no"), 500),
        (EngineStopped("no"), 503),
        (RuntimeError("surprise"), 500),
        (RecursionError(), 500),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_every_error_is_an_answer_in_the_api_shape(error: Exception, status: int) -> None:
    answer = await answer_to(error)
    assert (answer.status, answer.content_type) == (status, "application/json")
    assert isinstance(answer.body, bytes)
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}


async def test_a_surprise_is_logged_once_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    answer = await answer_to(RuntimeError("the secret of the house"))
    assert isinstance(answer.body, bytes)
    assert b"secret" not in answer.body
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "request failed method=POST path=/v1/completions")


@pytest.mark.parametrize("error", [ConnectionResetError(), asyncio.CancelledError()])
async def test_clients_that_left_are_not_answered(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(type(error)):
        await answer_to(error)
    assert not caplog.records


def make_server(runner: FakeRunner, folder: Path) -> tuple[Server, Engine]:
    tokenizer = Tokenizer.load(write_tokenizer_folder(folder, template=TEMPLATE))
    engine = Engine(runner, tokenizer.decode, EngineSettings(num_blocks=64))
    return Server(engine, tokenizer, Identity(model="fake", epoch="e", started=1)), engine


async def test_an_engine_that_died_answers_503_on_every_path_that_needs_it(tmp_path: Path) -> None:
    runner = FakeRunner(vocab_size=VOCABULARY)

    def die(slices: Sequence[Slice]) -> None:
        raise SystemExit("told to")

    runner.before_step = die
    server, engine = make_server(runner, tmp_path)
    async with asyncio.timeout(10), TestClient(TestServer(server.application())) as client:
        engine.start()
        assert (await client.get("/health")).status == 200
        for _ in range(2):  # the one that meets the death, and one after it
            answer = await client.post("/v1/completions", json={"prompt": "hello"})
            assert answer.status == 503
            assert "the engine is not running" in (await answer.json())["error"]["message"]
        assert (await client.post("/reset_prefix_cache")).status == 503
        assert (await client.get("/health")).status == 503
        await engine.shutdown("test over")


async def test_a_surprise_in_a_stream_ends_it_with_an_error_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FC-45: the head is out, so no status can say it; the text must not look complete."""

    def fail(self: CompletionShape, index: int, reason: str) -> bytes:
        raise RuntimeError("surprise")

    monkeypatch.setattr(CompletionShape, "closing", fail)
    server, engine = make_server(FakeRunner(vocab_size=VOCABULARY), tmp_path)
    async with asyncio.timeout(10), TestClient(TestServer(server.application())) as client:
        engine.start()
        answer = await client.post("/v1/completions", json={"prompt": "hello", "stream": True})
        received = await answer.content.readuntil(b"\n\n")
        while b"server_error" not in received:
            received += await answer.content.readuntil(b"\n\n")
        with pytest.raises(ClientPayloadError):  # the connection is closed without the end of the body
            received += await answer.content.read()
        assert b"[DONE]" not in received
        await engine.shutdown("test over")
    assert "stream failed" in caplog.text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (True, "True"),
        ("5", "'5'"),
        ([], "[]"),
        ({"a": [1]}, "{'a': [1]}"),
        ([[[[[[]]]]]], "[[[[...]]]]"),
    ],
)
def test_short_values_are_shown_as_they_are(value: object, shown: str) -> None:
    assert brief(value) == shown


@pytest.mark.parametrize(
    "value", ["s" * 10**6, ["s" * 10**6] * 9, {"k" * 999: 1}, dict.fromkeys(range(10**6), "v" * 99), 10**400]
)
def test_long_values_are_cut(value: object) -> None:
    assert len(brief(value)) <= 80
