"""The shapes of engine events: fields by position or by name, and what their values must be to be understood here.

`scan_event` writes what a store or a removal says to the desk (see `feed`). It refuses, by -1, whatever a decoder that makes
objects could read as anything but a store of plain blocks or a removal; refusing is never wrong, only slower.
"""

from __future__ import annotations

from radix.core.atomics import equals, load_8, load_64, shift_right, store_64
from radix.core.feed import (
    BLOCKS,
    FULL_KIND,
    GROUP,
    GROUP_NAMED,
    IDS,
    KIND,
    MAX_BLOCKS,
    MAX_TOKENS,
    NAMESPACED,
    PARENT,
    PARENTED,
    SIZE,
    STACK,
    TIER,
    TOKENS,
)
from radix.core.jit import inner
from radix.core.msgpack import (
    NIL,
    array_head,
    hash_into,
    hashes_into,
    map_head,
    natural,
    natural_end,
    nils_end,
    skip,
    text_end,
    tokens_into,
)

OTHER = 0  # kinds of events
STORE = 1
REMOVAL = 2

# Fields, by their place in a positional store; the last four are only named.
_TYPE = 0
_HASHES = 1
_PARENT = 2
_TOKENS = 3
_SIZE = 4
_ADAPTER_NUMBER = 5
_MEDIUM = 6
_ADAPTER = 7
_KEYS = 8
_GROUP = 9
_SPEC_KIND = 10
_WINDOW = 11
_SALT = 12
_IGNORED = 13
_UNKNOWN = 14


def _text(text: str) -> bytes:
    return bytes([0xA0 | len(text)]) + text.encode()


_is_type, _is_hashes, _is_parent = equals(_text("type")), equals(_text("block_hashes")), equals(_text("parent_block_hash"))
_is_tokens, _is_size, _is_number = equals(_text("token_ids")), equals(_text("block_size")), equals(_text("lora_id"))
_is_medium, _is_adapter, _is_keys = equals(_text("medium")), equals(_text("lora_name")), equals(_text("extra_keys"))
_is_group, _is_kind = equals(_text("group_idx")), equals(_text("kv_cache_spec_kind"))
_is_window, _is_salt = equals(_text("kv_cache_spec_sliding_window")), equals(_text("cache_salt"))
_is_locality, _is_owner, _is_session = equals(_text("locality")), equals(_text("ownership")), equals(_text("session_id"))
_is_store, _is_removal = equals(_text("BlockStored")), equals(_text("BlockRemoved"))
_is_full, _is_mla = equals(_text("full_attention")), equals(_text("mla_attention"))
_is_sink = equals(_text("sink_full_attention"))
_is_gpu, _is_gpu_low, _is_cpu, _is_cpu_low = (equals(_text(name)) for name in ("GPU", "gpu", "CPU", "cpu"))
_is_pinned, _is_storage, _is_disk = equals(_text("CPU_PINNED")), equals(_text("STORAGE")), equals(_text("DISK"))
_is_fs, _is_external, _is_obj = equals(_text("FS")), equals(_text("EXTERNAL")), equals(_text("OBJ"))


@inner
def _field_named(at: int) -> int:
    """Which field a key of a map names."""
    size = load_8(at) ^ 0xA0
    if size == 9:
        if _is_tokens(at) != 0:
            return _TOKENS
        if _is_adapter(at) != 0:
            return _ADAPTER
        if _is_group(at) != 0:
            return _GROUP
        return _IGNORED if _is_owner(at) != 0 else _UNKNOWN
    if size == 10:
        if _is_size(at) != 0:
            return _SIZE
        if _is_keys(at) != 0:
            return _KEYS
        if _is_salt(at) != 0:
            return _SALT
        return _IGNORED if _is_session(at) != 0 else _UNKNOWN
    if size == 12 and _is_hashes(at) != 0:
        return _HASHES
    if size == 17 and _is_parent(at) != 0:
        return _PARENT
    if size == 4 and _is_type(at) != 0:
        return _TYPE
    if size == 6 and _is_medium(at) != 0:
        return _MEDIUM
    if size == 7 and _is_number(at) != 0:
        return _ADAPTER_NUMBER
    if size == 8 and _is_locality(at) != 0:
        return _IGNORED
    if size == 18 and _is_kind(at) != 0:
        return _SPEC_KIND
    return _WINDOW if size == 28 and _is_window(at) != 0 else _UNKNOWN


@inner
def _field_at(place: int, kind: int) -> int:
    """Which field stands at a place of a positional event; a longer tail comes from a newer engine and says nothing here."""
    if kind == STORE or place < 2:
        return place if place <= _WINDOW else _IGNORED
    if place == 2:
        return _MEDIUM
    return _GROUP if place == 3 else _IGNORED


@inner
def _tier_named(at: int) -> int:
    """The tier of a medium in the spelling of an engine, or -1."""
    size = load_8(at) ^ 0xA0
    if size == 3:
        if _is_gpu(at) != 0 or _is_gpu_low(at) != 0:
            return 0
        if _is_cpu(at) != 0 or _is_cpu_low(at) != 0:
            return 1
        return 3 if _is_obj(at) != 0 else -1
    if size == 10 and _is_pinned(at) != 0:
        return 1
    if _is_disk(at) != 0 or _is_storage(at) != 0 or _is_fs(at) != 0:
        return 2
    return 3 if _is_external(at) != 0 else -1


