"""The one mapping: reserved sparse, touched lazily, private or under a name that other processes can open.

Invariants
- Fresh memory is zero. Address space is reserved without commitment; only touched pages count.
- The mapping lives as long as this object; nothing is unmapped under a reader, so `close` is for the very end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from radix.core.layout import TOTAL
from radix.errors import RadixError

_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
_SHARED_FOLDER = Path("/dev/shm")
_REMOVE = 9  # MADV_REMOVE: gives back shared pages


class Memory:
    """A mapping of `layout.TOTAL` bytes."""

    def __init__(self, name: str | None = None, *, create: bool = True, huge_pages: bool = True) -> None:
        """name: a file in shared memory, made new or opened; None is private. huge_pages: ask the system for them."""
        self.name = name
        self.huge_pages = huge_pages
        self.release_advice = mmap.MADV_DONTNEED if name is None else _REMOVE
        self._owner = create
        try:
            self._map = self._private() if name is None else self._named(name, create=create)
        except (OSError, ValueError) as error:
            raise RadixError(f"cannot map {TOTAL >> 30} GiB of address space for the index (name={name}): {error}") from error
        if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
            self._advise(mmap.MADV_HUGEPAGE, 0, TOTAL)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def words(self, offset: int, count: int) -> npt.NDArray[np.int64]:
        """`count` int64 at an offset, as a view."""
        return np.frombuffer(self._map, np.int64, count, offset)

    def halves(self, offset: int, count: int) -> npt.NDArray[np.uint32]:
        """`count` uint32 at an offset, as a view."""
        return np.frombuffer(self._map, np.uint32, count, offset)

    def bytes(self, offset: int, count: int) -> npt.NDArray[np.uint8]:
        """`count` bytes at an offset, as a view."""
        return np.frombuffer(self._map, np.uint8, count, offset)

    def give_back(self, offset: int, size: int) -> None:
        """Return whole pages inside a range to the system; they read as zero or as before afterwards."""
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._advise(self.release_advice, first, last - first)

    def unlink(self) -> None:
        """Remove the name; who has it mapped keeps it."""
        if self.name is not None and self._owner:
            (_SHARED_FOLDER / self.name).unlink(missing_ok=True)

    def _advise(self, advice: int, offset: int, size: int) -> None:
        self._map.madvise(advice, offset, size)

    @staticmethod
    def _private() -> mmap.mmap:
        return mmap.mmap(-1, TOTAL, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)

    @staticmethod
    def _named(name: str, *, create: bool) -> mmap.mmap:
        if "/" in name or not _SHARED_FOLDER.is_dir():
            raise ValueError("named memory needs a plain file name and /dev/shm")
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        handle = os.open(_SHARED_FOLDER / name, flags, 0o600)
        try:
            if create:
                os.ftruncate(handle, TOTAL)
            return mmap.mmap(handle, TOTAL, flags=mmap.MAP_SHARED | _NORESERVE)
        finally:
            os.close(handle)
