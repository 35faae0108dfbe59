"""The order of one line: priorities first, then keys in turn, each by the tokens it asks for.

Deficit round robin (Shreedhar, Varghese 1995): each turn adds a quantum of tokens to what a key may take, so that a key with long
prompts gets as many tokens as one with short ones, not as many requests. No clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

QUANTUM_TOKENS = 8192


@dataclass(eq=False, slots=True)
class Waiting:
    """One request that waits. tokens: of its prompt. priority: higher goes first. key: whose it is."""

    key: str
    priority: int
    tokens: int
    since: float = 0.0


@dataclass(slots=True)
class _Level:
    """The keys that wait at one priority."""

    queues: dict[str, dict[Waiting, None]] = field(default_factory=dict)
    turns: deque[str] = field(default_factory=deque)
    deficits: dict[str, int] = field(default_factory=dict)

    def push(self, waiting: Waiting) -> None:
        if waiting.key not in self.queues:
            self.queues[waiting.key] = {}
            self.turns.append(waiting.key)
            self.deficits[waiting.key] = 0
        self.queues[waiting.key][waiting] = None

    def pop(self) -> Waiting:
        while True:
            key = self.turns[0]
            first = next(iter(self.queues[key]))
            if self.deficits[key] >= first.tokens:
                self.deficits[key] -= first.tokens
                self.remove(first)
                return first
            self.deficits[key] += QUANTUM_TOKENS
            self.turns.rotate(-1)

    def remove(self, waiting: Waiting) -> None:
        queue = self.queues[waiting.key]
        del queue[waiting]
        if not queue:  # a key that comes again begins anew: what it did not use is not saved up
            del self.queues[waiting.key], self.deficits[waiting.key]
            self.turns.remove(waiting.key)


class Line:
    """Requests that wait for the same replicas."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._members: dict[Waiting, None] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Waiting]:
        """In the order of arrival."""
        return iter(self._members)

    def push(self, waiting: Waiting) -> None:
        """Join the line."""
        self._members[waiting] = None
        self._levels.setdefault(waiting.priority, _Level()).push(waiting)

    def pop(self) -> Waiting:
        """Whose turn it is; the line must not be empty. Costs a turn for each quantum of the longest prompt at the front."""
        level = self._levels[max(self._levels)]
        waiting = level.pop()
        self._left(waiting, level)
        return waiting

    def remove(self, waiting: Waiting) -> None:
        """Leave the line without a turn."""
        level = self._levels[waiting.priority]
        level.remove(waiting)
        self._left(waiting, level)

    def _left(self, waiting: Waiting, level: _Level) -> None:
        del self._members[waiting]
        if not level.queues:
            del self._levels[waiting.priority]
