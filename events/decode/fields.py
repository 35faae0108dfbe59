"""Single fields of an event: hashes, media, tokens, namespaces, whichever engine and version wrote them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from events.types import EventsError
from radix.changes import NamespaceHint, Tier
from radix.match import Int32Array

_TIERS = {
    "gpu": Tier.DEVICE,
    "cpu": Tier.HOST,
    "cpu_pinned": Tier.HOST,
    "storage": Tier.DISK,
    "fs": Tier.DISK,
    "disk": Tier.DISK,
    "obj": Tier.SHARED,
    "external": Tier.SHARED,
    "shared": Tier.SHARED,
}
_INT64 = 2**64 - 1


class Malformed(EventsError):
    """A field is not what it should be; the event is skipped, the batch goes on."""


def hash_of(value: object) -> int:
    """The normal form of a block hash: unsigned 64 bits, of bytes the last 8 (so int and bytes forms of one hash are equal)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value & _INT64
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise Malformed(f"block hash {value!r}")


def hashes_of(value: object) -> tuple[int, ...]:
    """The normal forms of a list of hashes."""
    if not isinstance(value, list):
        raise Malformed(f"block hashes {value!r}")
    return tuple([hash_of(item) for item in value])


def tokens_of(value: object) -> Int32Array:
    """Token ids; pairs (EAGLE pages), strings and ids beyond 32 bits cannot be matched with a prompt and are refused."""
    if not isinstance(value, list):
        raise Malformed("token ids are not a list")
    try:
        return np.frombuffer(array("i", value), np.int32)
    except (TypeError, OverflowError) as error:
        raise Malformed(f"token ids: {error}") from None


def number_of(value: object, name: str, default: int | None = None) -> int:
    """An integer field; `default` where it is nil or absent, unless it is None."""
    if value is None and default is not None:
        return default
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Malformed(f"{name} {value!r}")


def tier_of(medium: object) -> Tier:
    """Nil means GPU; an unknown medium is worth at most the slowest one that is known."""
    if medium is None:
        return Tier.DEVICE
    if not isinstance(medium, str):
        raise Malformed(f"medium {medium!r}")
    return _TIERS.get(medium.lower(), Tier.SHARED)


class Namespaces:
    """Reads `extra_keys`: what, beside the tokens, entered the hash of each block of one store.

    An entry lists the adapter, then an item per image that touches the block, then the cache salt (first block of a prompt
    only), then a digest of prompt embeddings.
    """

    def __init__(self, fields: Mapping[str, object], *, starts_prompt: bool) -> None:
        self.adapter = _adapter_of(fields)
        self.starts_prompt = starts_prompt
        salt = fields.get("cache_salt")
        self.salt = salt if isinstance(salt, str) and salt else None
        keys = fields.get("extra_keys")
        self._entries: Sequence[object] = keys if isinstance(keys, list) and any(keys) else ()

    def runs(self, count: int) -> list[tuple[int, NamespaceHint]]:
        """(first block, hint) of each stretch of `count` blocks with one namespace; a new image starts a new one."""
        seen: list[bytes] = []
        runs: list[tuple[int, NamespaceHint]] = []
        salt = self.salt
        for i in range(min(len(self._entries), count)):
            media, found_salt = self._read(self._entries[i], first=i == 0)
            salt = found_salt or salt
            new = [item for item in media if item not in seen]
            if i == 0 or new:
                runs.append((i, NamespaceHint(self.adapter, salt if i == 0 else None, tuple(new))))
                seen += new
        return runs or [(0, NamespaceHint(self.adapter, salt) if self.adapter or salt else NamespaceHint())]

    def _read(self, entry: object, *, first: bool) -> tuple[list[bytes], str | None]:
        if entry is None:
            return [], None
        if not isinstance(entry, list):
            raise Malformed(f"extra keys {entry!r}")
        items = entry[1:] if entry and self.adapter is not None and entry[0] == self.adapter else entry
        salt = None
        if first and self.starts_prompt and items:
            # A bare string in a prompt's first block is its salt; one release wrote image ids bare too. Both separate namespaces.
            last = max((i for i, item in enumerate(items) if isinstance(item, str)), default=None)
            if last is not None:
                salt = items[last]
                items = items[:last] + items[last + 1 :]
        return list(dict.fromkeys(_medium_key(item) for item in items)), salt or None


def _adapter_of(fields: Mapping[str, object]) -> str | None:
    name = fields.get("lora_name")
    if isinstance(name, str) and name:
        return name
    number = fields.get("lora_id")
    # Older engines tell a process-local number only: enough to keep it apart from the base model, never enough to match.
    return f"lora-id:{number}" if number is not None else None


def _medium_key(item: object) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return b"\0embeds:" + item  # prompt embeddings: no request can name it, so it never matches
    if isinstance(item, list) and item and isinstance(item[0], str):
        return item[0].encode()
    raise Malformed(f"extra key {item!r}")
