"""The one mapping: reserved sparse, touched lazily; private, or shared with other processes through a handle.

Shared memory is an anonymous file (memfd) and not a name under /dev/shm: containers give that folder 64 MiB, and touching a page
beyond the limit ends the process with SIGBUS; nothing is left behind by a process that was killed; and who may open it is whoever
was handed it. The size is sealed, so nobody can cut it off under a reader.

Invariants
- Fresh memory is zero. Address space is reserved without commitment; only touched pages count.
- The mapping lives as long as this object; nothing is unmapped under a reader, so `close` is for the very end.
- Only who made it can write; another process maps it to read, all but the clocks, which say what was used (see `clocks`).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys

import numpy as np
import numpy.typing as npt

from radix.core.layout import CLOCK_BYTES, CLOCKS, NODE_MASK, TOTAL
from radix.errors import RadixError

_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
_REMOVE = 9  # MADV_REMOVE: gives back shared pages


class Memory:
    """A mapping of `layout.TOTAL` bytes. handle: the file behind it, to be opened elsewhere; None where it is private."""

    def __init__(self, *, shared: bool = False, handle: int | None = None, huge_pages: bool = True) -> None:
        """shared: other processes may read it. handle: another process's memory, to read. huge_pages: ask the system for them."""
        self.writable = handle is None
        self.huge_pages = huge_pages
        self.release_advice = _REMOVE if shared else mmap.MADV_DONTNEED
        self.handle = handle
        try:
            if shared:
                self.handle = _anonymous_file()
            self._map = self._mapped()
        except (OSError, ValueError) as error:
            raise RadixError(f"cannot map {TOTAL >> 30} GiB of address space for the index (shared={shared}): {error}") from error
        if huge_pages and self.writable and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE, 0, TOTAL)
        self.base = int(np.frombuffer(self._map, np.uint8, 1).ctypes.data)
        if not self.writable:
            _let_write(self.base + CLOCKS, (NODE_MASK + 1) * CLOCK_BYTES)

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
            self._map.madvise(self.release_advice, first, last - first)

    def _mapped(self) -> mmap.mmap:
        if self.handle is None:
            return mmap.mmap(-1, TOTAL, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        if not self.writable and os.fstat(self.handle).st_size != TOTAL:  # reading behind the end of a file is SIGBUS
            raise ValueError(f"handle {self.handle} is no memory of an index")
        access = mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)
        return mmap.mmap(self.handle, TOTAL, flags=mmap.MAP_SHARED | _NORESERVE, prot=access)


def _anonymous_file() -> int:
    if not hasattr(os, "memfd_create"):
        raise ValueError("memory shared between processes needs Linux (memfd)")
    handle = os.memfd_create("trunkline-index", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, TOTAL)
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return handle


def _let_write(address: int, size: int) -> None:
    """Make whole pages of a shared mapping writable, which Python's own mappings cannot be in part."""
    system = ctypes.CDLL(None, use_errno=True)
    if system.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE):
        raise RadixError(f"cannot write the clocks of a shared index: {os.strerror(ctypes.get_errno())}")
