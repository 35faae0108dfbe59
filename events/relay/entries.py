"""Entries of one epoch, in order: each continues the compression of those before, so that what was said once costs little again.

An epoch is a stretch of the stream that makes sense by itself, together with the snapshot it begins with.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from events.errors import RelayDataError
from events.relay.frame import ENTRY, Frame, unpack
from events.relay.ops import Op, OpReader, OpWriter, little_endian

HISTORY_BYTES = 32 * 1024  # how far back deflate looks
MAX_ENTRY_BYTES = 256 * 2**20  # of the body, opened
_RAW = -15  # deflate without header
_LEVEL = 6
_SYNC_MARK = b"\x00\x00\xff\xff"  # ends each flush, so it need not be sent


@dataclass(frozen=True, slots=True)
class CodecState:
    """What must be known to read the entry after `number`. table, free: hashes by slot, and slots to take next, last first."""

    number: int
    next_seq: int
    last_us: int
    block_tokens: int
    last_slot: int
    table: array[int]
    free: tuple[int, ...]
    history: bytes


class Encoder:
    """Writes the entries of one epoch, numbered from 0."""

    def __init__(self, epoch: bytes) -> None:
        self.epoch = epoch
        self.number = -1  # of the newest entry
        self._ops = OpWriter()
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        self._history = b""

    def entry(self, ops: Sequence[Op]) -> bytes:
        """The next entry."""
        body, hashes = bytearray(), array("Q")
        self._ops.write(ops, body, hashes)
        self.number += 1
        packed = self._deflate.compress(body) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        assert packed.endswith(_SYNC_MARK)
        self._history = (self._history + body)[-HISTORY_BYTES:]
        return Frame(ENTRY, self.epoch, self.number, little_endian(hashes), packed[: -len(_SYNC_MARK)]).pack()

    def state(self) -> CodecState:
        """What a reader has to know that reads on from here."""
        ops = self._ops
        return CodecState(
            self.number,
            ops.next_seq,
            ops.last_us,
            ops.block_tokens,
            ops.last_slot,
            ops.table(),
            tuple(ops.free),
            self._history,
        )


class Decoder:
    """Reads the entries of one epoch from a state on."""

    def __init__(self, epoch: bytes, state: CodecState) -> None:
        self.epoch = epoch
        self.number = state.number  # of the newest entry read
        ops = self._ops = OpReader()
        ops.next_seq, ops.last_us = state.next_seq, state.last_us
        ops.block_tokens, ops.last_slot = state.block_tokens, state.last_slot
        ops.table, ops.free = state.table[:], list(state.free)
        self._inflate = zlib.decompressobj(_RAW, zdict=state.history)

    def read(self, frame: Frame) -> list[Op]:
        """What the next entry says; raises RelayDataError, after which this decoder is of no use."""
        if frame.epoch != self.epoch or frame.number != self.number + 1:
            raise RelayDataError(f"entry {frame.epoch.hex()}/{frame.number} is not behind {self.epoch.hex()}/{self.number}")
        try:
            body = self._inflate.decompress(frame.body + _SYNC_MARK, MAX_ENTRY_BYTES)
        except zlib.error as error:
            raise RelayDataError(f"entry {frame.number} cannot be opened: {error}") from None
        if self._inflate.unconsumed_tail or self._inflate.eof:
            raise RelayDataError(f"entry {frame.number} has more than {MAX_ENTRY_BYTES} bytes, or ends the epoch's compression")
        ops = self._ops.read(body, frame.hashes)
        self.number = frame.number
        return ops


def unpack_entry(data: bytes) -> Frame:
    """The frame of one entry; raises RelayDataError."""
    return unpack(data, ENTRY)
