"""All routes of one fake engine, by dialect."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import partial

from aiohttp import web

from replicas.error_answers import errors_in_api_shape
from replicas.mock.control import Bounce, Control
from replicas.mock.engine import MockEngine
from replicas.mock.faulty_http import before_the_answer
from replicas.mock.messages_api import MessagesRoutes, in_the_shape_of_messages
from replicas.mock.openai_api import OpenAIRoutes
from replicas.mock.pages import Pages
from replicas.mock.pooling_api import PoolingRoutes
from replicas.mock.responses_api import ResponsesRoutes
from replicas.mock.sglang_api import SglangRoutes
from replicas.mock.vllm_api import VllmRoutes

_BODY_LIMIT_BYTES = 128 * 1024 * 1024  # as our own engine: a gateway's 64 MiB and the ids it puts in front


def application(engine: MockEngine, bounce: Bounce) -> web.Application:
    """The aiohttp application. Run it with `handler_cancellation`, or clients that leave are not noticed (FC-49)."""
    app = web.Application(client_max_size=_BODY_LIMIT_BYTES, middlewares=[errors_in_api_shape])
    if engine.settings.clock_skew_s:
        app.on_response_prepare.append(partial(_dated, engine.settings.clock_skew_s))
    openai, pages, control = OpenAIRoutes(engine), Pages(engine), Control(engine, bounce)
    app.add_routes(
        [
            web.post("/v1/chat/completions", before_the_answer(engine, openai.chat)),
            web.post("/v1/completions", before_the_answer(engine, openai.completion)),
            web.get("/v1/models", pages.models),
            web.post("/tokenize", openai.tokenize),
            web.post("/detokenize", openai.detokenize),
            web.get("/health", pages.health),
            web.get("/metrics", pages.metrics),
            web.get("/mock/faults", control.show_faults),
            web.post("/mock/faults", control.set_faults),
            web.delete("/mock/faults", control.clear_faults),
            web.post("/mock/restart", control.restart),
            web.get("/mock/state", control.state),
            web.get("/mock/cache", control.cache),
        ]
    )
    app.add_routes(_further_apis(engine))
    app.add_routes(_of_sglang(engine) if engine.settings.dialect == "sglang" else _of_vllm(engine))
    return app


def _further_apis(engine: MockEngine) -> list[web.RouteDef]:
    messages, responses, pooling = MessagesRoutes(engine), ResponsesRoutes(engine), PoolingRoutes(engine)
    return [
        web.post("/v1/messages", before_the_answer(engine, in_the_shape_of_messages(messages.messages))),
        web.post("/v1/messages/count_tokens", in_the_shape_of_messages(messages.count_tokens)),
        web.post("/v1/responses", before_the_answer(engine, responses.create)),
        web.get("/v1/responses/{id}", responses.fetch),
        web.delete("/v1/responses/{id}", responses.delete),
        web.post("/v1/responses/{id}/cancel", responses.cancel),
        web.post("/v1/embeddings", before_the_answer(engine, pooling.embeddings)),
        web.post("/v1/rerank", before_the_answer(engine, pooling.rerank)),
        web.post("/rerank", before_the_answer(engine, pooling.rerank)),
    ]


async def _dated(skew_s: float, request: web.Request, response: web.StreamResponse) -> None:
    """The time of a clock that is wrong."""
    response.headers["Date"] = formatdate(time.time() + skew_s, usegmt=True)


def _of_vllm(engine: MockEngine) -> list[web.RouteDef]:
    vllm = VllmRoutes(engine)
    routes = [
        web.get("/version", vllm.version),
        web.get("/kv_event_sources", vllm.kv_event_sources),
        web.post("/reset_prefix_cache", vllm.reset_prefix_cache),
        web.post("/inference/v1/abort_requests", vllm.abort_requests),
        web.post("/abort_requests", vllm.abort_requests),
        web.post("/v1/load_lora_adapter", vllm.load_adapter),
        web.post("/v1/unload_lora_adapter", vllm.unload_adapter),
    ]
    return [*routes, web.get("/server_info", vllm.own_server_info)] if engine.settings.dialect == "trunkline" else routes


def _of_sglang(engine: MockEngine) -> list[web.RouteDef]:
    sglang, pages = SglangRoutes(engine), Pages(engine)
    return [
        web.post("/generate", before_the_answer(engine, sglang.generate)),
        web.get("/server_info", sglang.server_info),
        web.get("/get_server_info", sglang.server_info),
        web.get("/model_info", sglang.model_info),
        web.get("/get_model_info", sglang.model_info),
        web.get("/health_generate", pages.health),
        web.route("*", "/flush_cache", sglang.flush_cache),
        web.post("/abort_request", sglang.abort_request),
    ]
