"""What the number of a batch means: the next one, a gap, one seen before, or a new life of the engine. No I/O, no clock.

Live numbers rise within one engine process. A live number below `expected` that is still above the newest live one was fetched
by a replay meanwhile; one below the newest live one can only come from a new process (FC-03), unless its content is that of a
batch applied before: then something on the way repeated it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Next:
    """The batch to apply now."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Batches first..last are missing before this one."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Applied before."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The engine counts from the start again: everything known of it is void."""


NEXT, DUPLICATE, RESTART = Next(), Duplicate(), Restart()


class Cursor:
    """Where we are in one rank's stream. expected: the number to apply next; None = take whatever comes first."""

    __slots__ = ("_newest_live", "expected")

    def __init__(self, expected: int | None = None) -> None:
        self.expected = expected
        self._newest_live = -1

    @property
    def last(self) -> int | None:
        """The newest number applied, None before the first."""
        return self.expected - 1 if self.expected else None

    def step(self, seq: int) -> Next | Gap | Duplicate | Restart:
        """Judge a live batch; `Next` counts as applied, after `Gap` the same number may be judged again."""
        before, self._newest_live = self._newest_live, max(seq, self._newest_live)
        if self.expected is None or seq == self.expected:
            self.expected = seq + 1
            return NEXT
        if seq > self.expected:
            return Gap(self.expected, seq - 1)
        if seq >= before:
            return DUPLICATE
        self.reset(0)
        return RESTART

    def replayed(self, seq: int) -> Next | Gap | Duplicate:
        """Judge a batch of a replay; `Next` counts as applied."""
        if self.expected is None or seq == self.expected:
            self.expected = seq + 1
            return NEXT
        return Gap(self.expected, seq - 1) if seq > self.expected else DUPLICATE

    def reset(self, expected: int | None) -> None:
        """Start over: `expected` comes next, or whatever comes first."""
        self.expected = expected
        self._newest_live = -1

    def skip(self, seq: int) -> None:
        """Go on behind `seq`, which will never be applied."""
        self.expected = seq + 1


class Memory:
    """What the newest batches said, to tell one that comes twice from one of a new process; batches carry their time."""

    __slots__ = ("_limit", "_marks")

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._marks: dict[int, int] = {}  # number -> hash of the content, oldest first

    def add(self, seq: int, payload: bytes) -> None:
        """A batch was applied, or could not be."""
        self._marks.pop(seq, None)
        self._marks[seq] = hash(payload)
        if len(self._marks) > self._limit:
            del self._marks[next(iter(self._marks))]

    def same(self, seq: int, payload: bytes) -> bool | None:
        """Whether the batch of this number said the same; None where that is not known any more."""
        mark = self._marks.get(seq)
        return None if mark is None else mark == hash(payload)
