"""Changes of a view as short operations, and back: the part of the format that engines' words go through.

Block hashes are written once, when they are first mentioned, and named by small numbers after that; a number is free again when
its block is removed. Both sides keep the same table by the same rules, so nothing about it is ever sent.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from events.errors import RelayDataError
from events.relay.frame import HASH_BYTES
from events.relay.wire import Reader, put_bytes, put_int, put_uint
from events.types import Freshness
from radix.changes import NO_HINT, Batch, Cleared, Event, GroupKind, NamespaceHint, Removed, Stored, Tier
from radix.match import Int32Array

Op = Batch | Freshness

_BATCH, _FRESHNESS, _CLEARED, _REMOVED, _STORED = range(5)
_OP_MASK, _TIER_SHIFT, _GROUP, _PARENT, _ALL_NEW = 7, 3, 32, 64, 128
_WIDTH_MASK, _SIZE, _COUNT, _HINT, _KIND, _LEAD = 3, 4, 8, 16, 32, 64  # bits of a store's second byte
_ADAPTER, _SALT = 1, 2

_STATES = tuple(Freshness)
_KINDS = tuple(GroupKind)
_MAX_TS_S = float(2**40)
_MAX_INT32 = 2**31 - 1
_Item = TypeVar("_Item")


class OpWriter:
    """Writes operations; `state` of an `OpReader` that read all of them is that of this."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.last_us = 0
        self.block_tokens = 0
        self.last_slot = 0
        self.free: list[int] = []  # slots, the one to take next at the end
        self._slots: dict[int, int] = {}
        self._table = array("Q")  # hash by slot; stale where free

    def table(self) -> array[int]:
        """A copy of the hashes by slot."""
        return self._table[:]

    def write(self, ops: Sequence[Op], out: bytearray, hashes: array[int]) -> None:
        """Append operations to `out`, and to `hashes` what they mention for the first time."""
        for op in ops:
            if isinstance(op, Freshness):
                out.append(_FRESHNESS)
                out.append(_STATES.index(op))
            else:
                self._batch(op, out)
                for event in op.events:
                    self.event(event, out, hashes)

    def event(self, event: Event, out: bytearray, hashes: array[int]) -> None:
        """Append one event."""
        match event:
            case Stored():
                self._stored(event, out, hashes)
            case Removed():
                out.append(_REMOVED | event.tier << _TIER_SHIFT | (_GROUP if event.group else 0))
                if event.group:
                    put_uint(out, event.group)
                put_uint(out, len(event.hashes))
                for block_hash in event.hashes:
                    slot = self.mention(block_hash, out, hashes)
                    if slot is not None:
                        del self._slots[block_hash]
                        self.free.append(slot)
            case Cleared():
                out.append(_CLEARED)
                self._slots.clear()
                del self._table[:]
                self.free.clear()

    def mention(self, block_hash: int, out: bytearray, hashes: array[int]) -> int | None:
        """Append the name of a block that need not be known; its slot, None where it has none."""
        slot = self._slots.get(block_hash)
        if slot is None:
            out.append(0)
            hashes.append(block_hash)
            return None
        self._name(slot, out)
        return slot

    def _name(self, slot: int, out: bytearray) -> None:
        step = slot - self.last_slot
        put_uint(out, (step << 1 if step >= 0 else ~(step << 1)) + 1)
        self.last_slot = slot

    def _batch(self, batch: Batch, out: bytearray) -> None:
        out.append(_BATCH)
        put_int(out, batch.seq - self.next_seq)
        self.next_seq = batch.seq + 1
        us = round(batch.ts * 1e6) if 0 <= batch.ts < _MAX_TS_S else 0
        put_int(out, us - self.last_us)
        self.last_us = us
        put_uint(out, batch.skipped)
        put_uint(out, len(batch.events))

    def _stored(self, event: Stored, out: bytearray, hashes: array[int]) -> None:
        fresh = self._slots.keys().isdisjoint(event.hashes) and len(set(event.hashes)) == len(event.hashes)
        parent, group = event.parent, event.group
        flags = _STORED | event.tier << _TIER_SHIFT
        flags |= (_GROUP if group else 0) | (_PARENT if parent is not None else 0) | (_ALL_NEW if fresh else 0)
        out.append(flags)
        if group:
            put_uint(out, group)
        if parent is not None:
            self.mention(parent, out, hashes)
        put_uint(out, len(event.hashes))
        for block_hash in event.hashes:
            slot = None if fresh else self._slots.get(block_hash)
            if slot is not None:
                self._name(slot, out)
                continue
            if not fresh:
                out.append(0)
            hashes.append(block_hash)
            self._add(block_hash)
        self._content(event, out)

    def _add(self, block_hash: int) -> None:
        if self.free:
            slot = self.free.pop()
            self._table[slot] = block_hash
        else:
            slot = len(self._table)
            self._table.append(block_hash)
        self._slots[block_hash] = self.last_slot = slot

    def _content(self, event: Stored, out: bytearray) -> None:
        tokens, size = event.tokens, event.block_tokens
        ids = tokens.astype("<i4", copy=False).view("<u4")
        width = max(1, (int(ids.max()).bit_length() + 7) // 8) if len(ids) else 1
        hint = event.namespace_hint
        out.append(
            width - 1
            | (_SIZE if size != self.block_tokens else 0)
            | (_COUNT if len(tokens) != len(event.hashes) * size else 0)
            | (_HINT if hint != NO_HINT else 0)
            | (_KIND if event.kind is not GroupKind.UNSTATED or event.window_tokens else 0)
            | (_LEAD if event.lead else 0)
        )
        if size != self.block_tokens:
            put_uint(out, size)
            self.block_tokens = size
        if len(tokens) != len(event.hashes) * size:
            put_uint(out, len(tokens))
        if hint != NO_HINT:
            _put_hint(out, hint)
        if event.kind is not GroupKind.UNSTATED or event.window_tokens:
            out.append(_KINDS.index(event.kind))
            put_uint(out, event.window_tokens)
        if event.lead:
            put_uint(out, len(event.lead))
            for token in event.lead:
                put_int(out, token)
        out += ids.view(np.uint8).reshape(-1, 4)[:, :width].tobytes()


class OpReader:
    """Reads what an `OpWriter` wrote, from its first operation or from a state that was kept of it."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.last_us = 0
        self.block_tokens = 0
        self.last_slot = 0
        self.free: list[int] = []
        self.table = array("Q")

    def read(self, body: bytes, hashes: bytes) -> list[Op]:
        """All operations of one body; raises RelayDataError, after which this reader is of no use."""
        reader, named = Reader(body), Reader(hashes)
        ops: list[Op] = []
        while reader.left:
            op = reader.byte()
            if op == _BATCH:
                ops.append(self._batch(reader, named))
            elif op == _FRESHNESS:
                ops.append(_one_of(_STATES, reader.byte()))
            else:
                raise RelayDataError(f"operation {op:#04x}")
        return ops

    def _batch(self, reader: Reader, named: Reader) -> Batch:
        seq = self.next_seq + reader.signed()
        self.last_us += reader.signed()
        skipped, count = reader.uint(), reader.uint()
        if seq < 0 or count > reader.left:
            raise RelayDataError(f"batch {seq} of {count} events")
        self.next_seq = seq + 1
        events = tuple([self.event(reader, named) for _ in range(count)])
        return Batch(None, seq, self.last_us / 1e6, events, skipped)

    def event(self, reader: Reader, named: Reader) -> Event:
        """One event."""
        flags = reader.byte()
        op, tier = flags & _OP_MASK, Tier(flags >> _TIER_SHIFT & 3)
        group = reader.uint() if flags & _GROUP else 0
        if group > _MAX_INT32:
            raise RelayDataError(f"cache group {group}")
        if op == _STORED:
            return self._stored(flags, tier, group, reader, named)
        if op == _REMOVED:
            hashes = []
            for _ in range(_at_most(reader.uint(), reader.left)):
                slot = self._slot(reader)
                hashes.append(_hash(named) if slot is None else self.table[slot])
                if slot is not None:
                    self.free.append(slot)
            return Removed(tuple(hashes), tier, group)
        if op == _CLEARED:
            del self.table[:]
            self.free.clear()
            return Cleared()
        raise RelayDataError(f"event {flags:#04x}")

    def mentioned(self, reader: Reader, named: Reader) -> int:
        """The hash of a block that need not be known."""
        slot = self._slot(reader)
        return _hash(named) if slot is None else self.table[slot]

    def _slot(self, reader: Reader) -> int | None:
        code = reader.uint()
        if not code:
            return None
        code -= 1
        slot = self.last_slot + (~(code >> 1) if code & 1 else code >> 1)
        if not 0 <= slot < len(self.table):
            raise RelayDataError(f"block {slot} of {len(self.table)}")
        self.last_slot = slot
        return slot

    def _stored(self, flags: int, tier: Tier, group: int, reader: Reader, named: Reader) -> Stored:
        parent = self.mentioned(reader, named) if flags & _PARENT else None
        fresh = flags & _ALL_NEW
        count = _at_most(reader.uint(), named.left // HASH_BYTES if fresh else reader.left)
        hashes: list[int] = []
        for _ in range(count):
            slot = None if fresh else self._slot(reader)
            hashes.append(self._new(_hash(named)) if slot is None else self.table[slot])
        return self._content(tuple(hashes), parent, tier, group, reader)

    def _new(self, block_hash: int) -> int:
        if self.free:
            slot = self.free.pop()
            if slot >= len(self.table):
                raise RelayDataError(f"block {slot} of {len(self.table)} is free")
            self.table[slot] = block_hash
        else:
            slot = len(self.table)
            self.table.append(block_hash)
        self.last_slot = slot
        return block_hash

    def _content(self, hashes: tuple[int, ...], parent: int | None, tier: Tier, group: int, reader: Reader) -> Stored:
        flags = reader.byte()
        if flags & _SIZE:
            self.block_tokens = _at_most(reader.uint(), _MAX_INT32)
        count = reader.uint() if flags & _COUNT else len(hashes) * self.block_tokens
        hint = _read_hint(reader) if flags & _HINT else NO_HINT
        kind, window = GroupKind.UNSTATED, 0
        if flags & _KIND:
            kind, window = _one_of(_KINDS, reader.byte()), _at_most(reader.uint(), _MAX_INT32)
        lead: tuple[int, ...] = ()
        if flags & _LEAD:
            lead = tuple([_int32(reader.signed()) for _ in range(_at_most(reader.uint(), reader.left))])
        width = (flags & _WIDTH_MASK) + 1
        tokens = _tokens(reader.take(count * width), width)
        return Stored(hashes, parent, tokens, self.block_tokens, hint, tier, group, kind, window, lead)


def _tokens(data: bytes, width: int) -> Int32Array:
    """Token ids of `width` bytes each."""
    ids = np.zeros((len(data) // width, 4), np.uint8)
    ids[:, :width] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return ids.view("<i4").reshape(-1).astype(np.int32, copy=False)


def _put_hint(out: bytearray, hint: NamespaceHint) -> None:
    out.append((_ADAPTER if hint.adapter is not None else 0) | (_SALT if hint.salt is not None else 0))
    for text in (hint.adapter, hint.salt):
        if text is not None:
            put_bytes(out, text.encode())
    put_uint(out, len(hint.media))
    for item in hint.media:
        put_bytes(out, item)


def _read_hint(reader: Reader) -> NamespaceHint:
    flags = reader.byte()
    adapter = reader.text() if flags & _ADAPTER else None
    salt = reader.text() if flags & _SALT else None
    media = tuple([reader.string() for _ in range(_at_most(reader.uint(), reader.left))])
    return NamespaceHint(adapter, salt, media)


def _hash(named: Reader) -> int:
    return int.from_bytes(named.take(HASH_BYTES), "little")


def little_endian(hashes: array[int]) -> bytes:
    """Hashes as they are written."""
    if sys.byteorder == "big":
        hashes = hashes[:]
        hashes.byteswap()
    return hashes.tobytes()


def _at_most(value: int, most: int) -> int:
    if value > most:
        raise RelayDataError(f"{value} where at most {most} can be")
    return value


def _int32(value: int) -> int:
    if not -_MAX_INT32 - 1 <= value <= _MAX_INT32:
        raise RelayDataError(f"token {value}")
    return value


def _one_of(items: Sequence[_Item], index: int) -> _Item:
    if index >= len(items):
        raise RelayDataError(f"{index} where there are {len(items)}")
    return items[index]
