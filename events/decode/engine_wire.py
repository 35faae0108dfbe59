"""The wire of vLLM, SGLang and TensorRT-LLM's native stream: msgpack batches of tagged arrays or maps.

A batch is `[ts, events, rank?, ...]`, an event `[tag, field, ...]` or `{"type": tag, name: field}`; both forms may be mixed. What
is unknown is skipped and counted, so that a newer engine never stops the stream (FC-06, FC-07).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from reprlib import repr as shown

import msgspec

from events.decode.announced import Announced, Message
from events.decode.fields import Malformed, hash_of, hashes_of, kind_of, number_of, tier_of, tokens_of
from events.errors import DecodeError
from radix.changes import Batch, Cleared, Removed

_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED = ("block_hashes", "medium", "group_idx")
_FIELDS: dict[object, tuple[str, ...]] = {"BlockStored": _STORED, "BlockRemoved": _REMOVED, "AllBlocksCleared": ()}
_MAX_GROUP = 1023  # each costs the index a table
_SALT_PLACE = 7  # SGLang puts a map with the salt where vLLM has the adapter's name

# A byte of a hostile payload becomes up to about 64 bytes of objects; the largest real batches are some megabytes.
MAX_PAYLOAD_BYTES = 32 * 2**20

_decoder = msgspec.msgpack.Decoder()


def decode(payload: bytes, seq: int) -> Batch:
    """One message as changes of the index; raises DecodeError when it is no batch at all."""
    return read(payload, seq).batch()


def read(payload: bytes, seq: int) -> Message:
    """One message in the engine's own cut; raises DecodeError when it is no batch at all."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise DecodeError(f"batch {seq} has {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} are read")
    try:
        message = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DecodeError(f"batch {seq} is not msgpack: {error}") from error
    ts, raw_events, rank = _envelope(message, seq)
    events: list[Announced | Removed | Cleared] = []
    skipped = 0
    for raw in raw_events:
        try:
            events.append(_event(raw))
        except Malformed:
            skipped += 1
    return Message(rank, seq, ts, tuple(events), skipped)


def _envelope(message: object, seq: int) -> tuple[float, list[object], int | None]:
    if isinstance(message, dict):
        ranks = (message.get("data_parallel_rank"), message.get("attn_dp_rank"))
        message = [message.get("ts"), message.get("events"), next((rank for rank in ranks if rank is not None), None)]
    if not isinstance(message, list) or len(message) < 2 or not isinstance(message[1], list):
        raise DecodeError(f"batch {seq} is {type(message).__name__}, want [ts, events, rank]")
    ts, events = message[0], message[1]
    rank = message[2] if len(message) > 2 and isinstance(message[2], int) and not isinstance(message[2], bool) else None
    return float(ts) if isinstance(ts, int | float) and isfinite(ts) else 0.0, events, rank


def _event(raw: object) -> Announced | Removed | Cleared:
    fields: Mapping[str, object]
    if isinstance(raw, dict):
        tag, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        tag, fields = raw[0], _named(raw)
    else:
        raise Malformed(f"event {shown(raw)}")
    match tag:
        case "BlockStored":
            return _stored(fields)
        case "BlockRemoved":
            return Removed(hashes_of(fields.get("block_hashes")), tier_of(fields.get("medium")), _group(fields))
        case "AllBlocksCleared":
            return Cleared()
        case _:
            raise Malformed(f"event type {shown(tag)}")


def _named(raw: list[object]) -> dict[str, object]:
    names = _FIELDS.get(raw[0], ()) if isinstance(raw[0], str) else ()
    fields: dict[str, object] = dict(
        zip(names, raw[1:], strict=False)
    )  # a longer tail comes from a newer engine, a shorter one from an older
    extra = raw[_SALT_PLACE] if len(raw) > _SALT_PLACE else None
    if isinstance(extra, dict):
        fields["cache_salt"] = extra.get("cache_salt")
    return fields


def _group(fields: Mapping[str, object]) -> int:
    group = number_of(fields.get("group_idx"), "group_idx", 0)
    if group > _MAX_GROUP:
        raise Malformed(f"group_idx {group}")
    return group


def _stored(fields: Mapping[str, object]) -> Announced:
    raw_parent = fields.get("parent_block_hash")
    return Announced(
        hashes_of(fields.get("block_hashes")),
        hash_of(raw_parent) if raw_parent is not None else None,
        tokens_of(fields.get("token_ids")),
        number_of(fields.get("block_size"), "block_size"),
        tier_of(fields.get("medium")),
        _group(fields),
        kind_of(fields.get("kv_cache_spec_kind")),
        number_of(fields.get("kv_cache_spec_sliding_window"), "window", 0),
        fields,
    )
