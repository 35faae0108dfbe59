"""OpenAI's responses as vLLM serves them, with its store: an answer can be fetched, gone on from, cancelled and deleted."""

from __future__ import annotations

import time
import uuid
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from replicas.api import parse
from replicas.errors import BadRequest, UnknownModel, brief
from replicas.mock.engine import MockEngine, MockHandle
from replicas.mock.named_events import answer_stream, answer_whole, begin, named
from replicas.mock.openai_api import as_json, chat_tokens
from replicas.openai_shapes import FinishReason, Usage

_STATUSES = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}
Turn = dict[str, object]


class _Create(msgspec.Struct, frozen=True, kw_only=True):
    input: str | list[dict[str, object]]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    store: bool | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    ignore_eos: bool | None = None


@dataclass
class _Stored:
    """A response that can be asked for. turns: what was said before it."""

    shape: ResponseShape
    turns: list[Turn] = field(default_factory=list)
    handle: MockHandle | None = None


class ResponseShape:
    """Answers of /v1/responses; one object per request, which is also what the store keeps."""

    def __init__(self, model: str, previous: str | None, *, tells_cached: bool) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self.text = ""
        self._item = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._previous = previous
        self._tells_cached = tells_cached
        self._created = int(time.time())
        self._number = -1
        self.now = self._response("in_progress", None)

    def start(self, usage: Usage) -> Iterator[bytes]:
        """The response without output, then an empty item with an empty part."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, {"response": self.now})
        item = {"id": self._item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", {"output_index": 0, "item": item})
        yield self._event("response.content_part.added", {**self._place(), "part": self._part()})

    def delta(self, text: str) -> bytes:
        """A piece of the part."""
        self.text += text
        return self._event("response.output_text.delta", {**self._place(), "delta": text, "logprobs": []})

    def end(self, reason: FinishReason, usage: Usage) -> Iterator[bytes]:
        """The whole part, the whole item, the whole response."""
        self.now = self._response(_STATUSES[reason], usage)
        yield self._event("response.output_text.done", {**self._place(), "text": self.text, "logprobs": []})
        yield self._event("response.content_part.done", {**self._place(), "part": self._part()})
        yield self._event("response.output_item.done", {"output_index": 0, "item": self._message()})
        kind = "response.incomplete" if reason == "length" else "response.completed"
        yield self._event(kind, {"response": self.now})

    def error(self, message: str) -> bytes:
        """The event that tells why nothing follows."""
        self.now = {**self._response("failed", None), "error": {"code": "server_error", "message": message}}
        return self._event("response.failed", {"response": self.now})

    def whole(self, text: str, reason: FinishReason, usage: Usage) -> dict[str, object]:
        """The response."""
        self.text = text
        self.now = self._response(_STATUSES[reason], usage)
        return self.now

    def cancelled(self) -> dict[str, object]:
        """The response with what it has, and no more to come."""
        self.now = {**self.now, "status": "cancelled"}
        return self.now

    def _event(self, kind: str, fields: dict[str, object]) -> bytes:
        self._number += 1
        return named(kind, {**fields, "sequence_number": self._number})

    def _place(self) -> dict[str, object]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _part(self) -> dict[str, object]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def _message(self) -> dict[str, object]:
        return {"id": self._item, "type": "message", "role": "assistant", "status": "completed", "content": [self._part()]}

    def _response(self, status: str, usage: Usage | None) -> dict[str, object]:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": reason,
            "instructions": None,
            "metadata": {},
            "model": self._model,
            "output": [self._message()] if usage is not None else [],
            "parallel_tool_calls": True,
            "previous_response_id": self._previous,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": self._counts(usage) if usage is not None else None,
        }

    def _counts(self, usage: Usage) -> dict[str, object]:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens if self._tells_cached else 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


class ResponsesRoutes:
    """Handlers over one engine, and what it stored in its present life."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine
        self._epoch = engine.epoch
        self._stored: dict[str, _Stored] = {}

    async def create(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        engine = self._engine
        body, _ = parse(await request.read(), _Create)
        turns = self._turns(body)
        handle = begin(
            engine,
            request,
            self._prompt(body, turns),
            model=body.model,
            max_tokens=body.max_output_tokens,
            salt=body.cache_salt,
            ignore_eos=body.ignore_eos is True,
        )
        model = body.model or engine.settings.model
        shape = ResponseShape(model, body.previous_response_id, tells_cached=engine.settings.tells_cached)
        stored = _Stored(shape, turns, handle)
        if body.store is not False:
            self._stored[shape.id] = stored
        try:
            if body.stream:
                return await answer_stream(request, handle, shape)
            return as_json(await answer_whole(handle, shape))
        finally:
            stored.handle = None
            engine.ended(handle)

    async def fetch(self, request: web.Request) -> web.Response:
        """GET /v1/responses/ID."""
        return as_json(self._of(request.match_info["id"]).shape.now)

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /v1/responses/ID."""
        response_id = self._of(request.match_info["id"]).shape.id
        del self._stored[response_id]
        return as_json({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: web.Request) -> web.Response:
        """POST /v1/responses/ID/cancel."""
        stored = self._of(request.match_info["id"])
        if stored.handle is None:
            raise BadRequest(f"response {brief(stored.shape.id)} is over", "response_id")
        self._engine.stop(stored.handle)
        return as_json(stored.shape.cancelled())

    def _of(self, response_id: str) -> _Stored:
        if self._epoch != self._engine.epoch:  # another process: its memory is empty
            self._stored.clear()
            self._epoch = self._engine.epoch
        if response_id not in self._stored:
            raise UnknownModel(f"response {brief(response_id)} is not stored here")
        return self._stored[response_id]

    def _turns(self, body: _Create) -> list[Turn]:
        turns: list[Turn] = []
        if body.previous_response_id is not None:
            before = self._of(body.previous_response_id)
            turns += [*before.turns, {"role": "assistant", "content": before.shape.text}]
        if isinstance(body.input, str):
            return [*turns, {"role": "user", "content": body.input}]
        return [*turns, *({"role": item.get("role"), "content": item.get("content")} for item in body.input)]

    def _prompt(self, body: _Create, turns: list[Turn]) -> array[int]:
        system: list[Turn] = [{"role": "system", "content": body.instructions}] if body.instructions else []
        return chat_tokens(self._engine, {"messages": [*system, *turns]})
