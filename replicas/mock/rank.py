"""One data-parallel rank: its own cache, its own line, and a loop of steps that take the time a model would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from events.types import Cleared, Event
from replicas.errors import EngineStopped
from replicas.generation import Output, RequestHandle
from replicas.mock.cost import StepTimes, due_at
from replicas.mock.groups import GroupSpec
from replicas.mock.pool import CachePool
from replicas.mock.tokens import Answer, Codec
from replicas.openai_shapes import FinishReason
from replicas.schedule import Scheduler, StepPlan
from replicas.sequence import Sequence as TokenSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much one rank holds. groups: cache groups of a hybrid model, none for a plain one. caching: blocks become hits."""

    num_blocks: int = 4096
    block_tokens: int = 16
    max_batch_tokens: int = 2048
    max_running: int = 64
    groups: tuple[GroupSpec, ...] = ()
    group_blocks: int = 0  # names each sparse group keeps; 0: as many as blocks
    caching: bool = True


@dataclass(slots=True)
class Counts:
    """What one rank did since its epoch began. Tokens of prompts are counted when they are admitted."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    preemptions: int = 0
    steps: int = 0
    busy_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Answering:
    handle: RequestHandle
    index: int
    sequence: TokenSequence
    answer: Answer
    limit: int
    reason: FinishReason


Publish = Callable[[Sequence[Event]], None]


class Rank:
    """Takes requests, steps, tells its events. Everything runs on one event loop."""

    def __init__(
        self, number: int, sizes: Sizes, times: StepTimes, codec: Codec, publish: Publish, *, announces_start: bool = False
    ) -> None:
        """announces_start: the stream of a new process begins with a clear."""
        self.number = number
        self.sizes = sizes
        self._times = times
        self._codec = codec
        self._publish = publish
        self._announces_start = announces_start
        self._work = asyncio.Event()
        self._due = 0.0
        self._open: dict[TokenSequence, _Answering] = {}
        self._begin()

    def _begin(self) -> None:
        sizes = self.sizes
        self.pool = CachePool(sizes.num_blocks, sizes.block_tokens, sizes.groups, sizes.group_blocks, caching=sizes.caching)
        self.scheduler = Scheduler(self.pool, max_batch_tokens=sizes.max_batch_tokens, max_running=sizes.max_running)
        self.counts = Counts()
        if self._announces_start:
            self._publish([Cleared()])

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences in line."""
        return len(self.scheduler.waiting)

    def submit(self, handle: RequestHandle, model: str, reason: FinishReason) -> None:
        """Put a request in line; each of its answers ends with `reason` after `max_tokens`."""
        generation = handle.generation
        for index, prompt in enumerate(generation.prompts):
            sequence = TokenSequence.of_prompt(prompt, generation.salt)
            self.scheduler.add(sequence)
            answer = Answer(model, prompt, self._codec)
            self._open[sequence] = _Answering(handle, index, sequence, answer, generation.max_tokens, reason)
        self._work.set()

    def cancel(self, handle: RequestHandle) -> None:
        """Nobody listens any more: its blocks are free at once."""
        for one in self._of(handle):
            self.counts.aborted += 1
            self._end(one)

    def abort(self, handle: RequestHandle) -> None:
        """Somebody asked to stop it: what there is of its answers is final."""
        for one in self._of(handle):
            self.counts.aborted += 1
            generated, cached = one.sequence.generated, one.sequence.cached_tokens or 0
            one.handle.deliver(Output(one.index, "", generated, cached, "abort"))
            self._end(one)

    def reset(self) -> bool:
        """Forget every hit; False, and nothing changes, while any block is in use. The event goes with the next ones."""
        return self.pool.reset()

    def flush(self) -> None:
        """Tell what is to be told, without a step."""
        self._publish(self.pool.drain_events())

    def restart(self, reason: str) -> None:
        """A new process: what is open fails, and everything is forgotten without an event."""
        for one in list(self._open.values()):
            one.handle.deliver(EngineStopped(reason))
            self._end(one)
        self._begin()

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            if not self.scheduler.has_work:
                self._work.clear()
                await self._work.wait()
                self._due = asyncio.get_running_loop().time()
            await self._step()

    async def _step(self) -> None:
        scheduler, pool = self.scheduler, self.pool
        plan = scheduler.plan()
        self._count(plan)
        prefill = sum(part.count for part in plan.parts if not part.sequence.generated)
        await self._pass(self._times.step_s(prefill_tokens=prefill, sequences=len(plan.parts)))
        if pool is not self.pool:  # restarted meanwhile
            return
        sampled: dict[TokenSequence, int] = {}
        texts: dict[TokenSequence, str] = {}
        for part in plan.parts:
            one = self._open.get(part.sequence)
            if part.samples and one is not None:
                sampled[one.sequence], texts[one.sequence] = one.answer.next()
        scheduler.complete(plan, sampled)
        self._publish(pool.drain_events())
        for sequence, text in texts.items():
            self._hand_out(self._open[sequence], text)

    async def _pass(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self._due = due_at(self._due, now, seconds)
        self.counts.busy_s += seconds
        await asyncio.sleep(max(0.0, self._due - now))

    def _hand_out(self, one: _Answering, text: str) -> None:
        sequence = one.sequence
        self.counts.generated_tokens += 1
        done = sequence.generated >= one.limit
        one.handle.deliver(Output(one.index, text, sequence.generated, sequence.cached_tokens or 0, one.reason if done else None))
        if done:
            self.counts.finished += 1
            self._end(one)

    def _count(self, plan: StepPlan) -> None:
        counts = self.counts
        counts.steps += 1
        counts.preemptions += plan.preempted
        for sequence in plan.admitted:
            if not sequence.generated:  # not one that gave up its blocks and begins again
                counts.prompt_tokens += sequence.prompt_tokens
                counts.cached_tokens += sequence.cached_tokens or 0

    def _of(self, handle: RequestHandle) -> list[_Answering]:
        return [one for one in self._open.values() if one.handle is handle]

    def _end(self, one: _Answering) -> None:
        self.scheduler.end(one.sequence)
        del self._open[one.sequence]
