"""Anthropic's messages as vLLM serves them: a chat of its own, in that API's words."""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterator

import msgspec
from aiohttp import web

from replicas.api import parse
from replicas.error_answers import Handler
from replicas.errors import BadRequest, EngineStopped, ReplicaError, UnknownModel
from replicas.mock.engine import MockEngine
from replicas.mock.named_events import answer_stream, answer_whole, begin, named
from replicas.mock.openai_api import as_json, chat_tokens
from replicas.openai_shapes import FinishReason, Usage

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "abort": "end_turn"}
_ERRORS: tuple[tuple[type[ReplicaError], int, str], ...] = (
    (BadRequest, 400, "invalid_request_error"),
    (UnknownModel, 404, "not_found_error"),
    (EngineStopped, 503, "overloaded_error"),
    (ReplicaError, 500, "api_error"),
)


class _Messages(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[dict[str, object]]
    model: str | None = None
    system: str | list[object] | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    cache_salt: str | None = None


class MessageShape:
    """Answers of /v1/messages. Tokens found in the cache are told beside those that were computed."""

    def __init__(self, model: str, *, tells_cached: bool) -> None:
        self._model = model
        self._tells_cached = tells_cached
        self._id = f"msg_{uuid.uuid4().hex}"

    def start(self, usage: Usage) -> Iterator[bytes]:
        """The message without content, then an empty block."""
        yield named("message_start", {"message": self._message([], None, self._counts(usage, 0))})
        yield named("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
        yield named("ping", {})

    def delta(self, text: str) -> bytes:
        """A piece of the block."""
        return named("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})

    def end(self, reason: FinishReason, usage: Usage) -> Iterator[bytes]:
        """The end of the block and of the message; its counts are those of the output alone."""
        yield named("content_block_stop", {"index": 0})
        delta = {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}
        yield named("message_delta", {"delta": delta, "usage": {"output_tokens": usage.completion_tokens}})
        yield named("message_stop", {})

    def error(self, message: str) -> bytes:
        """The event that tells why nothing follows."""
        return named("error", {"error": {"type": "api_error", "message": message}})

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> dict[str, object]:
        """The message with its one block."""
        content: list[object] = [{"type": "text", "text": text}]
        return self._message(content, _STOP_REASONS[reason], self._counts(usage, usage.completion_tokens))

    def _message(self, content: list[object], reason: str | None, counts: dict[str, int]) -> dict[str, object]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        return {**head, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": counts}

    def _counts(self, usage: Usage, output: int) -> dict[str, int]:
        if not self._tells_cached:
            return {"input_tokens": usage.prompt_tokens, "output_tokens": output}
        cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.cached_tokens}
        return {"input_tokens": usage.prompt_tokens - usage.cached_tokens, **cached, "output_tokens": output}


class MessagesRoutes:
    """Handlers over one engine."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages."""
        engine = self._engine
        body, _ = parse(await request.read(), _Messages)
        handle = begin(engine, request, self._prompt(body), model=body.model, max_tokens=body.max_tokens, salt=body.cache_salt)
        shape = MessageShape(body.model or engine.settings.model, tells_cached=engine.settings.tells_cached)
        try:
            if body.stream:
                return await answer_stream(request, handle, shape)
            return as_json(await answer_whole(handle, shape))
        finally:
            engine.ended(handle)

    async def count_tokens(self, request: web.Request) -> web.Response:
        """POST /v1/messages/count_tokens."""
        body, _ = parse(await request.read(), _Messages)
        self._engine.adapter_of(body.model)
        return as_json({"input_tokens": len(self._prompt(body))})

    def _prompt(self, body: _Messages) -> array[int]:
        system = body.system if isinstance(body.system, str) else "".join(_texts(body.system or [], "system"))
        turns: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
        for number, message in enumerate(body.messages):
            content = message.get("content")
            if isinstance(content, list):
                content = "\n".join(_texts(content, f"messages[{number}].content"))
            turns.append({"role": message.get("role"), "content": content})
        return chat_tokens(self._engine, {"messages": turns})


def in_the_shape_of_messages(handler: Handler) -> Handler:
    """A handler whose errors are written as Anthropic's clients expect them."""

    async def shaped(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ReplicaError as error:
            status, kind = next((status, kind) for type_, status, kind in _ERRORS if isinstance(error, type_))
            body = {"type": "error", "error": {"type": kind, "message": str(error)}}
            return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")

    return shaped


def _texts(blocks: list[object], where: str) -> list[str]:
    texts = [block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None for block in blocks]
    if any(not isinstance(text, str) for text in texts):
        raise BadRequest(f"{where} holds blocks other than text, which this engine lacks", where)
    return [str(text) for text in texts if text]
