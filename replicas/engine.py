"""The step loop, on its own thread: take messages, plan, compute, sample, announce, hand out.

Order within a step carries the promise that makes routing work: KV is written, then its blocks become hits, then the events go
out, then the tokens. Whoever holds a token of an answer can already have heard of every block behind it.

What fails is kept as small as it is: a row ends its own answer, a forward pass the answers of its step, a message its request.
Whatever gets past that ends the thread, and then everything that is open or comes later fails at once; nothing waits for a thread
that is gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from events.types import Cleared, Event
from replicas.blocks import BlockPool
from replicas.detokenize import Decode
from replicas.errors import BadRequest, EngineDied, EngineStopped, ReplicaError, StepFailed, brief
from replicas.generation import Generation, Output, RequestHandle
from replicas.progress import Progress
from replicas.sample import finite_rows
from replicas.schedule import Scheduler, StepPlan
from replicas.sequence import Sequence as TokenSequence
from replicas.step import Runner

log = logging.getLogger(__name__)

Publish = Callable[[Sequence[Event]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Sizes of one engine. max_batch_tokens bounds a step, and with it how long a cancel can take to bite."""

    num_blocks: int
    block_tokens: int = 16
    max_batch_tokens: int = 128
    max_running: int = 32


@dataclass(slots=True)
class EngineCounters:
    """What the engine did since it started; written by its thread, read by anyone. prefill_rate: tokens per second, smoothed."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    failed_steps: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    prefill_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class _Submit:
    handle: RequestHandle


@dataclass(frozen=True, slots=True)
class _Cancel:
    handle: RequestHandle


@dataclass(frozen=True, slots=True)
class _Reset:
    done: concurrent.futures.Future[bool]


@dataclass(frozen=True, slots=True)
class _Stop:
    reason: str


_Message = _Submit | _Cancel | _Reset | _Stop


class Engine:
    """One model, one block pool, one thread that steps.

    decode: ids to text without special tokens. publish: where events go, called on the engine's thread; None announces nothing.
    eos_token_ids: tokens by which the model ends an answer.
    died: set on the loop when the thread ended by a fault; the process should end too.
    """

    def __init__(self, runner: Runner, decode: Decode, settings: EngineSettings, publish: Publish | None = None) -> None:
        self.settings = settings
        self.counters = EngineCounters()
        self._runner = runner
        self._decode = decode
        self._publish = publish
        self.pool = BlockPool(settings.num_blocks, settings.block_tokens, announce=publish is not None)
        self._scheduler = Scheduler(self.pool, max_batch_tokens=settings.max_batch_tokens, max_running=settings.max_running)
        self.max_model_tokens = min(runner.max_context, self._scheduler.capacity_tokens)
        runner.allocate(settings.num_blocks, settings.block_tokens)
        self._answers: dict[TokenSequence, Progress] = {}
        self._outbox: list[tuple[RequestHandle, Output | ReplicaError]] = []
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._stopped = False
        self._refusal: EngineStopped = EngineStopped("the replica is shutting down")
        self.died = asyncio.Event()
        self.eos_token_ids = frozenset(one for one in runner.eos_token_ids if 0 <= one < runner.vocab_size)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._runner.vocab_size

    @property
    def running(self) -> int:
        """Sequences that hold blocks now."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences in line now."""
        return len(self._scheduler.waiting)

    @property
    def alive(self) -> bool:
        """The step loop runs."""
        return self._thread.is_alive() and not self._stopped

    def start(self) -> None:
        """Start stepping; outputs go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, generation: Generation) -> RequestHandle:
        """Put a request in line. Raises BadRequest for one that can never run and EngineStopped when nothing runs any more."""
        self._refuse_when_stopped()
        for prompt in generation.prompts:
            self._check(prompt, generation.max_tokens)
        self._check_ids(generation.stop_ids, "stop_token_ids")
        handle = RequestHandle(generation, lambda gone: self._inbox.put(_Cancel(gone)))
        self._inbox.put(_Submit(handle))
        return handle

    def _refuse_when_stopped(self) -> None:
        if self._stopped:
            raise type(self._refusal)(str(self._refusal))  # a new one each time, or its traceback would grow

    def _check(self, prompt: Sequence[int], max_tokens: int) -> None:
        if not prompt:
            raise BadRequest("the prompt has no tokens", "prompt")
        self._check_ids(prompt, "prompt")
        if len(prompt) + max_tokens > self.max_model_tokens:
            raise BadRequest(
                f"this model takes {self.max_model_tokens} tokens, but {len(prompt) + max_tokens} were asked for "
                f"({len(prompt)} in the prompt, {max_tokens} to generate)",
                "prompt",
            )

    def _check_ids(self, ids: Collection[int], name: str) -> None:
        if ids and ((worst := max(ids)) >= self.vocab_size or (worst := min(ids)) < 0):
            raise BadRequest(f"{name}: token id {brief(worst)} is not in the vocabulary of {self.vocab_size} tokens", name)

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False, and nothing changes, while any is in use. Raises EngineStopped as `submit` does."""
        self._refuse_when_stopped()
        done: concurrent.futures.Future[bool] = concurrent.futures.Future()
        self._inbox.put(_Reset(done))
        return await asyncio.wrap_future(done)

    async def shutdown(self, reason: str) -> None:
        """Fail what is open with EngineStopped and end the thread."""
        self._stopped = True
        self._inbox.put(_Stop(reason))
        await asyncio.to_thread(self._thread.join)

    def _bury(self, lost: Sequence[RequestHandle], error: EngineDied) -> None:
        """On the loop, after the thread ended by a fault: what is open fails, and so does what the thread never took.

        Messages are sent from the loop only, so what comes later sees `_stopped`, and nothing can fall between.
        """
        self._stopped, self._refusal = True, error
        for handle in lost:
            handle.deliver(error)
        while not self._inbox.empty():
            message = self._inbox.get_nowait()
            if isinstance(message, _Submit):
                message.handle.deliver(error)
            elif isinstance(message, _Reset) and message.done.set_running_or_notify_cancel():
                message.done.set_exception(error)
        self.died.set()

    # From here on everything runs on the engine's thread.

    def _run(self) -> None:
        try:
            self._step_until_stopped()
        except BaseException as error:  # the thread is over; those who wait for it must not be
            log.critical("the engine thread died open=%d", len(self._answers), exc_info=True)
            lost = list({answer.handle: None for answer in self._answers.values()})
            self._hand_out()
            death = EngineDied(f"the engine is not running: {type(error).__name__}")
            self._to_loop(lambda: self._bury(lost, death))

    def _step_until_stopped(self) -> None:
        self._announce([Cleared()])  # a gateway that knew an earlier life of this address starts afresh
        stop: _Stop | None = None
        while stop is None:
            stop = self._take_messages()
            if stop is None and self._scheduler.has_work:
                self._step()
            self._hand_out()
        for answer in list(self._answers.values()):
            self._fail(answer, EngineStopped(stop.reason))
        self._hand_out()

    def _take_messages(self) -> _Stop | None:
        """Apply all messages, waiting for one when there is nothing to compute."""
        block = not self._scheduler.has_work
        while True:
            try:
                message = self._inbox.get(block)
            except queue.Empty:
                return None
            block = False
            if isinstance(message, _Stop):
                return message
            self._apply(message)

    def _apply(self, message: _Submit | _Cancel | _Reset) -> None:
        try:
            if isinstance(message, _Submit):
                self._begin(message.handle)
            elif isinstance(message, _Cancel):
                self._end_all(message.handle)
            elif message.done.set_running_or_notify_cancel():  # not when who asked has left
                self._reset(message.done)
        except Exception as error:  # a message that cannot be applied ends its own request, not the engine
            log.exception("message failed kind=%s", type(message).__name__)
            failure = StepFailed(f"the engine failed on this request: {type(error).__name__}")
            if isinstance(message, _Reset):
                message.done.set_exception(failure)
            else:
                self._end_all(message.handle)
                self._outbox.append((message.handle, failure))

    def _begin(self, handle: RequestHandle) -> None:
        for index in range(len(handle.generation.prompts)):
            answer = Progress(handle, index, self._decode)
            self._scheduler.add(answer.sequence)
            self._answers[answer.sequence] = answer

    def _end_all(self, handle: RequestHandle) -> None:
        for answer in [one for one in self._answers.values() if one.handle is handle]:
            self._end(answer)

    def _reset(self, done: concurrent.futures.Future[bool]) -> None:
        was_idle = self.pool.reset()
        self._announce(self.pool.drain_events())
        done.set_result(was_idle)

    def _step(self) -> None:
        started = time.perf_counter()
        plan: StepPlan | None = None
        try:
            plan = self._scheduler.plan()
            logits = self._runner.step(plan.slices(self.pool.block_tokens))
            sampled = self._pick(plan, logits)
            self._scheduler.complete(plan, sampled)
            for sequence in sampled:
                self._advance_alone(self._answers[sequence])
        except Exception as error:  # whatever a step meets ends its requests, not the engine
            self.counters.failed_steps += 1
            log.exception("step failed requests=%d", len(plan.parts) if plan else len(self._answers))
            affected = {part.sequence for part in plan.parts} if plan else set(self._answers)
            for sequence in affected & self._answers.keys():
                self._fail(self._answers[sequence], StepFailed(f"the engine failed on this request: {type(error).__name__}"))
        else:
            self._count(plan, time.perf_counter() - started)
        self._announce(self.pool.drain_events())

    def _pick(self, plan: StepPlan, logits: torch.Tensor) -> dict[TokenSequence, int]:
        """A token for each sequence that can have one; the others end here, before their blocks could become hits."""
        sampled: dict[TokenSequence, int] = {}
        rows = [part.sequence for part in plan.parts if part.samples]
        if not rows:
            return sampled
        greedy = logits.argmax(dim=-1).tolist()
        for row, (sequence, finite) in enumerate(zip(rows, finite_rows(logits), strict=True)):
            answer = self._answers[sequence]
            if not finite:
                log.error("logits are not finite tokens=%d", len(sequence.tokens))
                self._fail(answer, StepFailed("the model's output is not finite"))
                continue
            try:
                sampled[sequence] = answer.pick(logits[row], greedy[row])
            except Exception as error:  # of this row alone: the others of the step go on
                self._fail_row(answer, error)
        return sampled

    def _advance_alone(self, answer: Progress) -> None:
        try:
            self._advance(answer)
        except Exception as error:  # of this row alone: the others of the step go on
            self._fail_row(answer, error)

    def _advance(self, answer: Progress) -> None:
        sequence = answer.sequence
        if sequence.generated == 1:
            self.counters.prompt_tokens += sequence.prompt_tokens
            self.counters.cached_tokens += sequence.cached_tokens or 0
        output = answer.advance()
        if output is None:
            return
        self._outbox.append((answer.handle, output))
        if output.finish_reason is not None:
            self._end(answer)

    def _end(self, answer: Progress) -> None:
        self._scheduler.end(answer.sequence)
        del self._answers[answer.sequence]

    def _fail(self, answer: Progress, error: ReplicaError) -> None:
        self._end(answer)
        self._outbox.append((answer.handle, error))

    def _fail_row(self, answer: Progress, error: Exception) -> None:
        """Call it while `error` is handled."""
        log.exception("answer failed tokens=%d", len(answer.sequence.tokens))
        self._fail(answer, StepFailed(f"the engine failed on this request: {type(error).__name__}"))

    def _count(self, plan: StepPlan, seconds: float) -> None:
        counters = self.counters
        counters.steps += 1
        counters.step_seconds += seconds
        counters.preemptions += plan.preempted
        counters.generated_tokens += sum(part.samples for part in plan.parts)
        if prefill := sum(part.count for part in plan.parts if part.count > 1):
            rate = prefill / seconds
            counters.prefill_rate += (rate - counters.prefill_rate) * (0.2 if counters.prefill_rate else 1.0)

    def _announce(self, events: Sequence[Event]) -> None:
        if self._publish is None or not events:
            return
        try:
            self._publish(events)
        except Exception:  # consumers see the gap and heal it; the answers are still right
            log.exception("events could not be published events=%d", len(events))

    def _hand_out(self) -> None:
        """Give the step's outputs to the loop, all in one call."""
        if not self._outbox:
            return
        batch, self._outbox = self._outbox, []
        self._to_loop(lambda: _deliver(batch))

    def _to_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call)


def _deliver(batch: Sequence[tuple[RequestHandle, Output | ReplicaError]]) -> None:
    for handle, item in batch:
        handle.deliver(item)
