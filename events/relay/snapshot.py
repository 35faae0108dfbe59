"""A whole view at one place of a stream, in one piece: what a gateway starts from that joins late.

The view is told as events in the entries' own form, under a table of block names of its own; behind it stands what an entry's
reader must know to read on from there.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from events.errors import RelayDataError
from events.relay.entries import HISTORY_BYTES, CodecState
from events.relay.frame import SNAPSHOT, Frame, unpack
from events.relay.inventory import Inventory, told
from events.relay.ops import OpReader, OpWriter, little_endian
from events.relay.wire import Reader, put_bytes, put_int, put_uint
from events.types import Freshness
from radix.changes import Event

MAX_SNAPSHOT_BYTES = 2**30  # of the body, opened
_LEVEL = 6
_STATES = tuple(Freshness)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """events: in order, they lead an empty view to what it was behind entry `codec.number` of the epoch."""

    epoch: bytes
    freshness: Freshness
    counting: bool
    events: Sequence[Event]
    codec: CodecState


def pack_snapshot(epoch: bytes, freshness: Freshness, counting: bool, inventory: Inventory, codec: CodecState) -> bytes:
    """As bytes; takes about 2 us per block, so a thread is the place for a large one."""
    writer, body, hashes = OpWriter(), bytearray(), array("Q")
    body.append(_STATES.index(freshness))
    body.append(counting)
    events = list(told(inventory))
    put_uint(body, len(events))
    for event in events:
        writer.event(event, body, hashes)
    put_int(body, codec.next_seq)
    put_int(body, codec.last_us)
    put_uint(body, codec.block_tokens)
    put_uint(body, codec.last_slot)
    put_uint(body, len(codec.table))
    put_uint(body, len(codec.free))
    last = 0
    for slot in codec.free:
        put_int(body, slot - last)
        last = slot
    free = set(codec.free)
    for slot, block_hash in enumerate(codec.table):
        if slot not in free:
            writer.mention(block_hash, body, hashes)
    put_bytes(body, codec.history)
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
    packed = deflate.compress(body) + deflate.flush()
    return Frame(SNAPSHOT, epoch, codec.number + 1, little_endian(hashes), packed).pack()


def unpack_snapshot(data: bytes) -> Snapshot:
    """What `pack_snapshot` wrote; raises RelayDataError."""
    frame = unpack(data, SNAPSHOT)
    inflate = zlib.decompressobj(-15)
    try:
        body = inflate.decompress(frame.body, MAX_SNAPSHOT_BYTES)
    except zlib.error as error:
        raise RelayDataError(f"snapshot cannot be opened: {error}") from None
    if not inflate.eof:
        raise RelayDataError(f"snapshot is cut, or has more than {MAX_SNAPSHOT_BYTES} bytes")
    reader, named = Reader(body), Reader(frame.hashes)
    state = reader.byte()
    if state >= len(_STATES):
        raise RelayDataError(f"freshness {state}")
    counting = bool(reader.byte())
    ops = OpReader()
    count = reader.uint()
    if count > reader.left:
        raise RelayDataError(f"{count} events")
    events = [ops.event(reader, named) for _ in range(count)]
    codec = _codec(frame.number - 1, ops, reader, named)
    if reader.left or named.left:
        raise RelayDataError(f"{reader.left + named.left} bytes too many")
    return Snapshot(frame.epoch, _STATES[state], counting, events, codec)


def _codec(number: int, ops: OpReader, reader: Reader, named: Reader) -> CodecState:
    next_seq, last_us, block_tokens, last_slot = reader.signed(), reader.signed(), reader.uint(), reader.uint()
    size, free_count = reader.uint(), reader.uint()
    if size > reader.left + free_count or free_count > min(size, reader.left):
        raise RelayDataError(f"table of {size} with {free_count} free")
    free: list[int] = []
    last = 0
    for _ in range(free_count):
        last += reader.signed()
        free.append(last)
    unused = set(free)
    if len(unused) != len(free) or (free and not 0 <= min(free) <= max(free) < size):
        raise RelayDataError("free places are not in the table")
    table = array("Q", [0 if slot in unused else ops.mentioned(reader, named) for slot in range(size)])
    history = reader.string()
    if len(history) > HISTORY_BYTES:
        raise RelayDataError(f"history of {len(history)} bytes")
    return CodecState(number, next_seq, last_us, block_tokens, last_slot, table, tuple(free), history)
