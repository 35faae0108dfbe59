"""The reading face: one object per thread that matches, beside the one writer, in its process or in another."""

from __future__ import annotations

import numpy as np

from radix.core.entries import Entries, Int64Array
from radix.core.layout import (
    MAGIC,
    MARK,
    SCRATCH_LOAD,
    SCRATCH_STAMPS,
    SCRATCH_WANTED,
    SCRATCH_WIDTH,
    SCRATCH_WORDS,
    TIERS_USED,
    WIDENED,
    WORDS,
)
from radix.core.memory import Memory
from radix.errors import RadixError
from radix.match import TIERS, Int32Array

Row = tuple[int, int]  # depth in blocks, members (bit 64 * words * tier + holder) whose run ends there


class Matcher:
    """Scratch memory and the calls that use it. Not for two threads at once."""

    def __init__(self, memory: Memory, entries: Entries, *, stamping: bool = True) -> None:
        """stamping: matches are noted in the tree, for the byte budget; needs memory that may be written."""
        self._stamping = stamping
        self._base = memory.base
        self._memory = memory
        self._entries = entries
        self._header = memory.words(0, 64)
        if int(self._header[MAGIC >> 3]) != MARK:
            raise RadixError("the memory holds no tree of this version")
        self._load = np.zeros(0, np.int64)
        self._wanted: tuple[int, ...] | None = None
        self._fit()

    def set_load(self, load: Int64Array) -> None:
        """Load by holder, read at each `best`: on equal depth the smallest one wins. The array is not copied.

        load: int64 [>= room], contiguous; when the room grows it has to be set anew.
        """
        if load.dtype != np.int64 or not load.flags.c_contiguous or load.ndim != 1 or len(load) < self.room:
            raise RadixError(f"load must be int64 [{self.room}] or longer, got {load.dtype} {load.shape}")
        self._load = load
        self._scratch[SCRATCH_LOAD] = load.ctypes.data

    @property
    def room(self) -> int:
        """Holder numbers that fit the nodes as they are."""
        return 64 * self._words

    def want(self, members: tuple[int, ...] | None) -> None:
        """Look at these holders only, one integer of holder bits; None is all of them."""
        self._wanted = members
        wanted = self._scratch[SCRATCH_WANTED : SCRATCH_WANTED + self._words * self._tiers]
        if members is None:
            wanted[:] = -1
            return
        bits = sum(1 << holder for holder in members)
        one = np.frombuffer((bits & ((1 << 64 * self._words) - 1)).to_bytes(8 * self._words, "little"), np.int64)
        wanted.reshape(self._tiers, self._words)[:] = one

    def best(self, root: int, grain: int, tokens: Int32Array) -> tuple[int, int] | None:
        """(holder, blocks) of the deepest match; (-1, 0) when nobody has anything, None when the tree was too busy changing."""
        answer = self._entries.best(self._base, self._address, root, grain, tokens)
        if answer > 0:
            return answer & 0xFFFFFFFF, answer >> 32
        if answer == 0:
            return -1, 0
        return self.best(root, grain, tokens) if self._refit(answer) else None

    def rows(self, root: int, grain: int, tokens: Int32Array) -> list[Row] | None:
        """Who drops out at which depth, from short to long; None when the tree was too busy changing."""
        answer = self._entries.match(self._base, self._address, root, grain, tokens)
        if answer < 0:
            return self.rows(root, grain, tokens) if self._refit(answer) else None
        width = self._words * self._tiers
        start = SCRATCH_WANTED + 3 * width
        found = self._scratch[start : start + (answer >> 32) * (1 + width)].reshape(-1, 1 + width)
        return [(int(row[0]), int.from_bytes(row[1:].tobytes(), "little")) for row in found]

    def raw(self, root: int, grain: int, tokens: Int32Array) -> int:
        """rows << 32 | depth, the rows left in the scratch; a negative code of `layout` instead."""
        return self._entries.match(self._base, self._address, root, grain, tokens)

    def depths(self, root: int, grain: int, tokens: Int32Array, out: Int32Array) -> bool:
        """Raise `out` [holders, TIERS] to the matched tokens; False when the tree was too busy changing."""
        answer = self._entries.depths(self._base, self._address, root, grain, tokens, out)
        if answer < 0:
            return self.depths(root, grain, tokens, out) if self._refit(answer) else False
        return True

    def holders(self, root: int, grain: int, tokens: Int32Array) -> dict[int, int] | None:
        """Blocks by holder, on the fastest tier; None when the tree was too busy changing."""
        answer = self._entries.pairs(self._base, self._address, root, grain, tokens, self._pairs)
        if answer < 0:
            return self.holders(root, grain, tokens) if self._refit(answer) else None
        half = len(self._pairs) >> 1
        return dict(zip(self._pairs[:answer].tolist(), self._pairs[half : half + answer].tolist(), strict=True))

    def _refit(self, answer: int) -> bool:
        if answer != WIDENED:
            return False
        self._fit()
        return True

    def _fit(self) -> None:
        """Take scratch memory for the members there are now."""
        self._words = int(self._header[WORDS >> 3])
        self._tiers = int(self._header[TIERS_USED >> 3])
        width = self._words * self._tiers
        rows = 64 * width + 1
        self._scratch = np.zeros(SCRATCH_WANTED + 3 * width + rows * (1 + width), np.int64)
        self._scratch[SCRATCH_WIDTH], self._scratch[SCRATCH_WORDS] = width, self._words
        self._scratch[SCRATCH_STAMPS] = int(self._stamping)
        self._scratch[SCRATCH_LOAD] = self._load.ctypes.data if len(self._load) >= self.room else 0
        self._address = int(self._scratch.ctypes.data)
        self._pairs = np.zeros(2 * 64 * self._words, np.int64)
        self.want(self._wanted)


def empty_depths(holders: int) -> Int32Array:
    """A matrix for `Matcher.depths`."""
    return np.zeros((holders, TIERS), np.int32)
