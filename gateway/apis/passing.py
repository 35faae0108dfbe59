"""Paths that are passed to an engine without being understood: which may be, and for which model they are.

Only what is listed passes. Whatever changes an engine rather than asks it stays closed, also to those who list it: it would stop
or empty a replica for everybody, and what the gateway believes of its cache would be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson

from gateway.body import loads
from gateway.errors import ConfigError

# Of vLLM, SGLang and TensorRT-LLM; one that ends in a slash stands for all below it.
ADMINISTRATION = (
    "/abort_request",
    "/abort_requests",
    "/inference/v1/abort_requests",
    "/add_external_corpus",
    "/clear_hicache_storage_backend",
    "/attach_hicache_storage_backend",
    "/detach_hicache_storage_backend",
    "/hicache/",
    "/collective_rpc",
    "/configure_logging",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/docs",
    "/dumper/",
    "/finish_weight_update",
    "/flush_cache",
    "/freeze_gc",
    "/get_server_info",
    "/get_weights_by_name",
    "/init_weight_transfer_engine",
    "/init_weights_send_group_for_remote_instance",
    "/init_weights_update_group",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/kv_cache_events",
    "/kv_event_sources",
    "/load_lora_adapter",
    "/load_lora_adapter_from_tensors",
    "/metrics",
    "/mock/",
    "/openapi.json",
    "/pause",
    "/pause_generation",
    "/perf_metrics",
    "/prometheus/",
    "/release_memory",
    "/release_memory_occupation",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/resume_memory",
    "/resume_memory_occupation",
    "/scale_elastic_ep",
    "/send_weights_to_remote_instance",
    "/server_info",
    "/set_internal_state",
    "/set_trace_level",
    "/shutdown",
    "/sleep",
    "/slow_down",
    "/start_expert_distribution_record",
    "/start_profile",
    "/start_weight_update",
    "/steer/",
    "/stop_expert_distribution_record",
    "/stop_profile",
    "/unload_lora_adapter",
    "/update_weight_version",
    "/update_weights",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/update_weights_from_tensor",
    "/v1/load_lora_adapter",
    "/v1/loads",
    "/v1/unload_lora_adapter",
    "/wake_up",
    "/weights_checker",
)
_ENTRY = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")
# A proxy in front of an engine may read these as another path than we do.
_AMBIGUOUS = re.compile(r"//|/\.\.?(?:/|$)|\\|%(?:2[eEfF]|5[cC]|00)")
_BOUNDARY = re.compile(rb'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_FIELD_MODEL = re.compile(rb'\bname="model"', re.IGNORECASE)
_MOST_PARTS = 1_000
_LONGEST_NAME = 500


def check_entries(entries: Sequence[str]) -> None:
    """Raises ConfigError for one that is no path, or that would open the administration of engines."""
    for number, entry in enumerate(entries):
        where = f"pass_through[{number}]"
        if _ENTRY.fullmatch(entry) is None or _AMBIGUOUS.search(entry):
            raise ConfigError(f"{where}: {entry!r:.200} is no path such as /classify, or /v1/audio/ for all below it")
        for path in ADMINISTRATION:
            if _covers(entry, path) or _covers(path, entry) or _covers(f"{path}/", entry):
                raise ConfigError(f"{where}: {entry!r:.200} would pass {path}, which administers engines")


def _covers(entry: str, path: str) -> bool:
    return path.startswith(entry) if entry.endswith("/") else path == entry


class Passing:
    """Which paths pass."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._exact = frozenset(entry for entry in entries if not entry.endswith("/"))
        self._below = tuple(entry for entry in entries if entry.endswith("/"))

    def admits(self, path: str) -> bool:
        """Whether this path, as it was sent, may go on to an engine."""
        return path in self._exact or (path.startswith(self._below) and _AMBIGUOUS.search(path) is None)


@dataclass(frozen=True, slots=True)
class Found:
    """What a body of any kind says. fields: of one that is a JSON object. span: where the name of the model stands in a form."""

    model: str | None = None
    fields: Mapping[str, Any] | None = None
    span: tuple[int, int] | None = None


def find_model(content_type: bytes | None, target: bytes, body: bytes) -> Found:
    """The model a request is for: from its JSON, its form, or its query; what can not be read is left to the engine."""
    found = Found()
    boundary = _BOUNDARY.match(content_type or b"")
    if boundary is not None:
        found = _in_form(body, boundary[1] or boundary[2])
    elif body.lstrip()[:1] == b"{":
        found = _in_json(body)
    return found if found.model is not None else Found(_in_query(target), found.fields)


def _in_json(body: bytes) -> Found:
    try:
        fields = loads(body)
    except orjson.JSONDecodeError:
        return Found()
    model = fields.get("model")
    return Found(model if isinstance(model, str) else None, fields)


def _in_query(target: bytes) -> str | None:
    query = target.partition(b"?")[2].decode("latin-1")
    return next((value for name, value in parse_qsl(query, max_num_fields=None) if name == "model" and value), None)


def _in_form(body: bytes, boundary: bytes) -> Found:
    for head, start, end in _parts(body, b"--" + boundary):
        if _FIELD_MODEL.search(head) and end - start <= _LONGEST_NAME:
            try:
                return Found(body[start:end].decode(), span=(start, end))
            except UnicodeDecodeError:
                return Found()
    return Found()


def _parts(body: bytes, mark: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(head, start and end of the content) of each part of a form; a file's bytes are searched for the next mark, once."""
    at = body.find(mark)
    for _ in range(_MOST_PARTS):
        if at < 0 or body.startswith(b"--", at + len(mark)):
            return
        head_end = body.find(b"\r\n\r\n", at)
        if head_end < 0:
            return
        following = body.find(b"\r\n" + mark, head_end + 2)
        if following < 0:
            return
        yield body[at:head_end], head_end + 4, max(following, head_end + 4)
        at = following + 2
