"""The wire of vLLM and SGLang, and of everyone who speaks like them: msgpack batches of tagged arrays or maps.

A batch is `[ts, events, rank?, ...]`, an event `[tag, field, ...]` or `{"type": tag, name: field}`; both forms may be mixed. What
is unknown is skipped and counted, so that a newer engine never stops the stream (FC-06, FC-07).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from events.decode.fields import Malformed, Namespaces, hash_of, hashes_of, number_of, tier_of, tokens_of
from events.errors import DecodeError
from radix.changes import Batch, Cleared, Event, Removed, Stored

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
)
_REMOVED = ("block_hashes", "medium", "group_idx")
_FIELDS: dict[object, tuple[str, ...]] = {"BlockStored": _STORED, "BlockRemoved": _REMOVED, "AllBlocksCleared": ()}
_SALT_PLACE = 7  # SGLang puts a map with the salt where vLLM has the adapter's name

_decoder = msgspec.msgpack.Decoder()


def decode(payload: bytes, seq: int) -> Batch:
    """One message; raises DecodeError when it is no batch at all."""
    try:
        message = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DecodeError(f"batch {seq} is not msgpack: {error}") from error
    ts, events, rank = _envelope(message, seq)
    decoded: list[Event] = []
    skipped = 0
    for raw in events:
        try:
            decoded.extend(_event(raw))
        except Malformed:
            skipped += 1
    return Batch(rank, seq, ts, tuple(decoded), skipped)


def _envelope(message: object, seq: int) -> tuple[float, list[object], int | None]:
    if isinstance(message, dict):
        ranks = (message.get("data_parallel_rank"), message.get("attn_dp_rank"))
        message = [message.get("ts"), message.get("events"), next((rank for rank in ranks if rank is not None), None)]
    if not isinstance(message, list) or len(message) < 2 or not isinstance(message[1], list):
        raise DecodeError(f"batch {seq} is {type(message).__name__}, want [ts, events, rank]")
    ts, events = message[0], message[1]
    rank = message[2] if len(message) > 2 and isinstance(message[2], int) else None
    return float(ts) if isinstance(ts, int | float) else 0.0, events, rank


def _event(raw: object) -> Iterator[Event]:
    fields: Mapping[str, object]
    if isinstance(raw, dict):
        tag, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        tag, fields = raw[0], _named(raw)
    else:
        raise Malformed(f"event {raw!r}")
    match tag:
        case "BlockStored":
            yield from _stored(fields)
        case "BlockRemoved":
            yield Removed(hashes_of(fields.get("block_hashes")), tier_of(fields.get("medium")), _group(fields))
        case "AllBlocksCleared":
            yield Cleared()
        case _:
            raise Malformed(f"event type {tag!r}")


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
    return number_of(fields.get("group_idx"), "group_idx", 0)


def _stored(fields: Mapping[str, object]) -> Iterator[Stored]:
    hashes = hashes_of(fields.get("block_hashes"))
    raw_parent = fields.get("parent_block_hash")
    parent = hash_of(raw_parent) if raw_parent is not None else None
    tokens = tokens_of(fields.get("token_ids"))
    size = number_of(fields.get("block_size"), "block_size")
    tier, group = tier_of(fields.get("medium")), _group(fields)
    runs = Namespaces(fields, starts_prompt=parent is None).runs(len(hashes))
    if len(runs) == 1 or size <= 0 or len(tokens) // size > len(hashes):  # the last: masked blocks, nothing lines up
        yield Stored(hashes, parent, tokens, size, runs[0][1], tier, group)
        return
    ends = [start for start, _ in runs[1:]] + [len(hashes)]
    for (start, hint), end in zip(runs, ends, strict=True):
        above = hashes[start - 1] if start else parent
        yield Stored(hashes[start:end], above, tokens[start * size : end * size], size, hint, tier, group)
