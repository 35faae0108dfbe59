"""One replica's engine: continuous batching with chunked prefill over a paged pool, a step at a time.

A step decodes one token for every running request first and spends what is left of the chunk budget on prompts, first come
first served. A prompt's blocks become hits, and its first token appears, when the step that computes them ends. While nothing
but decoding can happen, many steps are taken as one; a request that arrives in between cuts the run at the next step's end, so
that taking them together changes no time.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from simulations.cost import EngineSpec, StepCost
from simulations.errors import SimulationError
from simulations.pool import Lease, Pool


@dataclass(slots=True, eq=False)
class ModelledRequest:
    """One request inside an engine. done: tokens of the prompt whose KV is there, hits included.

    answer_ids: of the blocks its answer fills, behind the prompt's full ones; known where a follow-up names them.
    """

    request: int
    ids: list[int]
    input_tokens: int
    output_tokens: int
    answer_ids: list[int] = field(default_factory=list)
    done: int = 0
    hit_tokens: int = 0
    lease: Lease = field(default_factory=Lease)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Blocks that became hits, each the child of the one before it; parent: the id before the first, None at a prompt's start."""

    parent: int | None
    ids: list[int]


@dataclass(slots=True)
class StepOutcome:
    """What a finished step brought. removed: ids evicted to make room for it, before anything in `stored`."""

    first_tokens: list[ModelledRequest] = field(default_factory=list)
    finished: list[ModelledRequest] = field(default_factory=list)
    stored: list[StoredRun] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


