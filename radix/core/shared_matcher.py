"""The reading face for another process: roots by key, and what it can tell of the process that writes."""

from __future__ import annotations

from pathlib import Path

from radix.core.entries import load
from radix.core.keyed import load_keyed
from radix.core.layout import HEARTBEAT, SEQUENCE, WIDENED
from radix.core.matcher import Matcher
from radix.core.memory import Memory
from radix.match import Int32Array


class SharedMatcher(Matcher):
    """A `Matcher` over memory that another process writes, or wrote until it died. Not for two threads at once."""

    def __init__(self, memory: Memory, jit_folder: Path | None = None) -> None:
        super().__init__(memory, load(jit_folder))
        self._keyed = load_keyed(jit_folder)
        self._stuck_at: int | None = None  # the odd sequence number at which a match gave up
        self.gave_up = 0

    @property
    def written_at_ns(self) -> int:
        """When the writer last said that it lives, on the monotonic clock in nanoseconds; 0 when it never did."""
        return int(self._header[HEARTBEAT >> 3])

    def depths_by_key(self, key: Int32Array, grain: int, tokens: Int32Array, out: Int32Array) -> bool:
        """Raise `out` [holders, TIERS] to the matched tokens; False when the tree was too busy changing, or its writer died.

        key: int32 [16], `root_key`; a root that is not there matches nothing.
        """
        if self._stuck_at is not None:
            if int(self._header[SEQUENCE >> 3]) == self._stuck_at:
                self.gave_up += 1
                return False
            self._stuck_at = None
        answer = self._keyed.depths(self._base, self._address, key, grain, tokens, out)
        if answer >= 0:
            return True
        if answer == WIDENED:
            self._fit()
            return self.depths_by_key(key, grain, tokens, out)
        self.gave_up += 1
        sequence = int(self._header[SEQUENCE >> 3])
        self._stuck_at = sequence if sequence & 1 else None
        return False
