"""The engine on its thread: promises about tokens, events, leaving and failing."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import torch

from events.types import Cleared, Event, Stored
from replicas.engine import Engine, EngineSettings
from replicas.errors import BadRequest, EngineDied, EngineStopped, StepFailed
from replicas.generation import Generation, RequestHandle
from replicas.models.load import tiny_model
from replicas.runner import TorchRunner
from replicas.sampling import Sampling
from replicas.step import Runner, Slice
from tests.fakes.runner import FakeRunner, generate
from tests.replicas.test_blocks import Consumer

BLOCK = 4
GREEDY = Sampling(temperature=0)


def decode(ids: Sequence[int]) -> str:
    """Every id as one character, so that texts compare like tokens."""
    return "".join(chr(0x4E00 + one) for one in ids)


def prompt(start: int, count: int) -> list[int]:
    return [2 + (start + 7 * number) % 250 for number in range(count)]


def asks(*prompts: Sequence[int], max_tokens: int = 6, sampling: Sampling = GREEDY, **options: object) -> Generation:
    return Generation(
        prompts=tuple(array("i", one) for one in prompts),
        sampling=sampling,
        max_tokens=max_tokens,
        **options,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def running(
    runner: Runner,
    publish: Callable[[Sequence[Event]], object] | None = None,
    decode: Callable[[Sequence[int]], str] = decode,
    **sizes: int,
) -> AsyncIterator[Engine]:
    fields = {"num_blocks": 64, "block_tokens": BLOCK, "max_batch_tokens": 16, "max_running": 8, **sizes}
    engine = Engine(runner, decode, EngineSettings(**fields), publish)
    engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown("test over")


async def text_of(handle: RequestHandle) -> str:
    return "".join([output.text async for output in handle])


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


class Gate:
    """Holds the engine at the border before its next step until opened."""

    def __init__(self, runner: FakeRunner) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        runner.before_step = self._wait
        self._steps_left = 0

    def _wait(self, slices: Sequence[Slice]) -> None:
        if self._steps_left > 0:
            self._steps_left -= 1
            return
        self.reached.set()
        assert self._open.wait(10)

    def after(self, steps: int) -> Gate:
        self._steps_left = steps
        return self

    def open(self) -> None:
        self._steps_left = 1 << 30
        self._open.set()


@pytest.mark.parametrize("length", [1, 4, 15, 16, 17, 41])
async def test_cached_uncached_and_chunked_give_the_same_tokens(length: int) -> None:
    tokens = prompt(3, length)
    expected = decode(generate(tokens, 6))
    async with running(FakeRunner(), max_batch_tokens=100) as whole:
        assert await text_of(whole.submit(asks(tokens))) == expected
    async with running(FakeRunner(), max_batch_tokens=3, max_running=2) as chunked:
        first, second = chunked.submit(asks(tokens)), chunked.submit(asks(tokens))
        assert await asyncio.gather(text_of(first), text_of(second)) == [expected, expected]
        third = chunked.submit(asks(tokens))
        assert await text_of(third) == expected
        assert third.cached_tokens == (length - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("max_batch_tokens", [5, 16, 200])
async def test_the_real_runner_gives_the_same_tokens_cached_chunked_and_batched(max_batch_tokens: int) -> None:
    tokens = [[(start * 37 + 11 * number) % 49_000 for number in range(50)] for start in range(3)]
    alone = []
    for one in tokens:
        async with running(TorchRunner(tiny_model()), max_batch_tokens=200) as engine:
            alone.append(await text_of(engine.submit(asks(one, max_tokens=12))))
    async with running(TorchRunner(tiny_model()), max_batch_tokens=max_batch_tokens) as engine:
        for _ in range(2):
            handles = [engine.submit(asks(one, max_tokens=12)) for one in tokens]
            assert list(await asyncio.gather(*map(text_of, handles))) == alone
        assert [handle.cached_tokens for handle in handles] == [48, 48, 48]


async def test_a_follow_up_turn_hits_prompt_and_answer() -> None:
    async with running(FakeRunner()) as engine:
        tokens = prompt(3, 10)
        answer = generate(tokens, 6)
        await text_of(engine.submit(asks(tokens)))
        follow_up = engine.submit(asks([*tokens, *answer, *prompt(90, 5)]))
        await text_of(follow_up)
        assert (
            follow_up.cached_tokens == 12
        )  # the answer's last token was never computed: 15 tokens are written, 12 in full blocks


async def test_events_are_out_before_the_tokens_and_explain_every_hit() -> None:
    """FC-16: who applies the events knows what the next request will find."""
    published: list[Event] = []
    consumer = Consumer()
    async with running(FakeRunner(), published.extend, num_blocks=20) as engine:
        await until(lambda: bool(published))
        for start in (1, 1, 2, 3, 1, 2, 4, 1):
            tokens = prompt(start, 30)
            consumer.apply(published)
            published.clear()
            predicted = consumer.predict(tokens, BLOCK)
            handle = engine.submit(asks(tokens))
            async for output in handle:
                blocks = (29 + output.generated) // BLOCK - predicted // BLOCK
                assert sum(len(one.hashes) for one in published if isinstance(one, Stored)) >= blocks
            assert handle.cached_tokens == predicted


async def test_events_explain_the_cache_after_a_crowd_that_came_and_left() -> None:
    """FC-65: batches, preemption and leaving in any step; what was announced is what is there."""
    consumer = Consumer()
    chance = random.Random(7)
    stems = [prompt(start, 40) for start in range(3)]

    async def visit(engine: Engine) -> None:
        tokens = [*chance.choice(stems)[: chance.randrange(1, 40)], *prompt(chance.randrange(250), chance.randrange(8))]
        handle = engine.submit(asks(tokens, max_tokens=chance.randrange(1, 40)))
        leaves_after = chance.choice([0, 1, 3, 100, 100])
        text = ""
        async for output in handle:
            text += output.text
            if output.generated >= leaves_after:
                handle.cancel()
        assert decode(generate(tokens, 40)).startswith(text)

    async with running(FakeRunner(), consumer.apply, num_blocks=26, max_batch_tokens=24) as engine:
        for _ in range(6):
            await asyncio.gather(*[visit(engine) for _ in range(25)])
        await until(lambda: engine.pool.used_blocks == 0)
        assert engine.counters.preemptions > 0
        for stem in stems:
            for length in range(1, 41):
                found = engine.pool.lookup(array("i", stem[:length]))
                assert consumer.predict(stem[:length], BLOCK) == len(found) * BLOCK
        assert sum(consumer.copies.values()) == engine.pool.idle_cached_blocks


async def test_a_new_life_begins_with_a_clear() -> None:
    published: list[Event] = []
    async with running(FakeRunner(), published.extend):
        await until(lambda: bool(published))
        assert published == [Cleared()]


@pytest.mark.parametrize("steps", range(7))
async def test_leaving_after_any_step_keeps_complete_blocks_and_frees_the_rest(steps: int) -> None:
    """FC-65: a prefill of chunks of 5 tokens, left at each border, also before its first step."""
    runner = FakeRunner()
    gate = Gate(runner).after(steps)
    tokens = prompt(5, 23)
    async with running(runner, max_batch_tokens=5) as engine:
        handle = engine.submit(asks(tokens, max_tokens=10))
        await asyncio.to_thread(gate.reached.wait, 5)
        handle.cancel()
        gate.open()
        await until(lambda: engine.running == 0 and engine.pool.used_blocks == 0)
        written = min(5 * (steps + 1), 23) + max(0, steps + 1 - 5)  # the step at the gate still runs
        again = engine.submit(asks(tokens))
        assert await text_of(again) == decode(generate(tokens, 6))
        assert again.cached_tokens == min(written, 22) // BLOCK * BLOCK


async def test_leaving_while_queued_runs_nothing() -> None:
    runner = FakeRunner()
    gate = Gate(runner)
    async with running(runner, max_running=1) as engine:
        first = engine.submit(asks(prompt(1, 5)))
        await asyncio.to_thread(gate.reached.wait, 5)
        second = engine.submit(asks(prompt(2, 5)))
        second.cancel()
        gate.open()
        await text_of(first)
        await until(lambda: engine.waiting == 0)
        assert all(len(one) == 1 for one in runner.steps)
        assert not any(list(part.tokens[:5]) == prompt(2, 5) for step in runner.steps for part in step)


async def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    runner = FakeRunner()

    def fail(slices: Sequence[Slice]) -> None:
        runner.before_step = lambda slices: None
        raise RuntimeError("broken kernel")

    async with running(runner) as engine:
        await text_of(engine.submit(asks(prompt(1, 9))))
        runner.before_step = fail
        with pytest.raises(StepFailed, match="RuntimeError"):
            await text_of(engine.submit(asks(prompt(1, 30))))
        assert "broken kernel" in caplog.text
        assert engine.pool.used_blocks == 0
        again = engine.submit(asks(prompt(1, 30)))
        assert await text_of(again) == decode(generate(prompt(1, 30), 6))
        assert again.cached_tokens == 8  # of the first request; the failed step left nothing


async def test_logits_that_are_no_numbers_end_only_their_own_request() -> None:
    """FC-65: and the blocks they came from are no hits."""
    runner = FakeRunner()
    bad = prompt(40, 9)

    def tamper(logits: torch.Tensor) -> torch.Tensor:
        for row, one in enumerate(part for part in runner.steps[-1] if part.wants_logits):
            if list(one.tokens) == bad:
                logits[row, 5] = math.nan
        return logits

    runner.tamper = tamper
    async with running(runner, max_batch_tokens=64) as engine:
        good, broken = engine.submit(asks(prompt(1, 9))), engine.submit(asks(bad))
        with pytest.raises(StepFailed, match="not finite"):
            await text_of(broken)
        assert await text_of(good) == decode(generate(prompt(1, 9), 6))
        runner.tamper = lambda logits: logits
        again = engine.submit(asks(bad))
        assert await text_of(again) == decode(generate(bad, 6))
        assert again.cached_tokens == 0


@pytest.mark.parametrize("broken", ["sampling", "decoding"])
async def test_an_error_in_one_row_ends_only_that_row(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    """FC-65: the others of the step go on, and the engine too."""
    ask = asks(prompt(40, 9), sampling=Sampling(min_p=None) if broken == "sampling" else GREEDY)  # type: ignore[arg-type]
    poison = generate(prompt(40, 9), 1)[0] if broken == "decoding" else -1

    def decode_or_fail(ids: Sequence[int]) -> str:
        if poison in ids:
            raise ValueError("no such piece")
        return decode(ids)

    async with running(FakeRunner(), decode=decode_or_fail, max_batch_tokens=64) as engine:
        good, bad = engine.submit(asks(prompt(1, 9), max_tokens=1)), engine.submit(ask)
        with pytest.raises(StepFailed, match="TypeError" if broken == "sampling" else "ValueError"):
            await text_of(bad)
        assert await text_of(good) == decode(generate(prompt(1, 9), 1))
        await until(lambda: engine.pool.used_blocks == 0)
        assert engine.counters.failed_steps == 0
    assert "answer failed" in caplog.text


async def test_a_message_that_cannot_be_applied_ends_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FakeRunner()) as engine:
        with pytest.raises(StepFailed, match="TypeError"):
            await text_of(engine.submit(asks(prompt(1, 9), prompt(2, 9), sampling=Sampling(seed="7"))))  # type: ignore[arg-type]
        assert await text_of(engine.submit(asks(prompt(1, 9)))) == decode(generate(prompt(1, 9), 6))
        assert (engine.waiting, engine.pool.used_blocks) == (0, 0)
    assert "message failed kind=_Submit" in caplog.text


async def test_who_leaves_a_reset_does_no_harm() -> None:
    """FC-49: the one who asked is gone before the engine comes to it."""
    runner = FakeRunner()
    gate = Gate(runner)
    async with running(runner) as engine:
        handle = engine.submit(asks(prompt(1, 9)))
        await asyncio.to_thread(gate.reached.wait, 5)
        left = asyncio.create_task(engine.reset_prefix_cache())
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        gate.open()
        assert await text_of(handle) == decode(generate(prompt(1, 9), 6))
        await until(lambda: engine.pool.used_blocks == 0)
        assert await engine.reset_prefix_cache()


async def test_when_the_thread_dies_all_that_is_open_or_new_fails_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """FC-65: what runs, what waits, what the thread never took, and what comes later; nobody waits for a thread that is gone."""
    runner = FakeRunner()
    reached, go = threading.Event(), threading.Event()

    def die(slices: Sequence[Slice]) -> None:
        reached.set()
        assert go.wait(10)
        raise SystemExit("not an Exception, so no guard keeps it")

    runner.before_step = die
    async with running(runner, max_running=1) as engine:
        taken = [engine.submit(asks(prompt(start, 9))) for start in (1, 2)]
        await asyncio.to_thread(reached.wait, 5)
        never_taken = engine.submit(asks(prompt(3, 9)))
        reset = asyncio.create_task(engine.reset_prefix_cache())
        await asyncio.sleep(0)
        go.set()
        async with asyncio.timeout(20):
            for handle in (*taken, never_taken):
                with pytest.raises(EngineDied, match="SystemExit"):
                    await text_of(handle)
            with pytest.raises(EngineDied):
                await reset
            await engine.died.wait()
        with pytest.raises(EngineDied):
            engine.submit(asks(prompt(4, 9)))
        with pytest.raises(EngineDied):
            await engine.reset_prefix_cache()
        assert not engine.alive
    assert "the engine thread died" in caplog.text


async def test_a_failing_publisher_does_not_stop_answers(caplog: pytest.LogCaptureFixture) -> None:
    def publish(events: Sequence[Event]) -> None:
        raise OSError("no bus")

    async with running(FakeRunner(), publish) as engine:
        assert await text_of(engine.submit(asks(prompt(1, 9)))) == decode(generate(prompt(1, 9), 6))
    assert "events could not be published" in caplog.text


async def test_preempted_requests_still_get_their_own_answers() -> None:
    async with running(FakeRunner(), num_blocks=12, max_batch_tokens=32) as engine:
        prompts = [prompt(start, 9) for start in range(5)]
        handles = [engine.submit(asks(one, max_tokens=14)) for one in prompts]
        texts = await asyncio.gather(*map(text_of, handles))
        assert list(texts) == [decode(generate(one, 14)) for one in prompts]
        assert engine.counters.preemptions > 0


async def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch() -> None:
    runner = FakeRunner()
    runner.tamper = lambda logits: logits / 4  # flat enough for luck to matter
    seeded = asks(prompt(1, 9), max_tokens=12, sampling=Sampling(seed=11))
    async with running(runner) as engine:
        alone = await text_of(engine.submit(seeded))
        others = [engine.submit(asks(prompt(start, 12), sampling=Sampling())) for start in range(2, 6)]
        crowded = engine.submit(seeded)
        texts = await asyncio.gather(text_of(crowded), *map(text_of, others))
        assert texts[0] == alone
        assert alone != decode(generate(prompt(1, 9), 12))


class OneByOne(TorchRunner):
    """The same model, each slice in a forward pass of its own: logits do not depend on the company, to the last bit."""

    def step(self, slices: Sequence[Slice]) -> torch.Tensor:
        return torch.cat([super(OneByOne, self).step([one]) for one in slices])


async def test_a_seed_repeats_a_hot_answer_in_any_company_when_the_logits_do() -> None:
    """What differs between an answer alone and in a batch is rounding in the logits, never whose luck it was."""
    # Sizes at which no prompt is cached or cut, for that rounds otherwise too.
    async with running(OneByOne(tiny_model()), block_tokens=16, max_batch_tokens=64) as engine:
        for seed in range(4):
            tokens = [(seed * 37 + 11 * number) % 49_000 for number in range(6)]
            ask = asks(tokens, max_tokens=12, sampling=Sampling(temperature=1.5, seed=seed, top_p=0.95 if seed % 2 else 1.0))
            alone = await text_of(engine.submit(ask))
            crowd = [engine.submit(ask) for _ in range(4)]
            assert set(await asyncio.gather(*map(text_of, crowd))) == {alone}


async def test_several_prompts_are_answered_by_index() -> None:
    async with running(FakeRunner()) as engine:
        prompts = [prompt(start, 5 + start) for start in range(3)]
        handle = engine.submit(asks(*prompts))
        texts = ["", "", ""]
        async for output in handle:
            texts[output.index] += output.text
        assert texts == [decode(generate(one, 6)) for one in prompts]
        assert (handle.prompt_tokens, handle.completion_tokens) == (18, 18)


async def test_the_cache_is_reset_only_when_idle_and_says_so_at_once() -> None:
    runner = FakeRunner()
    gate = Gate(runner)
    published: list[Event] = []
    async with running(runner, published.extend) as engine:
        handle = engine.submit(asks(prompt(1, 9)))
        await asyncio.to_thread(gate.reached.wait, 5)
        refused = asyncio.create_task(engine.reset_prefix_cache())
        await asyncio.sleep(0)
        gate.open()
        assert not await refused
        await text_of(handle)
        published.clear()
        assert await engine.reset_prefix_cache()
        assert published == [Cleared()]
        again = engine.submit(asks(prompt(1, 9)))
        await text_of(again)
        assert again.cached_tokens == 0


async def test_shutdown_fails_what_is_open_and_takes_nothing_more() -> None:
    runner = FakeRunner()
    gate = Gate(runner).after(1)
    async with running(runner, max_running=1) as engine:
        decoding, queued = engine.submit(asks(prompt(1, 5))), engine.submit(asks(prompt(2, 5)))
        await anext(decoding)
        await asyncio.to_thread(gate.reached.wait, 5)
        stopping = asyncio.create_task(engine.shutdown("going down"))
        await asyncio.sleep(0)
        with pytest.raises(EngineStopped):
            engine.submit(asks(prompt(3, 5)))
        gate.open()
        await stopping
        for handle in (decoding, queued):
            with pytest.raises(EngineStopped, match="going down"):
                await text_of(handle)
        assert not engine.alive
        assert engine.pool.used_blocks == 0


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (asks([]), "no tokens"),
        (asks([5, 256]), "256 is not in the vocabulary of 256"),
        (asks([5, -1]), "-1 is not in the vocabulary"),
        (asks([5], stop_ids=frozenset({7, 256})), "stop_token_ids: token id 256 is not in the vocabulary of 256"),
        (asks([5], stop_ids=frozenset({7, -1})), "stop_token_ids: token id -1 is not in the vocabulary"),
        (asks(prompt(1, 250), max_tokens=7), r"takes 256 tokens, but 257 were asked for \(250 in the prompt, 7 to generate\)"),
    ],
)
async def test_what_can_never_run_is_refused_with_its_numbers(ask: Generation, complaint: str) -> None:
    async with running(FakeRunner()) as engine:
        with pytest.raises(BadRequest, match=complaint):
            engine.submit(ask)


async def test_the_model_runs_on_the_engine_thread_only() -> None:
    runner = FakeRunner()
    async with running(runner) as engine:
        await asyncio.gather(*[text_of(engine.submit(asks(prompt(start, 9)))) for start in range(4)])
    assert runner.threads == {"engine"}


async def test_end_of_sequence_ends_the_answer() -> None:
    runner = FakeRunner()
    runner.eos_after = 12
    async with running(runner) as engine:
        handle = engine.submit(asks(prompt(1, 9), max_tokens=20, stop_ids=frozenset({0})))
        outputs = [output async for output in handle]
        assert "".join(output.text for output in outputs) == decode(generate(prompt(1, 9), 3))
        assert (outputs[-1].finish_reason, handle.completion_tokens) == ("stop", 4)
