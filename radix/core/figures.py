"""What the compiled tree says of itself and of its changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radix.core.layout import (
    ARENA_HIGH,
    ARENA_USED,
    BLOCKS,
    CLOCK_BYTES,
    HANDLES,
    NODE_NEXT,
    NODES_LIVE,
    SHARES_USED,
    STRIDE,
    STUBS,
    UNIT,
)

Header = npt.NDArray[np.int64]


class Stored(NamedTuple):
    """What a store did, in blocks. new: hashes that were not there. rejected: behind a hash of another place, or too deep."""

    new: int
    rejected: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the tree consists of. bytes: memory in use, without freed parts; reserved_bytes: with them."""

    nodes: int
    stubs: int
    blocks: int
    handles: int
    shares: int
    bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """What an eviction took. leaves: edges that were cut; dropped: how many hashes each ledger lost, where it lost any."""

    leaves: int
    bytes: int
    dropped: dict[int, int]

    def __add__(self, other: Evicted) -> Evicted:
        """Both together."""
        dropped = dict(self.dropped)
        for ledger, count in other.dropped.items():
            dropped[ledger] = dropped.get(ledger, 0) + count
        return Evicted(self.leaves + other.leaves, self.bytes + other.bytes, dropped)


@dataclass(frozen=True, slots=True)
class Handle:
    """One hash of a ledger: the root, the node (as long as nothing changes) and the depth of its block, and its copies."""

    hash: int
    root: int
    node: int
    depth: int
    copies: int


def bytes_used(header: Header) -> int:
    """Memory in use; the same sum as `evicting.bytes_used`."""
    nodes = int(header[NODES_LIVE >> 3]) + int(header[STUBS >> 3])
    return int(header[ARENA_USED >> 3]) * UNIT + nodes * (int(header[STRIDE >> 3]) + CLOCK_BYTES)


def sizes_of(header: Header) -> Sizes:
    """Sizes now; costs nothing."""
    per_node = int(header[STRIDE >> 3]) + CLOCK_BYTES
    return Sizes(
        nodes=int(header[NODES_LIVE >> 3]),
        stubs=int(header[STUBS >> 3]),
        blocks=int(header[BLOCKS >> 3]),
        handles=int(header[HANDLES >> 3]),
        shares=int(header[SHARES_USED >> 3]),
        bytes=bytes_used(header),
        reserved_bytes=int(header[ARENA_HIGH >> 3]) * UNIT + int(header[NODE_NEXT >> 3]) * per_node,
    )
