"""What vLLM answers beside the OpenAI routes, and what our own replicas answer in its place."""

from __future__ import annotations

import msgspec
from aiohttp import web

from replicas.api import parse
from replicas.errors import BadRequest
from replicas.mock.engine import MockEngine
from replicas.mock.openai_api import as_json

VERSION = "0.32.0"  # whose events and routes these are


class _Abort(msgspec.Struct, frozen=True, kw_only=True):
    request_ids: list[str]


class _Adapter(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: str
    lora_path: str = ""


class VllmRoutes:
    """Handlers over one engine."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine

    async def version(self, request: web.Request) -> web.Response:
        """GET /version."""
        return as_json({"version": VERSION})

    async def kv_event_sources(self, request: web.Request) -> web.Response:
        """GET /kv_event_sources: where each rank publishes; empty when nothing is published."""
        topic = self._engine.settings.topic
        return as_json(
            {
                str(rank): {
                    "publisher": "zmq",
                    "endpoint": stream.place.events,
                    "replay_endpoint": stream.place.replay,
                    "topic": topic,
                }
                for rank, stream in enumerate(self._engine.streams)
            }
        )

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """POST /reset_prefix_cache; refused, with success false, while any block is in use."""
        return as_json({"success": self._engine.reset()})

    async def abort_requests(self, request: web.Request) -> web.Response:
        """POST /inference/v1/abort_requests: end requests by the ids they came with."""
        body, _ = parse(await request.read(), _Abort)
        ids = frozenset(body.request_ids)
        return as_json({"aborted": self._engine.abort(lambda one: one != "" and one in ids)})

    async def load_adapter(self, request: web.Request) -> web.Response:
        """POST /v1/load_lora_adapter."""
        body, _ = parse(await request.read(), _Adapter)
        if not body.lora_name or "\0" in body.lora_name or body.lora_name == self._engine.settings.model:
            raise BadRequest(f"lora_name {body.lora_name!r:.80} can not be one", "lora_name")
        self._engine.adapters[body.lora_name] = body.lora_path
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload_adapter(self, request: web.Request) -> web.Response:
        """POST /v1/unload_lora_adapter."""
        body, _ = parse(await request.read(), _Adapter)
        if self._engine.adapters.pop(body.lora_name, None) is None:
            raise BadRequest(f"lora_name {body.lora_name!r:.80} is not loaded", "lora_name")
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def own_server_info(self, request: web.Request) -> web.Response:
        """GET /server_info of our own replicas."""
        engine = self._engine
        settings, streams = engine.settings, engine.streams
        return as_json(
            {
                "dialect": "trunkline",
                "model": settings.model,
                "epoch": engine.epoch,
                "block_tokens": settings.told_block_tokens,
                "num_blocks": settings.sizes.num_blocks,
                "max_model_len": settings.context_tokens,
                "max_batch_tokens": settings.sizes.max_batch_tokens,
                "max_running": settings.sizes.max_running,
                "kv_events_port": port_of(streams[0].place.events) if streams else None,
                "kv_replay_port": port_of(streams[0].place.replay) if streams else None,
            }
        )


def port_of(endpoint: str | None) -> int | None:
    """The port of a bound endpoint."""
    return None if endpoint is None else int(endpoint.rpartition(":")[2])
