"""What the next step computes: continuous batching under a token budget.

Sequences that decode come first, then prefills in the order of arrival, cut into chunks where the budget ends. When blocks run
out the youngest sequence gives up its own and waits again; its complete blocks stay hits, so that it recomputes little. What runs
is always older than what waits. Pure: no clock, no I/O, no torch; the simulator runs this very scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from replicas.blocks import BlockPool
from replicas.errors import ReplicaError
from replicas.sequence import Sequence, State
from replicas.step import Slice

__all__ = ["Part", "Scheduler", "Sequence", "State", "StepPlan"]  # with what the simulator needs of `sequence`


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's share of a step: `count` tokens from position `start`. samples: the step gives it a new token."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work. admitted: sequences that began (or began again) with it. preempted: how many gave up their blocks."""

    parts: tuple[Part, ...]
    admitted: tuple[Sequence, ...]
    preempted: int

    def slices(self, block_tokens: int) -> list[Slice]:
        """The work in the runner's words, in the order of `parts`."""
        slices = []
        for part in self.parts:
            end = part.start + part.count
            tokens = part.sequence.tokens[part.start : end].tolist()
            blocks = part.sequence.blocks[: -(-end // block_tokens)]
            slices.append(Slice(tokens, part.start, blocks, part.samples))
        return slices


class Scheduler:
    """Who runs and who waits, over one block pool.

    max_batch_tokens: tokens of one step. max_running: sequences that hold blocks at one time; never more than a step has tokens,
    so that all of them can decode in each step.
    """

    def __init__(self, pool: BlockPool, *, max_batch_tokens: int, max_running: int) -> None:
        if max_batch_tokens < 1 or max_running < 1:
            raise ReplicaError(f"nothing could run: max_batch_tokens={max_batch_tokens} max_running={max_running}")
        self.pool = pool
        self.max_batch_tokens = max_batch_tokens
        self.max_running = min(max_running, max_batch_tokens)
        self.running: list[Sequence] = []  # oldest first
        self.waiting: deque[Sequence] = deque()

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that can ever run, with what it generates."""
        return self.pool.num_blocks * self.pool.block_tokens

    @property
    def has_work(self) -> bool:
        """Something runs or waits."""
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the line."""
        if not 0 < len(sequence.tokens) <= self.capacity_tokens:
            raise ReplicaError(f"a sequence of {len(sequence.tokens)} tokens does not fit 1..{self.capacity_tokens}")
        self.waiting.append(sequence)

    def end(self, sequence: Sequence) -> None:
        """Take a sequence out at any time, finished or not; complete blocks that were committed stay hits."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        self._release(sequence, State.ENDED)

    def plan(self) -> StepPlan:
        """Choose the next step's work and give it blocks. Follow it by `complete`, or `end` each of its sequences."""
        counts: dict[Sequence, int] = {}
        preempted = 0
        for sequence in [one for one in self.running if one.pending == 1]:
            if sequence.state is State.RUNNING:
                preempted += self._make_room(sequence)
                if sequence.state is State.RUNNING:
                    counts[sequence] = 1
        budget = self.max_batch_tokens - len(counts)
        for sequence in self.running:
            if budget and sequence.pending > 1:
                counts[sequence] = min(sequence.pending, budget)
                budget -= counts[sequence]
        admitted = self._admit(counts, budget)
        parts = tuple(Part(one, one.written, count, count == one.pending) for one, count in counts.items())
        return StepPlan(parts, admitted, preempted)

    def complete(self, plan: StepPlan, sampled: Mapping[Sequence, int]) -> None:
        """The step ran: its KV is written. Commits full blocks and appends each new token; sequences ended meanwhile are skipped.

        Only here do blocks become hits, never at planning: what was not computed must not be found (FC-65).
        """
        for part in plan.parts:
            sequence = part.sequence
            if sequence.state is not State.RUNNING:
                continue
            sequence.written = part.start + part.count
            self._commit(sequence)
            if part.samples:
                sequence.tokens.append(sampled[sequence])

    def _commit(self, sequence: Sequence) -> None:
        size = self.pool.block_tokens
        first, full = sequence.committed, sequence.written // size
        if full > first:
            self.pool.commit(sequence.blocks[:full], first, sequence.tokens[first * size : full * size], sequence.salt)
            sequence.committed = full

    def _make_room(self, sequence: Sequence) -> int:
        """Give a decoding sequence the block its next token needs; returns how many had to give up theirs, itself perhaps.

        The oldest is asked first and the youngest gives first, so nobody gives who has its place in the step already.
        """
        preempted = 0
        while sequence.written >= len(sequence.blocks) * self.pool.block_tokens:
            block = self.pool.allocate(1)
            if block is not None:
                sequence.blocks += block
                break
            victim = self.running.pop()
            self._release(victim, State.WAITING)
            self.waiting.appendleft(victim)
            preempted += 1
            if victim is sequence:
                break
        return preempted

    def _admit(self, counts: dict[Sequence, int], budget: int) -> tuple[Sequence, ...]:
        """Start those at the front of the line while budget and blocks last; nobody overtakes."""
        admitted = []
        while self.waiting and budget and len(self.running) < self.max_running:
            sequence = self.waiting[0]
            hits = self.pool.lookup(sequence.tokens, sequence.salt)
            count = self.pool.blocks_for(len(sequence.tokens)) - len(hits)
            # One spare block for each that runs, or its growth would push the newcomer out at once, again and again.
            blocks = self.pool.allocate(count, hits, spare=len(self.running))
            if blocks is None:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            admitted.append(sequence)
            self._start(sequence, hits + blocks, len(hits))
            counts[sequence] = min(sequence.pending, budget)
            budget -= counts[sequence]
        return tuple(admitted)

    def _start(self, sequence: Sequence, blocks: list[int], hits: int) -> None:
        sequence.state = State.RUNNING
        sequence.blocks = blocks
        sequence.committed = hits
        sequence.written = hits * self.pool.block_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.written

    def _release(self, sequence: Sequence, state: State) -> None:
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        sequence.written = sequence.committed = 0
        sequence.state = state
