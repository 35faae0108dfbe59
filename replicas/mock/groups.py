"""Cache groups of a hybrid model: what keeps less than every block, and up to where it can serve a prompt again.

The full attention group is the pool itself. A sliding window keeps the blocks of each run until they are pushed out and needs the
last window's; a recurrent state is captured where a step's run of blocks ended and must be there exactly (FC-13).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from events.types import Event, Removed, Stored
from radix.changes import GroupKind
from replicas.errors import ReplicaError

_KINDS = {"full": GroupKind.FULL, "window": GroupKind.WINDOW, "state": GroupKind.STATE}


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One cache group of a model. window_tokens: of a sliding window."""

    kind: GroupKind
    window_tokens: int = 0


def parse_groups(text: str) -> tuple[GroupSpec, ...]:
    """'full', 'window:128,full', 'state,state,full': by group number, exactly one of them full. Raises ReplicaError."""
    groups = []
    for item in text.split(","):
        kind, _, window = item.strip().partition(":")
        if kind not in _KINDS or (kind == "window") != (window.isdigit() and int(window) > 0) or (window and kind != "window"):
            raise ReplicaError(f"group {item!r:.40} is not full, state or window:TOKENS")
        groups.append(GroupSpec(_KINDS[kind], int(window or 0)))
    if sum(group.kind is GroupKind.FULL for group in groups) != 1:
        raise ReplicaError(f"groups {text!r:.80} need exactly one that is full")
    return tuple(groups)


class SparseGroup:
    """What one window or state group holds: names it shares with the full group at the same ends, the least recently used first.

    number: of the group. capacity: names kept.
    """

    def __init__(self, number: int, spec: GroupSpec, block_tokens: int, capacity: int) -> None:
        self.number = number
        self._spec = spec
        self._block_tokens = block_tokens
        self._capacity = capacity
        self._names: OrderedDict[int, None] = OrderedDict()

    def store(self, run: Stored) -> list[Event]:
        """A run was computed: what of it this group keeps, and what has to go for it, as events."""
        kept = replace(run, group=self.number, kind=self._spec.kind, window_tokens=self._spec.window_tokens)
        if self._spec.kind is GroupKind.STATE:  # the state after the whole run: one name for all its tokens
            kept = replace(kept, hashes=run.hashes[-1:])
            stored: list[Event] = [] if kept.hashes[0] in self._names else [kept]
        else:
            stored = list(self._new_stretches(kept))
        for name in kept.hashes:
            self._names[name] = None
            self._names.move_to_end(name)
        return stored + self._evicted()

    def _new_stretches(self, run: Stored) -> Sequence[Stored]:
        """The parts of a run that are not here yet, each behind the block before it."""
        size, stretches, start = self._block_tokens, [], 0
        while start < len(run.hashes):
            end = start
            while end < len(run.hashes) and run.hashes[end] not in self._names:
                end += 1
            if end > start:
                parent = run.hashes[start - 1] if start else run.parent
                part = replace(run, hashes=run.hashes[start:end], parent=parent, tokens=run.tokens[start * size : end * size])
                stretches.append(part)
            start = end + 1
        return stretches

    def _evicted(self) -> list[Event]:
        gone: list[Event] = []
        while len(self._names) > self._capacity:
            name, _ = self._names.popitem(last=False)
            gone.append(Removed((name,), group=self.number))
        return gone

    def serves(self, names: Sequence[int], blocks: int) -> bool:
        """Whether it can go on behind the first `blocks` blocks of a prompt with these names."""
        return all(name in self._names for name in names[blocks - self._needed(blocks) : blocks])

    def touch(self, names: Sequence[int]) -> None:
        """A prompt with these names goes on behind the last one."""
        for name in names[len(names) - self._needed(len(names)) :]:
            self._names.move_to_end(name)

    def _needed(self, blocks: int) -> int:
        if self._spec.kind is GroupKind.STATE:
            return min(1, blocks)
        return min(max(1, -(-(self._spec.window_tokens - 1) // self._block_tokens)), blocks)

    def clear(self) -> None:
        """Forget everything; whoever clears tells."""
        self._names.clear()

    def names(self) -> list[int]:
        """What is held, oldest first."""
        return list(self._names)