@inner
def _take_type(desk: int, at: int) -> int:
    if _is_store(at) != 0:
        store_64(desk + KIND, STORE)
        return at + 12
    if _is_removal(at) != 0:
        store_64(desk + KIND, REMOVAL)
        return at + 13
    return -1


@inner
def _take_hashes(desk: int, hashes: int, at: int, end: int) -> int:
    head = array_head(at)
    count = shift_right(head, 4)
    at += head & 15
    if head < 0 or count > MAX_BLOCKS or count > end - at:
        return -1
    store_64(desk + BLOCKS, count)
    return hashes_into(at, end, hashes, count)


@inner
def _take_tokens(desk: int, at: int, end: int) -> int:
    head = array_head(at)
    count = shift_right(head, 4)
    at += head & 15
    if head < 0 or count > MAX_TOKENS or count > end - at:
        return -1
    store_64(desk + TOKENS, count)
    return tokens_into(at, end, desk + IDS, count)


@inner
def _take_keys(at: int, end: int) -> int:
    """Extra keys of the blocks, none of which has any."""
    head = array_head(at)
    return nils_end(at + (head & 15), end, shift_right(head, 4)) if head >= 0 else -1


@inner
def _take_medium(desk: int, at: int) -> int:
    tier = _tier_named(at)
    if tier < 0:
        return -1
    store_64(desk + TIER, tier)
    return at + 1 + (load_8(at) & 31)


@inner
def _take_number(desk: int, field: int, at: int) -> int:
    """A block size, a group, or a window, which says nothing new."""
    value = natural(at)
    if value < 0 or shift_right(value, 31) != 0:
        return -1
    if field == _SIZE:
        store_64(desk + SIZE, value)
    elif field == _GROUP:
        store_64(desk + GROUP_NAMED, value)
    return natural_end(at)


@inner
def _take_kind(desk: int, at: int) -> int:
    """The kind of a group of full attention that has said so before; any other may change what the group is taken for."""
    full = _is_full(at) != 0 or _is_mla(at) != 0 or _is_sink(at) != 0
    return at + 1 + (load_8(at) & 31) if full and load_64(desk + FULL_KIND) != 0 else -1


@inner
def _take(desk: int, hashes: int, field: int, at: int, end: int) -> int:
    """Read the value of one field; nil is the same as no field."""
    if load_8(at) == NIL:
        return at + 1
    if field == _TYPE:
        return _take_type(desk, at)
    if field == _HASHES:
        return _take_hashes(desk, hashes, at, end)
    if field == _TOKENS:
        return _take_tokens(desk, at, end)
    if field == _PARENT:
        store_64(desk + PARENTED, 1)
        return hash_into(at, end, desk + PARENT)
    if field in (_SIZE, _GROUP, _WINDOW):
        return _take_number(desk, field, at)
    if field == _MEDIUM:
        return _take_medium(desk, at)
    if field == _KEYS:
        return _take_keys(at, end)
    if field == _SPEC_KIND:
        return _take_kind(desk, at)
    if field in (_ADAPTER_NUMBER, _ADAPTER, _SALT):
        store_64(desk + NAMESPACED, 1)
        return skip(at, end, desk + STACK)
    return skip(at, end, desk + STACK) if field == _IGNORED else -1


@inner
def _clear_event(desk: int) -> None:
    store_64(desk + KIND, OTHER)
    store_64(desk + BLOCKS, -1)
    store_64(desk + TOKENS, 0)
    store_64(desk + SIZE, 0)
    store_64(desk + TIER, 0)
    store_64(desk + PARENTED, 0)
    store_64(desk + NAMESPACED, 0)
    store_64(desk + GROUP_NAMED, 0)


@inner
def scan_event(desk: int, hashes: int, at: int, end: int) -> int:
    """Read one event, its hashes to `hashes`; the address behind it, or -1 when it is not understood."""
    _clear_event(desk)
    pairs = map_head(at)
    head = pairs if pairs >= 0 else array_head(at)
    fields = shift_right(head, 4)
    at += head & 15
    if head < 0 or fields > end - at:
        return -1
    seen = 0
    for place in range(fields):
        if at >= end:
            return -1
        if pairs >= 0:
            field = _field_named(at)
            at = text_end(at, end) if field == _UNKNOWN else at + 1 + (load_8(at) & 31)
            if at < 0 or at >= end:
                return -1
        else:
            field = _field_at(place, load_64(desk + KIND))
        if field < _IGNORED and shift_right(seen, field) & 1 != 0:
            return -1  # of two, the last one counts, or the first
        seen |= 1 << field
        at = _take(desk, hashes, field, at, end)
        if at < 0 or at > end:
            return -1
    return at if load_64(desk + BLOCKS) >= 0 and load_64(desk + GROUP_NAMED) == load_64(desk + GROUP) else -1
