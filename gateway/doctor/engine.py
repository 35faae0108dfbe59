"""What an engine says of itself: its make, its model cards, block size, prefix caching and clock, from the pages it has."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import aiohttp

from gateway.doctor.client import EngineClient
from gateway.doctor.types import Card, EngineFacts
from gateway.health import Facts

_CONFIG_INFO = re.compile(rb"^vllm:cache_config_info\{([^}\n]*)\}", re.MULTILINE)
_BLOCK_SIZE = re.compile(rb'block_size="(\d{1,7})"')
_CACHING = re.compile(rb'enable_prefix_caching="(True|False)"')
_MAKES = ("vllm", "sglang", "tensorrt_llm", "trunkline")


async def ask_engine(client: EngineClient, told: Facts) -> EngineFacts:
    """Everything; what a page lacks stays unknown. Raises what the first question raises. told: as health checks read it."""
    answer = await client.get("/v1/models")
    cards, owner = _cards(answer.json())
    kind = owner if owner in _MAKES else ("trunkline" if told.dialect == "trunkline" else "unknown")
    facts = EngineFacts(kind=kind, told=told, cards=cards, skew_s=answer.skew_s, skew_error_s=answer.skew_error_s)
    try:
        if kind == "vllm":
            return _with_vllm(facts, (await client.get("/metrics")).body)
        if kind in ("sglang", "trunkline"):  # TensorRT-LLM's /metrics would lose what others read there
            return _with_info(facts, (await client.get("/server_info")).json())
    except (aiohttp.ClientError, TimeoutError, ValueError):  # these pages are a nicety
        pass
    return facts


def _cards(answer: Any) -> tuple[tuple[Card, ...], str]:
    """The model cards, and who owns the first."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    rows = [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)] if isinstance(rows, list) else []
    cards = tuple(Card(row["id"], _text(row.get("root")), _text(row.get("parent"))) for row in rows)
    return cards, str(rows[0].get("owned_by", "")) if rows else ""


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _with_vllm(facts: EngineFacts, metrics: bytes) -> EngineFacts:
    found = _CONFIG_INFO.search(metrics)
    if found is None:
        return facts
    size, caching = _BLOCK_SIZE.search(found[1]), _CACHING.search(found[1])
    return replace(
        facts,
        block_tokens=int(size[1]) if size else None,
        caching=caching[1] == b"True" if caching else None,
    )


def _with_info(facts: EngineFacts, info: Any) -> EngineFacts:
    """SGLang's server arguments, or what our own replicas say."""
    if not isinstance(info, dict):
        return facts
    size = info.get("page_size", info.get("block_tokens"))
    disabled, reports = info.get("disable_radix_cache"), info.get("enable_cache_report")
    return replace(
        facts,
        block_tokens=size if isinstance(size, int) and size > 0 else None,
        caching=not disabled if isinstance(disabled, bool) else None,
        tells_cached=reports if isinstance(reports, bool) else None,
    )
