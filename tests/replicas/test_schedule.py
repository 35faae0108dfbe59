"""The scheduler, driven by a runner that reads its tokens back from the KV it was told to write."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.blocks import BlockPool
from replicas.errors import ReplicaError
from replicas.schedule import Scheduler, StepPlan
from replicas.sequence import Sequence as TokenSequence
from replicas.sequence import State
from tests.fakes.runner import FakeRunner, generate

BLOCK = 4


class Bench:
    """A scheduler and a fake runner, stepped by hand."""

    def __init__(self, num_blocks: int = 16, max_batch_tokens: int = 8, max_running: int = 4) -> None:
        self.pool = BlockPool(num_blocks, BLOCK)
        self.scheduler = Scheduler(self.pool, max_batch_tokens=max_batch_tokens, max_running=max_running)
        self.runner = FakeRunner()
        self.runner.allocate(num_blocks, BLOCK)

    def add(self, prompt: Sequence[int], salt: str | None = None) -> TokenSequence:
        sequence = TokenSequence.of_prompt(array("i", prompt), salt)
        self.scheduler.add(sequence)
        return sequence

    def execute(self, plan: StepPlan) -> dict[TokenSequence, int]:
        logits = self.runner.step(plan.slices(BLOCK))
        return dict(zip([part.sequence for part in plan.parts if part.samples], logits.argmax(-1).tolist(), strict=True))

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        self.scheduler.complete(plan, self.execute(plan))
        return plan

    def finish(self, sequence: TokenSequence, count: int) -> list[int]:
        """Step until a sequence has `count` new tokens; returns them and takes it out."""
        while sequence.generated < count:
            self.step()
        self.scheduler.end(sequence)
        return sequence.tokens[sequence.prompt_tokens :].tolist()


def test_a_long_prompt_is_cut_into_chunks_of_the_budget() -> None:
    bench = Bench(max_batch_tokens=8)
    sequence = bench.add(range(2, 22))
    counts = [bench.step().parts[0].count for _ in range(3)]
    assert counts == [8, 8, 4]
    assert sequence.generated == 1


def test_decoding_comes_first_and_goes_on_beside_a_prefill() -> None:
    bench = Bench(max_batch_tokens=8)
    first = bench.add(range(2, 8))
    bench.step()
    second = bench.add(range(50, 70))
    for expected in (7, 7, 6):
        before = first.generated
        plan = bench.step()
        assert [(part.sequence, part.count) for part in plan.parts] == [(first, 1), (second, expected)]
        assert first.generated == before + 1
    assert second.generated == 1


def test_the_line_is_served_in_order_and_nobody_overtakes() -> None:
    bench = Bench(num_blocks=6, max_batch_tokens=64)
    running = bench.add(range(2, 14))
    bench.step()
    big = bench.add(range(100, 116))
    small = bench.add([200])
    bench.step()
    assert (big.state, small.state) == (State.WAITING, State.WAITING)
    bench.scheduler.end(running)
    bench.step()
    assert (big.state, small.state) == (State.RUNNING, State.RUNNING)


def test_no_more_run_than_allowed_nor_than_a_step_has_tokens() -> None:
    bench = Bench(max_batch_tokens=3, max_running=8)
    sequences = [bench.add([10 + number]) for number in range(5)]
    for _ in range(4):
        bench.step()
    assert [one.state is State.RUNNING for one in sequences] == [True, True, True, False, False]
    assert [one.generated for one in sequences] == [4, 4, 4, 0, 0]


def test_a_newcomer_waits_until_those_that_run_have_a_spare_block_each() -> None:
    bench = Bench(num_blocks=4, max_batch_tokens=64)
    running = bench.add(range(2, 9))
    bench.step()
    newcomer = bench.add(range(100, 108))  # two blocks are free, and it needs two
    bench.step()
    assert newcomer.state is State.WAITING
    bench.scheduler.end(running)
    bench.step()
    assert newcomer.state is State.RUNNING


def test_the_youngest_gives_up_its_blocks_and_still_gets_its_own_answer() -> None:
    bench = Bench(num_blocks=6, max_batch_tokens=64)
    old, young = bench.add(range(2, 9)), bench.add(range(100, 107))
    preempted = 0
    while old.generated < 12:
        preempted += bench.step().preempted
    assert preempted
    assert young.state is State.WAITING
    bench.scheduler.end(old)
    assert bench.finish(young, 14) == generate(range(100, 107), 14)
    assert young.cached_tokens == 0  # of its first admission: what was found again later is not a client's hit
    assert old.tokens[7:].tolist() == generate(range(2, 9), 12)


def test_a_preempted_sequence_finds_its_complete_blocks_again() -> None:
    bench = Bench(num_blocks=7, max_batch_tokens=64)
    bench.add(range(2, 9))
    young = bench.add(range(100, 107))
    while young.state is State.RUNNING or not young.generated:
        bench.step()
    bench.scheduler.end(bench.scheduler.running[0])
    plan = bench.step()
    assert plan.admitted == (young,)
    assert plan.parts[0].start >= BLOCK


def test_ended_between_planning_and_computing_leaves_no_hit_and_no_event() -> None:
    """FC-65: blocks given to a step that never ran hold nothing."""
    bench = Bench(max_batch_tokens=64)
    sequence = bench.add(range(2, 22))
    plan = bench.scheduler.plan()
    bench.scheduler.end(sequence)
    bench.scheduler.complete(plan, {})
    assert bench.pool.drain_events() == []
    assert bench.pool.free_blocks == 16
    again = bench.add(range(2, 22))
    assert bench.finish(again, 5) == generate(range(2, 22), 5)
    assert again.cached_tokens == 0


@pytest.mark.parametrize("steps", range(8))
def test_ended_after_any_step_keeps_every_complete_block(steps: int) -> None:
    """FC-65: what was written before the end is a hit, and what comes from it is right."""
    prompt = list(range(2, 23))
    bench = Bench(max_batch_tokens=5)
    sequence = bench.add(prompt)
    for _ in range(steps):
        bench.step()
    written, tokens = sequence.written, sequence.tokens.tolist()
    bench.scheduler.end(sequence)
    assert bench.pool.used_blocks == 0
    assert len(bench.pool.lookup(array("i", [*tokens[:written], 1]))) == written // BLOCK
    again = bench.add(prompt)
    assert bench.finish(again, 4) == generate(prompt, 4)
    assert again.cached_tokens == min(written // BLOCK, 20 // BLOCK) * BLOCK


def test_a_sequence_that_can_never_fit_is_refused() -> None:
    bench = Bench(num_blocks=2)
    with pytest.raises(ReplicaError, match=r"9 tokens does not fit 1\.\.8"):
        bench.add(range(9))
    with pytest.raises(ReplicaError, match="0 tokens"):
        bench.add([])


def test_a_scheduler_that_could_run_nothing_is_refused() -> None:
    with pytest.raises(ReplicaError, match="max_running=0"):
        Scheduler(BlockPool(4, 4), max_batch_tokens=8, max_running=0)


arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # step of arrival
        st.tuples(st.integers(1, 24), st.integers(2, 4)).map(lambda drawn: [drawn[1]] * drawn[0]),  # with long shared starts
        st.integers(1, 12),  # tokens wanted
        st.one_of(st.none(), st.integers(0, 12)),  # steps after which it leaves
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(arrivals=arrivals, num_blocks=st.integers(9, 14), budget=st.integers(2, 20), max_running=st.integers(1, 6))
def test_any_load_is_answered_right_within_the_limits(
    arrivals: list[tuple[int, list[int], int, int | None]], num_blocks: int, budget: int, max_running: int
) -> None:
    """FC-65: whoever comes, leaves or is pushed out, every answer equals the one without cache and batch."""
    bench = Bench(num_blocks, budget, max_running)
    scheduler = bench.scheduler
    wanted: dict[TokenSequence, int] = {}
    leaves: dict[TokenSequence, int] = {}
    pending = sorted(arrivals, key=lambda one: one[0])
    for step in range(2_000):
        while pending and pending[0][0] <= step:
            _, prompt, count, patience = pending.pop(0)
            sequence = bench.add(prompt)
            wanted[sequence] = count
            if patience is not None:
                leaves[sequence] = step + patience
        for sequence in [one for one, when in leaves.items() if when <= step]:
            del leaves[sequence]
            if wanted.pop(sequence, None) is not None:
                scheduler.end(sequence)
        if not scheduler.has_work:
            if pending:
                continue
            break
        decoding = [one for one in scheduler.running if one.pending == 1]
        plan = bench.step()
        _check_plan(bench, plan, decoding)
        for sequence in [one for one in wanted if one.generated >= wanted[one]]:
            prompt = sequence.tokens[: sequence.prompt_tokens].tolist()
            assert sequence.tokens[sequence.prompt_tokens :].tolist() == generate(prompt, sequence.generated)
            scheduler.end(sequence)
            wanted.pop(sequence)
    assert not scheduler.has_work, "somebody starved"
    assert bench.pool.used_blocks == 0


def _check_plan(bench: Bench, plan: StepPlan, decoding: list[TokenSequence]) -> None:
    scheduler = bench.scheduler
    planned = [part.sequence for part in plan.parts]
    assert 0 < sum(part.count for part in plan.parts) <= scheduler.max_batch_tokens
    assert len(planned) == len(set(planned))
    assert len(scheduler.running) <= scheduler.max_running
    assert all(one in planned for one in decoding if one.state is State.RUNNING), "a decoding sequence was held up"
    for sequence in scheduler.running:
        assert len(sequence.blocks) * BLOCK >= sequence.written
    assert all(not sequence.blocks for sequence in scheduler.waiting)