class EngineModel:
    """Waiting, prefilling and decoding requests of one replica and the step in progress."""

    def __init__(self, spec: EngineSpec, block_tokens: int) -> None:
        self.pool = Pool(None if spec.kv_tokens is None else spec.kv_tokens // block_tokens)
        self.busy_s = 0.0
        self.prefill_s = 0.0  # of it, in steps that compute prompts
        self.computed_tokens = 0
        self.steps = 0
        self._spec = spec
        self._cost = StepCost(spec)
        self._block_tokens = block_tokens
        self._waiting: deque[ModelledRequest] = deque()
        self._partial: ModelledRequest | None = None  # a prompt that did not fit into the last step's budget
        self._decoding: list[tuple[int, int, ModelledRequest]] = []  # heap: (decode step it ends with, request, sequence)
        self._decode_steps = 0
        self._kv_tokens = 0  # read by one decode step
        self._chunks: list[tuple[ModelledRequest, int]] = []
        self._run_steps = 0  # of the step in progress; 0 = idle
        self._started_s = 0.0

    @property
    def idle(self) -> bool:
        """No step is in progress."""
        return self._run_steps == 0

    def submit(self, sequence: ModelledRequest) -> None:
        """Let a request wait; raises SimulationError when it can never fit."""
        needed = self._total_blocks(sequence)
        if needed > self.pool.capacity:
            raise SimulationError(
                f"request {sequence.request} needs {needed} KV blocks ({sequence.input_tokens} input and "
                f"{sequence.output_tokens} output tokens), a replica has {self.pool.capacity}"
            )
        self._waiting.append(sequence)

    def start(self, now_s: float) -> float | None:
        """Begin the next step, or a run of decode steps; returns when it ends, None when there is nothing to do."""
        self._plan_chunks()
        decoding = len(self._decoding)
        if self._chunks:
            self._run_steps = 1
        elif decoding:
            self._run_steps = self._decoding[0][0] - self._decode_steps
        else:
            return None
        self._started_s = now_s
        return now_s + self._duration_s(self._run_steps)

    def cut(self, now_s: float) -> float | None:
        """End a run of decode steps at the first step that ends at or after now; None when the end stays as it was."""
        # With somebody waiting already the run is as long as the pool or the batch stays full: an arrival changes nothing.
        if self._run_steps <= 1 or len(self._waiting) > 1:
            return None
        low, high = 1, self._run_steps
        while low < high:
            middle = (low + high) // 2
            if self._started_s + self._duration_s(middle) >= now_s:
                high = middle
            else:
                low = middle + 1
        if low == self._run_steps:
            return None
        self._run_steps = low
        return self._started_s + self._duration_s(low)

    def finish(self, now_s: float) -> StepOutcome:
        """End the step in progress: KV written, tokens out, room given back."""
        outcome = StepOutcome(removed=self.pool.evicted)
        self.pool.evicted = []
        self.busy_s += now_s - self._started_s
        self.prefill_s += (now_s - self._started_s) if self._chunks else 0.0
        self.steps += self._run_steps
        self._decode_steps += self._run_steps
        self._kv_tokens += self._run_steps * len(self._decoding)
        self._run_steps = 0
        while self._decoding and self._decoding[0][0] <= self._decode_steps:
            sequence = heapq.heappop(self._decoding)[2]
            self._kv_tokens -= sequence.input_tokens + sequence.output_tokens - 1
            self._retire(sequence, outcome)
        for sequence, tokens in self._chunks:
            self._end_chunk(sequence, tokens, outcome)
        self._chunks = []
        return outcome

    def check_drained(self) -> None:
        """Assert that nothing is left behind once all requests have ended."""
        left = len(self._waiting) + len(self._decoding) + len(self._chunks) + (self._partial is not None)
        assert left == 0, f"{left} requests never ended"
        assert self._kv_tokens == 0, f"{self._kv_tokens} KV tokens still counted as read"
        self.pool.check([])

    def _plan_chunks(self) -> None:
        """Fill the chunk budget: the half-done prompt first, then new ones while they fit."""
        budget = self._spec.chunk_tokens - len(self._decoding)
        if self._partial is not None and budget > 0:
            budget = self._plan(self._partial, budget)
        while budget > 0 and self._waiting:
            running = len(self._decoding) + len(self._chunks)
            sequence = self._waiting[0]
            if running >= self._spec.max_sequences or not self._admit(sequence):
                return
            self._waiting.popleft()
            budget = self._plan(sequence, budget)

    def _plan(self, sequence: ModelledRequest, budget: int) -> int:
        tokens = min(budget, sequence.input_tokens - sequence.done)
        self._chunks.append((sequence, tokens))
        self._partial = sequence if sequence.done + tokens < sequence.input_tokens else None
        return budget - tokens

    def _admit(self, sequence: ModelledRequest) -> bool:
        lease = self.pool.admit(sequence.ids, self._total_blocks(sequence))
        if lease is None:
            return False
        sequence.lease = lease
        # The last token is always computed: its logits are the answer's first token.
        sequence.hit_tokens = min(lease.hit_blocks * self._block_tokens, sequence.input_tokens - 1)
        sequence.done = sequence.hit_tokens
        return True

    def _end_chunk(self, sequence: ModelledRequest, tokens: int, outcome: StepOutcome) -> None:
        sequence.done += tokens
        self.computed_tokens += tokens
        complete = sequence.done == sequence.input_tokens
        upto = len(sequence.ids) if complete else sequence.done // self._block_tokens
        self._publish(sequence, upto, outcome)
        if complete:
            outcome.first_tokens.append(sequence)
            self._decode_or_retire(sequence, outcome)

    def _publish(self, sequence: ModelledRequest, upto: int, outcome: StepOutcome) -> None:
        begin = len(sequence.lease.named)
        if upto <= begin:
            return
        stored = self.pool.publish(sequence.lease, sequence.ids[begin:upto])
        if stored:
            # What was cached already is a leading part: whoever published a block has published all before it.
            first = upto - len(stored)
            outcome.stored.append(StoredRun(sequence.ids[first - 1] if first else None, stored))

    def _publish_answer(self, sequence: ModelledRequest, outcome: StepOutcome) -> None:
        """The answer's full blocks become hits; the first of them is the one the prompt had begun."""
        full = sequence.input_tokens // self._block_tokens
        if len(sequence.ids) > full:
            if not self.pool.unname_last(sequence.lease):
                return
            outcome.removed.append(sequence.ids[-1])
        stored = self.pool.publish(sequence.lease, sequence.answer_ids)
        if stored:
            before = (sequence.ids[:full] + sequence.answer_ids)[: full + len(sequence.answer_ids) - len(stored)]
            outcome.stored.append(StoredRun(before[-1] if before else None, stored))

    def _decode_or_retire(self, sequence: ModelledRequest, outcome: StepOutcome) -> None:
        if sequence.output_tokens == 1:
            self._retire(sequence, outcome)
            return
        ends_with = self._decode_steps + sequence.output_tokens - 1
        heapq.heappush(self._decoding, (ends_with, sequence.request, sequence))
        self._kv_tokens += sequence.input_tokens

    def _retire(self, sequence: ModelledRequest, outcome: StepOutcome) -> None:
        if sequence.answer_ids:
            self._publish_answer(sequence, outcome)
        self.pool.release(sequence.lease)
        outcome.finished.append(sequence)

    def _total_blocks(self, sequence: ModelledRequest) -> int:
        return -(-(sequence.input_tokens + sequence.output_tokens) // self._block_tokens)

    def _duration_s(self, steps: int) -> float:
        decoding = len(self._decoding)
        if not self._chunks:
            return self._cost.decode_run_s(steps, requests=decoding, kv_tokens=self._kv_tokens)
        tokens = decoding + sum(tokens for _, tokens in self._chunks)
        pairs = sum(tokens * (sequence.done + tokens / 2) for sequence, tokens in self._chunks)
        context = sum(sequence.done for sequence, _ in self._chunks)
        requests = decoding + len(self._chunks)
        return self._cost.step_s(requests=requests, tokens=tokens, pairs=pairs, kv_tokens=self._kv_tokens + context)
