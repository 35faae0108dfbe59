"""What surrounds an entry or a snapshot: whose it is, its number, a checksum, and a body whose block hashes stand apart.

Hashes look like noise, so they stay outside what is compressed. The checksum covers everything else: a damaged entry is told
from a good one before any of it is believed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from events.errors import RelayDataError
from events.relay.wire import Reader, put_uint

ENTRY = 0x11
SNAPSHOT = 0x12
EPOCH_BYTES = 8
_CRC_BYTES = 4
HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry or snapshot, not opened yet.

    epoch, number: the stretch of the stream it belongs to and its place there. hashes: 8 bytes each. body: compressed.
    """

    kind: int
    epoch: bytes
    number: int
    hashes: bytes
    body: bytes

    def pack(self) -> bytes:
        """As bytes."""
        out = bytearray((self.kind,))
        out += self.epoch
        put_uint(out, self.number)
        put_uint(out, len(self.hashes) // HASH_BYTES)
        out += self.hashes
        out += self.body
        return zlib.crc32(out).to_bytes(_CRC_BYTES, "little") + bytes(out)


def unpack(data: bytes, kind: int) -> Frame:
    """The frame of an entry or a snapshot; raises RelayDataError for anything else."""
    reader = Reader(data)
    crc = int.from_bytes(reader.take(_CRC_BYTES), "little")
    if zlib.crc32(memoryview(data)[_CRC_BYTES:]) != crc:
        raise RelayDataError(f"{len(data)} bytes do not fit their checksum")
    found = reader.byte()
    if found != kind:
        raise RelayDataError(f"kind {found:#04x}, want {kind:#04x}; a relay of another version?")
    epoch = reader.take(EPOCH_BYTES)
    number = reader.uint()
    hashes = reader.take(reader.uint() * HASH_BYTES)
    return Frame(kind, epoch, number, hashes, reader.take(reader.left))
