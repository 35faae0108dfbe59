"""Pages that are asked of every engine: models, health, metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from aiohttp import web

from replicas.errors import EngineStopped
from replicas.mock.engine import MockEngine
from replicas.mock.openai_api import as_json
from replicas.mock.rank import Rank

_OWNERS = {"vllm": "vllm", "sglang": "sglang", "trunkline": "trunkline"}


class Pages:
    """Handlers over one engine."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models: the base model, then a card for each adapter."""
        engine = self._engine
        base = engine.settings.model
        common = {"object": "model", "created": engine.started, "owned_by": _OWNERS[engine.settings.dialect]}
        cards = [{"id": base, **common, "root": base, "parent": None, "max_model_len": engine.settings.context_tokens}]
        cards += [{"id": name, **common, "root": path, "parent": base} for name, path in engine.adapters.items()]
        return as_json({"object": "list", "data": cards})

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: 200 while requests are taken."""
        engine = self._engine
        if (wait_s := engine.faults.hit("slow_health")) is not None:
            await asyncio.sleep(wait_s)
        if (status := engine.faults.hit("sick")) is not None:
            return web.Response(status=int(status))
        if engine.draining:
            raise EngineStopped("the engine is shutting down")
        return web.Response()

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics."""
        lines = _sglang(self._engine) if self._engine.settings.dialect == "sglang" else _vllm(self._engine)
        text = "\n".join([*lines, ""])
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _vllm(engine: MockEngine) -> Iterator[str]:
    """Under vLLM's names, a series for each rank. KV use counts blocks held by requests only, as there."""
    rows: tuple[tuple[str, str, Callable[[Rank], float]], ...] = (
        ("num_requests_running", "gauge", lambda rank: rank.running),
        ("num_requests_waiting", "gauge", lambda rank: rank.waiting),
        ("kv_cache_usage_perc", "gauge", lambda rank: rank.pool.used_blocks / rank.pool.num_blocks),
        ("gpu_cache_usage_perc", "gauge", lambda rank: rank.pool.used_blocks / rank.pool.num_blocks),
        ("prefix_cache_queries_total", "counter", lambda rank: rank.counts.prompt_tokens),
        ("prefix_cache_hits_total", "counter", lambda rank: rank.counts.cached_tokens),
        ("prompt_tokens_total", "counter", lambda rank: rank.counts.prompt_tokens),
        ("generation_tokens_total", "counter", lambda rank: rank.counts.generated_tokens),
        ("num_preemptions_total", "counter", lambda rank: rank.counts.preemptions),
        ("request_success_total", "counter", lambda rank: rank.counts.finished),
    )
    for name, kind, value in rows:
        yield f"# TYPE vllm:{name} {kind}"
        for rank in engine.ranks:
            yield f'vllm:{name}{{engine="{rank.number}",model_name="{_label(engine)}"}} {value(rank)}'
    sizes = engine.settings.sizes
    info = f'block_size="{engine.settings.told_block_tokens}",num_gpu_blocks="{sizes.num_blocks}"'
    info += f',enable_prefix_caching="{sizes.caching}"'
    yield "# TYPE vllm:cache_config_info gauge"
    for rank in engine.ranks:
        yield f'vllm:cache_config_info{{{info},engine="{rank.number}"}} 1'
    adapters = {rank: ",".join(engine.adapters) for rank in ("running_lora_adapters", "waiting_lora_adapters")}
    labels = ",".join(f'{name}="{value}"' for name, value in {"max_lora": len(engine.adapters), **adapters}.items())
    yield "# TYPE vllm:lora_requests_info gauge"
    yield f"vllm:lora_requests_info{{{labels}}} {time.time()}"


def _sglang(engine: MockEngine) -> Iterator[str]:
    """Under SGLang's names, a series for each rank."""
    sizes = engine.settings.sizes
    rows: tuple[tuple[str, str, Callable[[Rank], float]], ...] = (
        ("num_running_reqs", "gauge", lambda rank: rank.running),
        ("num_queue_reqs", "gauge", lambda rank: rank.waiting),
        ("token_usage", "gauge", lambda rank: rank.pool.used_blocks / rank.pool.num_blocks),
        ("num_used_tokens", "gauge", lambda rank: rank.pool.used_blocks * sizes.block_tokens),
        ("max_total_num_tokens", "gauge", lambda rank: sizes.num_blocks * sizes.block_tokens),
        ("cached_tokens_total", "counter", lambda rank: rank.counts.cached_tokens),
        ("prompt_tokens_total", "counter", lambda rank: rank.counts.prompt_tokens),
        ("generation_tokens_total", "counter", lambda rank: rank.counts.generated_tokens),
        ("num_retracted_reqs", "gauge", lambda rank: rank.counts.preemptions),
    )
    for name, kind, value in rows:
        yield f"# TYPE sglang:{name} {kind}"
        for rank in engine.ranks:
            yield f'sglang:{name}{{dp_rank="{rank.number}",model_name="{_label(engine)}"}} {value(rank)}'


def _label(engine: MockEngine) -> str:
    return engine.settings.model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
