"""Changes of our own replicas' caches as bytes: vLLM's map form, so that any consumer of vLLM events reads them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from events.types import EventsError
from radix.changes import Cleared, Event, GroupKind, NamespaceHint, Removed, Stored, Tier

_MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "STORAGE", Tier.SHARED: "SHARED"}
_KINDS = {
    GroupKind.FULL: "full_attention",
    GroupKind.WINDOW: "sliding_window",
    GroupKind.CHUNK: "chunked_local_attention",
    GroupKind.STATE: "mamba",
    GroupKind.NOTHING: "cross_attention",
}
_encoder = msgspec.msgpack.Encoder()


def encode(events: Sequence[Event], *, ts: float, rank: int) -> bytes:
    """One batch; raises EventsError naming what cannot be written. ts: unix seconds."""
    try:
        return _encoder.encode([ts, [fields_of(event) for event in events], rank])
    except (OverflowError, UnicodeDecodeError) as error:
        raise EventsError(f"batch of {len(events)} events cannot be encoded: {error}") from error


def fields_of(event: Event) -> dict[str, object]:
    """One event as names and values, before it is bytes."""
    match event:
        case Stored():
            return _stored(event)
        case Removed():
            fields: dict[str, object] = {
                "type": "BlockRemoved",
                "block_hashes": event.hashes,
                "medium": _MEDIA[event.tier],
            }
            return fields | _group(event.group)
        case Cleared():
            return {"type": "AllBlocksCleared"}


def _stored(event: Stored) -> dict[str, object]:
    fields: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": event.hashes,
        "parent_block_hash": event.parent,
        "token_ids": event.tokens.tolist(),
        "block_size": event.block_tokens,
        "lora_id": None,
        "medium": _MEDIA[event.tier],
        "lora_name": event.namespace_hint.adapter,
    }
    hint = event.namespace_hint
    if hint.adapter or hint.salt or hint.media:
        fields["extra_keys"] = _extra_keys(hint, len(event.hashes), starts_prompt=event.parent is None)
    if event.kind is not GroupKind.UNSTATED:
        fields["kv_cache_spec_kind"] = _KINDS[event.kind]
    if event.window_tokens:
        fields["kv_cache_spec_sliding_window"] = event.window_tokens
    return fields | _group(event.group)


def _extra_keys(hint: NamespaceHint, blocks: int, *, starts_prompt: bool) -> list[list[object] | None]:
    """Adapter in every block, images in the run's first, the salt in the prompt's first only."""
    adapter: list[object] = [hint.adapter] if hint.adapter else []
    first = [*adapter, *([item.decode(), 0] for item in hint.media)]
    if hint.salt and starts_prompt:
        first.append(hint.salt)
    return [first or None] + [adapter or None] * (blocks - 1)


def _group(group: int) -> dict[str, object]:
    return {"group_idx": group} if group else {}  # nil defaults are left out, as engines do
