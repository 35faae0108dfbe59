"""The sequence lock: one writer, readers that never wait for it.

The number is odd while the tree changes. A reader that saw the same even number before and after saw one state of the tree.
"""

from __future__ import annotations

from radix.core.atomics import fence_acquire, fence_release, load_64, load_acquire, load_relaxed, store_relaxed, store_release
from radix.core.jit import inner
from radix.core.layout import SEQUENCE


@inner
def begin_change(base: int) -> None:
    """From here to `end_change` what readers see may be torn."""
    store_relaxed(base + SEQUENCE, load_64(base + SEQUENCE) + 1)
    fence_release()


@inner
def end_change(base: int) -> None:
    """Publish; the one store that readers order themselves by."""
    store_release(base + SEQUENCE, load_64(base + SEQUENCE) + 1)


@inner
def begin_read(base: int) -> int:
    """The sequence number; odd means the tree is changing."""
    return load_acquire(base + SEQUENCE)


@inner
def unchanged(base: int, sequence: int) -> bool:
    """Whether everything read since `begin_read` was one state."""
    fence_acquire()
    return load_relaxed(base + SEQUENCE) == sequence
