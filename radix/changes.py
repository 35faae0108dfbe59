"""The changes of a holder's blocks, in the words the index understands.

Engines announce them in many encodings; `events` decodes those into these. They live here, below both, because the index is
what gives them meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np

from radix.match import Int32Array


class Tier(IntEnum):
    """Where a block lies, fastest first; the value indexes the second axis of `Match.depth`."""

    DEVICE = 0
    HOST = 1
    DISK = 2
    SHARED = 3


@dataclass(frozen=True, slots=True)
class NamespaceHint:
    """What an event says about its namespace; the model comes from the holder. Only a first block knows its salt."""

    adapter: str | None = None
    salt: str | None = None
    media: tuple[bytes, ...] = ()


NO_HINT = NamespaceHint()


class GroupKind(Enum):
    """What a cache group must still have at the point where a hit ends, so that the engine can go on from there."""

    UNSTATED = "unstated"  # older engines do not say: judged by how its stores look
    FULL = "full"  # every block from the prompt's start
    WINDOW = "window"  # the blocks of the last window
    CHUNK = "chunk"  # the blocks since the last multiple of the window
    STATE = "state"  # a recurrent state captured exactly there
    NOTHING = "nothing"  # what it keeps does not depend on the prefix


@dataclass(frozen=True, slots=True)
class Stored:
    """A run was stored: `len(hashes)` blocks of `block_tokens` tokens, the first under `parent` (None = a prompt's start).

    hashes, parent: the engine's own ids in normal form (unsigned 64 bits), used only as handles. tokens: int32 [n]; where n is
    not len(hashes) * block_tokens only the complete leading blocks can be placed, and none where n is larger. No tokens: the
    hashes name blocks that another tier of the holder has or will have. kind, window_tokens: of the group.

    lead: where blocks also depend on the tokens that follow them (pairs of tokens, lookahead), that many tokens before the run;
    `tokens` is then shifted by as many, so that a block ends with what follows it.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: Int32Array
    block_tokens: int
    namespace_hint: NamespaceHint = NO_HINT
    tier: Tier = Tier.DEVICE
    group: int = 0
    kind: GroupKind = GroupKind.UNSTATED
    window_tokens: int = 0
    lead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks left one tier of the holder, once per hash named."""

    hashes: tuple[int, ...]
    tier: Tier = Tier.DEVICE
    group: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """The holder dropped everything, on every tier."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one rank announced in one message: events in the order they happened.

    rank: None where the engine does not say (then it is the rank of the socket). ts: the engine's clock, unix seconds.
    skipped: events of the message that were not understood or not well formed.
    """

    rank: int | None
    seq: int
    ts: float
    events: tuple[Event, ...]
    skipped: int = 0


@dataclass(slots=True)
class Applied:
    """What applying a batch did, in blocks (skipped: in events)."""

    stored: int = 0
    removed: int = 0
    orphans: int = 0
    unknown: int = 0
    skipped: int = 0


@dataclass(slots=True)
class Heard:
    """What payloads said and did. events: those not understood too. batches: (ts, rank) of each that was applied to its end."""

    applied: Applied = field(default_factory=Applied)
    events: int = 0
    batches: list[tuple[float, int | None]] = field(default_factory=list)

    def add(self, batch: Batch, applied: Applied) -> None:
        """One batch was applied."""
        self.events += len(batch.events) + batch.skipped
        self.batches.append((batch.ts, batch.rank))
        total = self.applied
        total.stored += applied.stored
        total.removed += applied.removed
        total.orphans += applied.orphans
        total.unknown += applied.unknown
        total.skipped += applied.skipped


def as_tokens(values: object) -> Int32Array:
    """Token ids as the contiguous int32 array the index reads; raises OverflowError for ids beyond 32 bits."""
    return np.ascontiguousarray(values, dtype=np.int32)
