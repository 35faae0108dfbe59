"""Token ids of texts seen before, under one byte budget; what was used longest ago goes first.

Keys hold prompt text: they stay in this process, never on disk and never in a log.
"""

from __future__ import annotations

import sys
from collections import OrderedDict

from radix.match import Int32Array

# A segment is keyed by its text; a turn of a plan by the number of its kind and its content.
Key = str | tuple[int, str]

_ENTRY_BYTES = 400  # the key's tuple, the array's head, the entry in the table
_LARGEST_SHARE = 8  # one entry may take an eighth of the budget: larger ones would empty the cache for one request


class TokenCache:
    """Ids by text. Not thread safe: the loop alone reads and changes it."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes = 0
        self._entries: OrderedDict[Key, Int32Array] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Int32Array | None:
        """The ids, int32 [n], which must not be written to; None where they are not known."""
        ids = self._entries.get(key)
        if ids is not None:
            self._entries.move_to_end(key)
        return ids

    def put(self, key: Key, ids: Int32Array) -> None:
        """Remember ids, which nobody may write to from now on."""
        old = self._entries.pop(key, None)
        if old is not None:
            self.bytes -= _size(key, old)
        size = _size(key, ids)
        if size > self.budget_bytes // _LARGEST_SHARE:
            return
        self._entries[key] = ids
        self.bytes += size
        while self.bytes > self.budget_bytes:
            self.bytes -= _size(*self._entries.popitem(last=False))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.bytes = 0


def _size(key: Key, ids: Int32Array) -> int:
    text = key if isinstance(key, str) else key[1]
    return sys.getsizeof(text) + ids.nbytes + _ENTRY_BYTES
