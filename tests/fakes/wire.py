"""Event payloads as engines of different age write them, made without our own encoder."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Fields = dict[str, object]

_ORDER = {
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
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}


def stored(hashes: Sequence[object], parent: object, tokens: Sequence[int], block_size: int, **more: object) -> Fields:
    """A BlockStored in map form; `more` adds or overrides fields."""
    fields: Fields = {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return fields | more


def removed(*hashes: object, **more: object) -> Fields:
    """A BlockRemoved in map form."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"} | more


CLEARED: Fields = {"type": "AllBlocksCleared"}


def as_array(fields: Fields) -> list[object]:
    """The same event as the positional array of older engines."""
    tag = fields["type"]
    assert isinstance(tag, str)
    return [tag, *(fields.get(name) for name in _ORDER[tag])]


def batch(*events: object, ts: float = 1_767_225_600.25, rank: int | None = 0) -> bytes:
    """A payload of three elements."""
    return msgspec.msgpack.encode([ts, list(events), rank])


def chain(count: int, block_size: int, *, first: int = 0, salt: int = 0) -> Fields:
    """A store of `count` blocks from the prompt's start or behind block `first`; hashes and tokens follow from the position."""
    hashes = [salt + i + 1 for i in range(first, first + count)]
    tokens = [salt + 10 * i + j for i in range(first, first + count) for j in range(block_size)]
    return stored(hashes, hashes[0] - 1 if first else None, tokens, block_size)
