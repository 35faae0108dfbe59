"""Answers to one prompt as streams of named events, and the start of their generation: what messages and responses share."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Protocol

import msgspec
from aiohttp import web

from replicas.answer import usage_of
from replicas.errors import ReplicaError
from replicas.generation import Generation
from replicas.mock.engine import MockEngine, MockHandle
from replicas.mock.faulty_http import arm
from replicas.mock.openai_api import checked_salt, length_of, rank_of
from replicas.mock.pool import namespace_of
from replicas.openai_shapes import FinishReason, Usage
from replicas.sampling import Sampling

_SAMPLING = Sampling()
_encode = msgspec.json.Encoder().encode


class NamedShape(Protocol):
    """How one API writes an answer; one object per request, which remembers the text so far."""

    def start(self, usage: Usage) -> Iterator[bytes]:
        """The events before the first text."""
        ...

    def delta(self, text: str) -> bytes:
        """The event of one piece of text."""
        ...

    def end(self, reason: FinishReason, usage: Usage) -> Iterator[bytes]:
        """The events behind the last text."""
        ...

    def error(self, message: str) -> bytes:
        """The event that tells why nothing follows."""
        ...

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> dict[str, object]:
        """The answer in one piece."""
        ...


def named(kind: str, fields: dict[str, object]) -> bytes:
    """One event; its name stands in its data, too."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def begin(
    engine: MockEngine,
    request: web.Request,
    prompt: array[int],
    *,
    model: str | None,
    max_tokens: int | None,
    salt: str | None,
    ignore_eos: bool = False,
) -> MockHandle:
    """Put one prompt in line; raises BadRequest, UnknownModel and EngineStopped."""
    adapter = engine.adapter_of(model)
    limit, reason = length_of(engine, max_tokens, 0, ignore_eos)
    generation = Generation(
        prompts=(prompt,), sampling=_SAMPLING, max_tokens=limit, salt=namespace_of(adapter, checked_salt(salt))
    )
    request_id = str(request.headers.get("X-Request-Id", ""))
    chosen = rank_of(request, None)
    handle = engine.submit(generation, adapter or engine.settings.model, reason, rank=chosen, request_id=request_id)
    arm(engine, request, handle)
    return handle


async def answer_whole(handle: MockHandle, shape: NamedShape) -> dict[str, object]:
    """All of it; raises the engine's error."""
    text, reason = "", "stop"
    async for output in handle:
        text += output.text
        reason = output.finish_reason or reason
    return shape.whole(text, _reason(reason), usage_of(handle))


async def answer_stream(request: web.Request, handle: MockHandle, shape: NamedShape) -> web.StreamResponse:
    """Event by event, each in one write. The head waits for the first token, so that a refusal still has its status."""
    output = await anext(handle)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    try:
        await response.prepare(request)
        for event in shape.start(usage_of(handle)):
            await response.write(event)
        try:
            while output.finish_reason is None:
                if output.text:
                    await response.write(shape.delta(output.text))
                output = await anext(handle)
        except ReplicaError as error:
            await response.write(shape.error(str(error)))
            if request.transport is not None:
                request.transport.close()
            return response
        if output.text:
            await response.write(shape.delta(output.text))
        for event in shape.end(output.finish_reason, usage_of(handle)):
            await response.write(event)
    except ConnectionError:
        if not response.prepared:
            raise
    return response


def _reason(text: str) -> FinishReason:
    return "length" if text == "length" else "abort" if text == "abort" else "stop"
