"""Single fields of an event: hashes, media, kinds of groups, whichever engine and version wrote them."""

from __future__ import annotations

from reprlib import repr as shown

from events.types import EventsError
from radix.changes import GroupKind, Tier

_TIERS = {
    **dict.fromkeys(("", "gpu", "device"), Tier.DEVICE),
    **dict.fromkeys(("cpu", "cpu_pinned", "cpu_tier1"), Tier.HOST),
    **dict.fromkeys(("storage", "fs", "disk", "nvme", "cpu_tier2"), Tier.DISK),
    **dict.fromkeys(("obj", "external", "shared", "network", "remote"), Tier.SHARED),
}
_KINDS = {
    "full_attention": GroupKind.FULL,
    "mla_attention": GroupKind.FULL,
    "sink_full_attention": GroupKind.FULL,
    "sliding_window": GroupKind.WINDOW,
    "sliding_window_mla": GroupKind.WINDOW,
    "chunked_local_attention": GroupKind.CHUNK,
    "mamba": GroupKind.STATE,
    "cross_attention": GroupKind.NOTHING,
    "encoder_only_attention": GroupKind.NOTHING,
}
_INT64 = 2**64 - 1
_MAX_NUMBER = 2**31 - 1


class Malformed(EventsError):
    """A field is not what it should be; the event is skipped, the batch goes on. Values in its text are cut short."""


def hash_of(value: object) -> int:
    """The normal form of a block hash: unsigned 64 bits, of bytes the last 8 (so int and bytes forms of one hash are equal)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value & _INT64
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise Malformed(f"block hash {shown(value)}")


def hashes_of(value: object) -> tuple[int, ...]:
    """The normal forms of a list of hashes."""
    if not isinstance(value, list):
        raise Malformed(f"block hashes {shown(value)}")
    return tuple([hash_of(item) for item in value])


def tokens_of(value: object) -> list[object]:
    """The items of a list of tokens, whatever they are."""
    if not isinstance(value, list):
        raise Malformed("token ids are not a list")
    return value


def number_of(value: object, name: str, default: int | None = None) -> int:
    """A small natural number; `default` where the field is nil or absent, unless it is None."""
    if value is None and default is not None:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_NUMBER:
        return value
    raise Malformed(f"{name} {shown(value)}")


def tier_of(medium: object) -> Tier:
    """Nil means GPU; an unknown medium is worth at most the slowest one that is known."""
    if medium is None:
        return Tier.DEVICE
    if not isinstance(medium, str):
        raise Malformed(f"medium {shown(medium)}")
    return _TIERS.get(medium.lower(), Tier.SHARED)


def kind_of(value: object) -> GroupKind:
    """The kind of a cache group; a name not known yet says as little as none."""
    return _KINDS.get(value, GroupKind.UNSTATED) if isinstance(value, str) else GroupKind.UNSTATED
