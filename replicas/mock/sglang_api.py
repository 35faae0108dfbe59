"""What SGLang answers beside the OpenAI routes: /generate with cumulative chunks, server info, abort by prefix, flush."""

from __future__ import annotations

import uuid
from array import array
from typing import Annotated

import msgspec
from aiohttp import web

from replicas.answer import break_off
from replicas.api import parse, token_ids
from replicas.errors import BadRequest, ReplicaError
from replicas.generation import Generation
from replicas.mock.engine import MockEngine, MockHandle
from replicas.mock.faulty_http import arm
from replicas.mock.openai_api import as_json, checked_salt, length_of, rank_of, text_tokens
from replicas.mock.pool import namespace_of
from replicas.mock.vllm_api import port_of
from replicas.openai_shapes import DONE
from replicas.sampling import Sampling

VERSION = "0.5.22"  # whose events and routes these are
_DEFAULT_TOKENS = 128
_SAMPLING = Sampling()


class _Params(msgspec.Struct, frozen=True, kw_only=True):
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    min_new_tokens: int | None = None
    ignore_eos: bool | None = None


class _Generate(msgspec.Struct, frozen=True, kw_only=True):
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: _Params = _Params()
    stream: bool | None = None
    rid: str | None = None
    lora_path: str | None = None
    cache_salt: str | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None  # its older name


class _Abort(msgspec.Struct, frozen=True, kw_only=True):
    rid: str = ""
    abort_all: bool = False


class _Told:
    """What an answer has become so far, as SGLang writes it."""

    def __init__(self, request_id: str, tokens: int) -> None:
        self._id = request_id
        self._prompt_tokens = tokens
        self.text = ""

    def fields(self, handle: MockHandle, reason: str | None) -> dict[str, object]:
        """The whole text so far and its figures; output_ids are left out: nobody asked for them."""
        finish = {"type": reason, "length": handle.completion_tokens} if reason == "length" else {"type": reason}
        return {
            "text": self.text,
            "meta_info": {
                "id": self._id,
                "finish_reason": None if reason is None else finish,
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": handle.completion_tokens,
                "cached_tokens": handle.cached_tokens,
            },
        }


class SglangRoutes:
    """Handlers over one engine."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate."""
        engine = self._engine
        body, _ = parse(await request.read(), _Generate)
        prompt = self._prompt(body)
        params = body.sampling_params
        limit, reason = length_of(
            engine, params.max_new_tokens or _DEFAULT_TOKENS, params.min_new_tokens or 0, params.ignore_eos is True
        )
        adapter = engine.adapter_of(body.lora_path)
        rank = body.routed_dp_rank if body.routed_dp_rank is not None else body.data_parallel_rank
        request_id = body.rid or uuid.uuid4().hex
        handle = engine.submit(
            Generation(
                prompts=(prompt,),
                sampling=_SAMPLING,
                max_tokens=limit,
                salt=namespace_of(adapter, checked_salt(body.cache_salt)),
            ),
            adapter or engine.settings.model,
            reason,
            rank=rank_of(request, rank),
            request_id=request_id,
        )
        arm(engine, request, handle)
        told = _Told(request_id, len(prompt))
        try:
            return await (self._stream(request, handle, told) if body.stream else self._whole(handle, told))
        finally:
            engine.ended(handle)

    def _prompt(self, body: _Generate) -> array[int]:
        if body.input_ids is not None:
            return token_ids(body.input_ids, "input_ids")
        if body.text is None:
            raise BadRequest("text or input_ids must be given", "text")
        return text_tokens(self._engine, body.text, True)

    async def _whole(self, handle: MockHandle, told: _Told) -> web.Response:
        reason: str | None = None
        async for output in handle:
            told.text += output.text
            reason = output.finish_reason
        return as_json(told.fields(handle, reason))

    async def _stream(self, request: web.Request, handle: MockHandle, told: _Told) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            output = await anext(handle)
            await response.prepare(request)
            try:
                while True:
                    told.text += output.text
                    fields = told.fields(handle, output.finish_reason)
                    await response.write(b"data: " + msgspec.json.encode(fields) + b"\n\n")
                    if output.finish_reason is not None:
                        break
                    output = await anext(handle)
            except ReplicaError as error:
                await break_off(request, response, str(error))
            else:
                await response.write(DONE)
        except ConnectionError:
            if not response.prepared:
                raise
        return response

    async def server_info(self, request: web.Request) -> web.Response:
        """GET /server_info, of old /get_server_info."""
        engine = self._engine
        settings = engine.settings
        info: dict[str, object] = {
            "version": VERSION,
            "served_model_name": settings.model,
            "dp_size": settings.ranks,
            "page_size": settings.told_block_tokens,
            "disable_radix_cache": not settings.sizes.caching,
            "enable_cache_report": settings.tells_cached,
            "max_total_num_tokens": settings.sizes.num_blocks * settings.sizes.block_tokens,
            "max_running_requests": settings.sizes.max_running,
            "chunked_prefill_size": settings.sizes.max_batch_tokens,
            "context_length": settings.context_tokens,
        }
        if engine.streams:
            place = engine.streams[0].place
            events: dict[str, object] = {
                "publisher": "zmq",
                "endpoint_host": place.events.removeprefix("tcp://").rpartition(":")[0],
                "endpoint_port_base": port_of(place.events),
                "topic": settings.topic,
                "block_size": settings.sizes.block_tokens,
                "dp_size": settings.ranks,
            }
            info["kv_events"] = events | ({"replay_endpoint_port_base": port_of(place.replay)} if place.replay else {})
        return as_json(info)

    async def model_info(self, request: web.Request) -> web.Response:
        """GET /model_info."""
        return as_json({"model_path": self._engine.settings.model, "is_generation": True})

    async def flush_cache(self, request: web.Request) -> web.Response:
        """GET or POST /flush_cache; 400 while anything runs."""
        if not self._engine.reset():
            return web.Response(status=400, text="Cache not flushed: requests are running or waiting.\n")
        return web.Response(text="Cache flushed.\n")

    async def abort_request(self, request: web.Request) -> web.Response:
        """POST /abort_request: ids that begin with `rid`, or all of them."""
        body, _ = parse(await request.read(), _Abort)
        self._engine.abort(lambda one: body.abort_all or (body.rid != "" and one.startswith(body.rid)))
        return web.Response(text="")
