"""Events in the forms engines of different make and age write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from events.encode import encode, fields_of
from events.types import Cleared, Event, Removed, Stored

Encode = Callable[[Sequence[Event], float, int], bytes]  # events, unix seconds, rank

FORMS = ("map", "array")
_VLLM_ARRAY = {
    "BlockStored": (
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
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_encoder = msgspec.msgpack.Encoder()


def encoder_of(dialect: str, form: str) -> Encode:
    """How a dialect writes a batch; `form` is 'map' for the newer engines, 'array' for the older ones."""
    if dialect == "sglang":
        return _sglang_map if form == "map" else _sglang_array
    return _vllm_array if form == "array" else _vllm_map


def _vllm_map(events: Sequence[Event], ts: float, rank: int) -> bytes:
    return encode(events, ts=ts, rank=rank)


def _vllm_array(events: Sequence[Event], ts: float, rank: int) -> bytes:
    rows = []
    for event in events:
        fields = fields_of(event)
        tag = str(fields["type"])
        rows.append([tag, *(fields.get(name) for name in _VLLM_ARRAY[tag])])
    return _encoder.encode([ts, rows, rank])


def _sglang_array(events: Sequence[Event], ts: float, rank: int) -> bytes:
    """Up to 0.5.19; adapters have a number only, which nobody can match with a name."""
    rows: list[list[object]] = []
    for event in events:
        match event:
            case Stored():
                hint = event.namespace_hint
                number = None if hint.adapter is None else sum(hint.adapter.encode())
                row = ["BlockStored", _signed(event.hashes), _signed_one(event.parent), event.tokens.tolist()]
                row += [event.block_tokens, number, "GPU", *([{"cache_salt": hint.salt}] if hint.salt else [])]
                rows.append(row)
            case Removed():
                rows.append(["BlockRemoved", _signed(event.hashes), "GPU"])
            case Cleared():
                rows.append(["AllBlocksCleared"])
    return _encoder.encode([ts, rows, rank])


def _sglang_map(events: Sequence[Event], ts: float, rank: int) -> bytes:
    """From 0.5.22 on: names of adapters, salts in every event, nothing of groups."""
    rows = []
    for event in events:
        fields: dict[str, object] = {"type": "AllBlocksCleared"}
        if isinstance(event, Removed):
            fields = {"type": "BlockRemoved", "block_hashes": _signed(event.hashes), "medium": "GPU"}
        elif isinstance(event, Stored):
            hint = event.namespace_hint
            fields = {
                "type": "BlockStored",
                "block_hashes": _signed(event.hashes),
                "parent_block_hash": _signed_one(event.parent),
                "token_ids": event.tokens.tolist(),
                "block_size": event.block_tokens,
                "lora_id": None,
                "medium": "GPU",
            }
            fields |= {"cache_salt": hint.salt} if hint.salt else {}
            fields |= {"lora_name": hint.adapter} if hint.adapter else {}
        rows.append(fields)
    return _encoder.encode([ts, rows, rank])


def _signed(hashes: Sequence[int]) -> list[int]:
    return [one - 2**64 if one >= 2**63 else one for one in hashes]


def _signed_one(value: int | None) -> int | None:
    return None if value is None else _signed([value])[0]


class OneCopy:
    """SGLang's way: a block is told once however many copies there are, and its removal when the last one goes."""

    def __init__(self) -> None:
        self._copies: Counter[int] = Counter()

    def __call__(self, events: Sequence[Event]) -> list[Event]:
        """What remains to be told of these events."""
        told: list[Event] = []
        for event in events:
            match event:
                case Stored():
                    told.extend(self._stored(event))
                case Removed():
                    told.extend(self._removed(event))
                case Cleared():
                    self._copies.clear()
                    told.append(event)
        return told

    def _stored(self, event: Stored) -> list[Stored]:
        """Its stretches of blocks that were not there."""
        stretches: list[Stored] = []
        size, start = event.block_tokens, None
        for place, name in enumerate((*event.hashes, None)):
            is_new = name is not None and not self._copies[name]
            if name is not None:
                self._copies[name] += 1
            if is_new and start is None:
                start = place
            elif not is_new and start is not None:
                parent = event.hashes[start - 1] if start else event.parent
                tokens = event.tokens[start * size : place * size]
                stretches.append(replace(event, hashes=event.hashes[start:place], parent=parent, tokens=tokens))
                start = None
        return stretches

    def _removed(self, event: Removed) -> list[Removed]:
        gone = []
        for name in event.hashes:
            self._copies[name] -= 1
            if not self._copies[name]:
                del self._copies[name]
                gone.append(name)
        return [replace(event, hashes=tuple(gone))] if gone else []
