"""Values of a msgpack payload by address: headers, numbers, hashes, token ids, and skipping what is not needed.

Every function gets an address inside a payload and answers the address behind what it read, or -1: cut off, or not one of the
forms it knows. What `skip` accepts a full decoder accepts too; the reverse does not hold (text beyond ASCII, extensions, keys of
maps that are no text, deep nesting), there the full decoder is asked.

Invariants
- Nothing is read further than `GUARD` bytes behind the payload (see `feed`): whoever moves on checks against `end` first.
- A count is compared with the bytes that are left before anything is done so many times.
"""

from __future__ import annotations

from radix.core.atomics import load_8, load_64, shift_right, store_32, store_64, swap_bytes
from radix.core.jit import inner
from radix.core.layout import signed

NIL = 0xC0
_HIGH_BITS = signed(0x8080808080808080)
_NILS = signed(0xC0C0C0C0C0C0C0C0)
_MAX_NESTING = 16
_STEP = 16  # tokens between two looks at the end


@inner
def big_endian(at: int, size: int) -> int:
    """An unsigned number of 1 to 8 bytes (8: as int64)."""
    return shift_right(swap_bytes(load_64(at)), 64 - 8 * size)


@inner
def array_head(at: int) -> int:
    """count << 4 | bytes of the header, or -1."""
    tag = load_8(at)
    if tag & 0xF0 == 0x90:
        return (tag & 15) << 4 | 1
    if tag == 0xDC:
        return big_endian(at + 1, 2) << 4 | 3
    return big_endian(at + 1, 4) << 4 | 5 if tag == 0xDD else -1


@inner
def map_head(at: int) -> int:
    """pairs << 4 | bytes of the header, or -1."""
    tag = load_8(at)
    if tag & 0xF0 == 0x80:
        return (tag & 15) << 4 | 1
    if tag == 0xDE:
        return big_endian(at + 1, 2) << 4 | 3
    return big_endian(at + 1, 4) << 4 | 5 if tag == 0xDF else -1


@inner
def natural(at: int) -> int:
    """A number from 0 to 2^32 - 1, or -1; `natural_end` has its end."""
    tag = load_8(at)
    if tag < 0x80:
        return tag
    return big_endian(at + 1, 1 << (tag - 0xCC)) if 0xCC <= tag <= 0xCE else -1


@inner
def natural_end(at: int) -> int:
    """The address behind a number that `natural` understood."""
    tag = load_8(at)
    return at + 1 if tag < 0x80 else at + 1 + (1 << (tag - 0xCC))


@inner
def whole_end(at: int) -> int:
    """The address behind an integer of any form; -1 when it is none."""
    tag = load_8(at)
    if tag < 0x80 or tag >= 0xE0:
        return at + 1
    return at + 1 + (1 << (tag & 3)) if 0xCC <= tag <= 0xD3 else -1


@inner
def whole(at: int) -> int:
    """An integer of any form, modulo 2^64, as int64."""
    tag = load_8(at)
    if tag < 0x80:
        return tag
    if tag >= 0xE0:
        return tag - 256
    size = 1 << (tag & 3)
    value = big_endian(at + 1, size)
    if tag >= 0xD0 and size < 8:
        sign = 1 << (8 * size - 1)
        return (value ^ sign) - sign
    return value


@inner
def hash_into(at: int, end: int, target: int) -> int:
    """Write the normal form of a block hash: an integer modulo 2^64, of bytes the last 8."""
    tag = load_8(at)
    if tag in (0xCF, 0xD3):
        store_64(target, swap_bytes(load_64(at + 1)))
        return at + 9
    if tag == 0xC4:
        size = load_8(at + 1)
        behind = at + 2 + size
        if size == 0 or behind > end:
            return -1
        store_64(target, big_endian(behind - 8, 8) if size >= 8 else big_endian(at + 2, size))
        return behind
    behind = whole_end(at)
    if behind >= 0:
        store_64(target, whole(at))
    return behind


@inner
def hashes_into(at: int, end: int, target: int, count: int) -> int:
    """Write `count` hashes, 8 bytes each."""
    for place in range(count):
        if at >= end:
            return -1
        at = hash_into(at, end, target + place * 8)
        if at < 0:
            return -1
    return at if at <= end else -1


