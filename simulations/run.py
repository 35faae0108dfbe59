"""One replay: a trace over a fleet under one policy, from the first arrival to the last answer.

Everything random is in the trace's preparation and, where a policy draws, in the policy, both seeded; the replay itself is a
loop over the clock. Same trace, settings and seed: the same result, bit for bit (FC-66).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gateway.choose.policies import BY_HISTORY, POLICY_NAMES, policy_named
from radix.index import Index
from radix.sent import SentPrompts
from simulations.clock import Clock, Kind
from simulations.cost import EngineSpec
from simulations.engine_model import EngineModel, ModelledRequest
from simulations.errors import SettingError
from simulations.eventpath import EventPath
from simulations.fleet import Placed, SimulatedFleet
from simulations.traces.columns import Float64Array, Int64Array, Trace

_PROGRESS_EVERY = 64  # requests
_HISTORY_BYTES = 1 << 30  # the gateway's default


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """What is simulated besides the trace and the policy.

    event_delay_s: from the end of a step until the index shows what it stored and removed. guesses: the index also holds what
    was placed and not answered yet, as the gateway's does. seed: of what policies draw.
    """

    engine: EngineSpec = field(default_factory=EngineSpec)
    replicas: int = 8
    event_delay_s: float = 0.01
    guesses: bool = True
    seed: int = 1

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise SettingError(f"replicas must be at least 1, got {self.replicas}")
        if not (math.isfinite(self.event_delay_s) and self.event_delay_s >= 0):
            raise SettingError(f"event delay must be at least 0 s, got {self.event_delay_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one replay gave. Arrays are [requests] in the order of the trace, or [replicas].

    ttft_s: arrival to first token. tpot_s: mean time between tokens after the first, NaN for answers of one token.
    hit_tokens: prompt tokens not computed; predicted_tokens: what the policy was told of them. replica_busy_s: in
    any step; replica_prefill_s: in steps that compute prompts. end_s: the last answer's end.
    """

    policy: str
    ttft_s: Float64Array
    tpot_s: Float64Array
    input_tokens: Int64Array
    hit_tokens: Int64Array
    predicted_tokens: Int64Array
    replica: npt.NDArray[np.int64]
    replica_computed_tokens: Int64Array
    replica_busy_s: Float64Array
    replica_prefill_s: Float64Array
    steps: int
    end_s: float
    event_batches: int
    blocks_stored: int
    blocks_removed: int


def check_policies(names: Sequence[str]) -> list[str]:
    """The names as given; raises SettingError for one that the gateway does not have or that stands there twice."""
    for name in names:
        if name not in POLICY_NAMES:
            raise SettingError(f"policy {name!r} is not one of {', '.join(POLICY_NAMES)}")
        if names.count(name) > 1:
            raise SettingError(f"policy {name!r} is named twice")
    return list(names)


def replay(trace: Trace, policy: str, spec: FleetSpec, progress: Callable[[int], None] = lambda done: None) -> Run:
    """Replay the whole trace; `progress(arrived)` is called now and then."""
    return _Replay(trace, policy, spec).run(progress)


