"""One replica's paged KV pool with its prefix cache, keyed by the trace's block ids.

An engine's own pool hashes the tokens of each block and keeps an object per block; a trace has already done that work: equal
id, equal prefix. So here a block is an id in one of two dictionaries, and 512 tokens cost one operation where sixteen-token
blocks would cost 32. The rules are those of an engine with reference counts: blocks of running requests are pinned, blocks
nobody uses stay hits until their room is needed, oldest first and the tail of a prompt before its head. A request that
computes a block somebody published meanwhile gives its own copy back.

Room for a request's whole output is reserved when it starts, so nothing is ever preempted. Generated tokens become hits
where the trace says which blocks they fill, else once a later prompt that contains them has been computed.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulations.errors import SettingError


@dataclass(slots=True)
class Lease:
    """What one running request holds: blocks with an id, head first, and blocks without one yet."""

    named: list[int] = field(default_factory=list)
    unnamed: int = 0
    hit_blocks: int = 0


class Pool:
    """Counts of blocks, who is cached, and who goes next."""

    def __init__(self, capacity_blocks: int | None) -> None:
        if capacity_blocks is not None and capacity_blocks < 1:
            raise SettingError(f"a KV pool needs at least 1 block, got {capacity_blocks}")
        self.capacity = sys.maxsize if capacity_blocks is None else capacity_blocks
        self.free = self.capacity
        self.evicted: list[int] = []  # since the engine last took it, oldest first
        self._pins: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def cached_blocks(self) -> int:
        """Blocks that a request can hit now."""
        return len(self._pins) + len(self._idle)

    @property
    def pinned_blocks(self) -> int:
        """Cached blocks that a running request holds."""
        return len(self._pins)

    def admit(self, ids: Sequence[int], total_blocks: int) -> Lease | None:
        """Pin the leading run of cached blocks and reserve the rest of `total_blocks`; None when there is no room now."""
        pins, idle = self._pins, self._idle
        run = idle_hits = 0
        for block in ids:
            if block in idle:
                idle_hits += 1
            elif block not in pins:
                break
            run += 1
        fresh = total_blocks - run
        if fresh > self.free + len(idle) - idle_hits:
            return None
        named = list(ids[:run])
        for block in named:
            if pins.setdefault(block, 0) == 0:
                del idle[block]
            pins[block] += 1
        while self.free < fresh:
            self.evicted.append(idle.popitem(last=False)[0])
            self.free += 1
        self.free -= fresh
        return Lease(named, fresh, run)

    def publish(self, lease: Lease, ids: Sequence[int]) -> list[int]:
        """Name the next blocks of a request once their KV is written; returns those that were not cached before."""
        pins, idle = self._pins, self._idle
        stored = []
        for block in ids:
            if block in pins or block in idle:
                self.free += 1
                idle.pop(block, None)
            else:
                stored.append(block)
            pins[block] = pins.get(block, 0) + 1
        lease.named.extend(ids)
        lease.unnamed -= len(ids)
        return stored

    def unname_last(self, lease: Lease) -> bool:
        """Take the name off a request's last named block, which it goes on writing; False, and no change, when it is shared."""
        if self._pins[lease.named[-1]] > 1:
            return False
        del self._pins[lease.named.pop()]
        lease.unnamed += 1
        return True

    def release(self, lease: Lease) -> None:
        """Give everything back; blocks with an id stay cached, the head of the prompt as the youngest."""
        pins, idle = self._pins, self._idle
        for block in reversed(lease.named):
            left = pins[block] - 1
            if left:
                pins[block] = left
            else:
                del pins[block]
                idle[block] = None
        self.free += lease.unnamed
        lease.named, lease.unnamed = [], 0

    def check(self, leases: Sequence[Lease]) -> None:
        """Assert that blocks are neither lost nor counted twice, given all leases that are out."""
        unnamed = sum(lease.unnamed for lease in leases)
        assert self.free + len(self._idle) + len(self._pins) + unnamed == self.capacity, "blocks lost or counted twice"
        assert sum(self._pins.values()) == sum(len(lease.named) for lease in leases), "references left"
        assert self.free >= 0, f"{self.free} free blocks"
        assert not self._pins.keys() & self._idle.keys(), "a block is pinned and idle"