@inner
def _token_into(raw: int, more: int, target: int) -> int:
    """Write one token id of 1 + `more` bytes; the value, and bits above 2^31 when it is none."""
    wide = shift_right(raw, 7) & 1
    value = shift_right(swap_bytes(raw) << (wide << 3), 64 - ((more + 1 - wide) << 3))
    store_32(target, value)
    return value | (-wide & ((raw & 0xFC) ^ 0xCC | more & 8)) << 32


@inner
def tokens_into(at: int, end: int, target: int, count: int) -> int:
    """Write `count` token ids from 0 to 2^31 - 1, 4 bytes each.

    Sizes vary from id to id, so nothing is predicted: a pair is taken apart without a branch, with garbage where an id is of
    another form, and only the flags in `wrong` say at the end whether there was any. `_STEP` ids are at most 9 * _STEP bytes.
    """
    wrong, done = 0, 0
    while done + _STEP <= count:
        if at > end:
            return -1
        for _ in range(_STEP // 2):
            raw = load_64(at)
            more = (shift_right(raw, 7) & 1) << (raw & 3)  # bytes behind the tag
            second = at + 1 + more
            following = shift_right(raw, 8 + (more << 3) & 63)  # from what is loaded already: the sizes are a chain of waits
            more_behind = (shift_right(following, 7) & 1) << (following & 3)
            at = second + 1 + more_behind
            wrong |= _token_into(raw, more, target + done * 4) | _token_into(load_64(second), more_behind, target + done * 4 + 4)
            done += 2
    while done < count:
        if at >= end:
            return -1
        value = natural(at)
        if value < 0:
            return -1
        store_32(target + done * 4, value)
        wrong |= value
        at = natural_end(at)
        done += 1
    return at if at <= end and shift_right(wrong, 31) == 0 else -1


@inner
def nils_end(at: int, end: int, count: int) -> int:
    """The address behind `count` nils; -1 when something else is among them."""
    behind = at + count
    if behind > end:
        return -1
    while at + 8 <= behind:
        if load_64(at) != _NILS:
            return -1
        at += 8
    while at < behind:
        if load_8(at) != NIL:
            return -1
        at += 1
    return behind


@inner
def text_end(at: int, end: int) -> int:
    """The address behind an ASCII text; -1 also when it is not ASCII."""
    tag = load_8(at)
    if tag & 0xE0 == 0xA0:
        size, start = tag & 31, at + 1
    elif 0xD9 <= tag <= 0xDB:
        width = 1 << (tag - 0xD9)
        size, start = big_endian(at + 1, width), at + 1 + width
    else:
        return -1
    behind = start + size
    if behind > end:
        return -1
    bits = 0
    while start + 8 <= behind:
        bits |= load_64(start)
        start += 8
    while start < behind:
        bits |= load_8(start)
        start += 1
    return behind if bits & _HIGH_BITS == 0 else -1


@inner
def _plain_end(at: int, end: int) -> int:
    """The address behind a value that holds no others; -1 for those that do too."""
    tag = load_8(at)
    if tag in (NIL, 0xC2, 0xC3):
        return at + 1
    if tag in (0xCA, 0xCB):
        return at + 5 if tag == 0xCA else at + 9
    if 0xC4 <= tag <= 0xC6:
        width = 1 << (tag - 0xC4)
        return at + 1 + width + big_endian(at + 1, width)
    if tag & 0xE0 == 0xA0 or 0xD9 <= tag <= 0xDB:
        return text_end(at, end)
    return whole_end(at)


@inner
def skip(at: int, end: int, stack: int) -> int:
    """The address behind one value of any kind; stack: _MAX_NESTING + 1 words, each 2 * values left | 1 inside a map."""
    depth = 0
    store_64(stack, 2)
    while True:
        left = load_64(stack + depth * 8)
        if left < 2:
            if depth == 0:
                return at
            depth -= 1
            continue
        store_64(stack + depth * 8, left - 2)
        if at >= end:
            return -1
        if left & 3 == 1:  # in a map, an even number of values left: a key
            at = text_end(at, end)
            if at < 0:
                return -1
            continue
        pairs = map_head(at)
        head = pairs if pairs >= 0 else array_head(at)
        if head < 0:
            at = _plain_end(at, end)
            if at < 0 or at > end:
                return -1
            continue
        at += head & 15
        in_map = 1 if pairs >= 0 else 0
        count = shift_right(head, 4) << in_map
        depth += 1
        if count > end - at or depth > _MAX_NESTING:
            return -1
        store_64(stack + depth * 8, count << 1 | in_map)