class _Replay:
    """The state of one replay: clock, engines, fleet view, and a column per result."""

    def __init__(self, trace: Trace, policy: str, spec: FleetSpec) -> None:
        requests = len(trace)
        self._trace = trace
        self._policy = policy
        self._clock = Clock()
        self._index = Index()
        self._events = EventPath(self._index, self._clock, spec.event_delay_s)
        self._fleet = SimulatedFleet(
            policy_named(policy, seed=spec.seed),
            _sent_prompts(self._index) if policy in BY_HISTORY else self._index,
            replicas=spec.replicas,
            block_tokens=trace.block_tokens,
            guesses=spec.guesses,
        )
        self._engines = [EngineModel(spec.engine, trace.block_tokens) for _ in range(spec.replicas)]
        self._replica_of = {holder: number for number, holder in enumerate(self._fleet.holders)}
        self._stamps = [0] * spec.replicas  # of the step end that counts; one scheduled before a cut is outdated
        self._placed: dict[int, Placed] = {}
        self._ids = trace.dense_ids()
        self._first_token_s = np.zeros(requests)
        self._end_s = np.zeros(requests)
        self._hit_tokens = np.zeros(requests, np.int64)
        self._predicted_tokens = np.zeros(requests, np.int64)
        self._replica = np.zeros(requests, np.int64)
        self._input_tokens: list[int] = trace.input_tokens.tolist()
        self._output_tokens: list[int] = trace.output_tokens.tolist()
        self._offsets: list[int] = trace.block_offsets.tolist()

    def run(self, progress: Callable[[int], None]) -> Run:
        for request, at_s in enumerate(self._trace.arrival_s.tolist()):
            self._clock.schedule(at_s, Kind.ARRIVAL, request)
        while (next_up := self._clock.advance()) is not None:
            kind, number, stamp = next_up
            if kind is Kind.ARRIVAL:
                self._arrive(number)
                if number % _PROGRESS_EVERY == 0:
                    progress(number)
            elif kind is Kind.STEP_END:
                if stamp == self._stamps[number]:
                    self._end_step(number)
            else:
                self._events.deliver()
        progress(len(self._trace))
        self._check()
        return self._result()

    def _arrive(self, request: int) -> None:
        now_s = self._clock.now_s
        ids = self._ids[self._offsets[request] : self._offsets[request + 1]]
        self._index.expire(now_s)
        placed = self._fleet.place(ids, self._input_tokens[request], now_s, self._session(request))
        replica = self._replica_of[placed.holder]
        self._placed[request] = placed
        self._predicted_tokens[request] = placed.predicted_tokens
        self._replica[request] = replica
        engine = self._engines[replica]
        input_tokens, output_tokens = self._input_tokens[request], self._output_tokens[request]
        engine.submit(ModelledRequest(request, ids.tolist(), input_tokens, output_tokens, self._answer_ids(request)))
        self._schedule_end(replica, engine.start(now_s) if engine.idle else engine.cut(now_s))

    def _session(self, request: int) -> str | None:
        """The name of a request's session."""
        sessions = self._trace.sessions
        return str(sessions[request]) if sessions is not None and sessions[request] >= 0 else None

    def _answer_ids(self, request: int) -> list[int]:
        """Ids of the blocks that its answer fills, where they are known."""
        starts, counts = self._trace.answer_starts, self._trace.answer_blocks
        if starts is None or counts is None:
            return []
        found: list[int] = self._ids[starts[request] : starts[request] + counts[request]].tolist()
        return found

    def _end_step(self, replica: int) -> None:
        now_s, engine = self._clock.now_s, self._engines[replica]
        outcome = engine.finish(now_s)
        for sequence in outcome.first_tokens:
            self._first_token_s[sequence.request] = now_s
            self._fleet.first_token(self._placed[sequence.request], now_s)
        for sequence in outcome.finished:
            self._end_s[sequence.request] = now_s
            self._hit_tokens[sequence.request] = sequence.hit_tokens
            self._fleet.finished(self._placed.pop(sequence.request), sequence.hit_tokens)
        self._events.send(self._fleet.holders[replica], outcome.removed, outcome.stored)
        self._schedule_end(replica, engine.start(now_s))

    def _schedule_end(self, replica: int, end_s: float | None) -> None:
        if end_s is not None:
            self._stamps[replica] += 1
            self._clock.schedule(end_s, Kind.STEP_END, replica, self._stamps[replica])

    def _check(self) -> None:
        """Conservation: every prompt token was hit or computed, and nothing is held any more."""
        for engine in self._engines:
            engine.check_drained()
        self._fleet.check_drained()
        computed = sum(engine.computed_tokens for engine in self._engines)
        assert int(self._hit_tokens.sum()) + computed == int(self._trace.input_tokens.sum()), "prompt tokens lost"

    def _result(self) -> Run:
        trace = self._trace
        later = np.where(trace.output_tokens > 1, trace.output_tokens - 1, np.nan)
        return Run(
            policy=self._policy,
            ttft_s=self._first_token_s - trace.arrival_s,
            tpot_s=(self._end_s - self._first_token_s) / later,
            input_tokens=trace.input_tokens,
            hit_tokens=self._hit_tokens,
            predicted_tokens=self._predicted_tokens,
            replica=self._replica,
            replica_computed_tokens=np.asarray([engine.computed_tokens for engine in self._engines], np.int64),
            replica_busy_s=np.asarray([engine.busy_s for engine in self._engines]),
            replica_prefill_s=np.asarray([engine.prefill_s for engine in self._engines]),
            steps=sum(engine.steps for engine in self._engines),
            end_s=float(self._end_s.max()),
            event_batches=self._events.batches,
            blocks_stored=self._events.blocks_stored,
            blocks_removed=self._events.blocks_removed,
        )


def _sent_prompts(index: Index) -> SentPrompts:
    """As the gateway's, with room for everything."""
    from radix.history import History  # brings Numba

    return SentPrompts(index, History(_HISTORY_BYTES, huge_pages=False))
