"""One modelled engine: chunks, batching, and runs of decode steps that change no time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simulations.cost import EngineSpec, StepCost
from simulations.engine_model import EngineModel, ModelledRequest, StepOutcome
from simulations.errors import SimulationError

BLOCK = 512


def request(number: int, input_tokens: int, output_tokens: int, ids: list[int] | None = None) -> ModelledRequest:
    blocks = -(-input_tokens // BLOCK)
    return ModelledRequest(number, ids or [1_000 * number + i for i in range(blocks)], input_tokens, output_tokens)


def drain(engine: EngineModel, now_s: float = 0.0) -> list[tuple[float, StepOutcome]]:
    """Step until idle; (end, outcome) of each step."""
    outcomes = []
    while (end_s := engine.start(now_s)) is not None:
        outcomes.append((end_s, engine.finish(end_s)))
        now_s = end_s
    engine.check_drained()
    return outcomes


def test_a_lone_request_takes_what_the_cost_model_says() -> None:
    spec = EngineSpec()
    engine = EngineModel(spec, BLOCK)
    engine.submit(request(1, 8_000, 2))
    (first_s, first), (_, last) = drain(engine)
    assert [item.request for item in first.first_tokens] == [1] and not first.finished
    assert [item.request for item in last.finished] == [1]
    assert first_s == pytest.approx(0.564, rel=0.01)
    assert first_s == pytest.approx(StepCost(spec).prefill_alone_s(8_000, chunk_tokens=8_192), rel=1e-12)
    assert engine.busy_s > engine.prefill_s == first_s


def test_a_long_prompt_is_computed_in_chunks_and_its_blocks_show_as_they_are_done() -> None:
    engine = EngineModel(EngineSpec(), BLOCK)
    engine.submit(request(1, 20_000, 1))
    outcomes = [outcome for _, outcome in drain(engine)]
    assert [[len(run.ids) for run in outcome.stored] for outcome in outcomes] == [[16], [16], [8]]
    assert [outcome.stored[0].parent for outcome in outcomes] == [None, 1_015, 1_031]
    assert [len(outcome.first_tokens) for outcome in outcomes] == [0, 0, 1]


def test_one_step_serves_several_prompts_up_to_the_chunk_budget() -> None:
    engine = EngineModel(EngineSpec(chunk_tokens=4_096), BLOCK)
    for number in (1, 2, 3):
        engine.submit(request(number, 2_000, 1))
    firsts = [[item.request for item in outcome.first_tokens] for _, outcome in drain(engine)]
    assert firsts == [[1, 2], [3]]


def test_the_batch_limit_holds_the_next_one_back() -> None:
    engine = EngineModel(EngineSpec(max_sequences=1), BLOCK)
    engine.submit(request(1, 1_000, 10))
    engine.submit(request(2, 1_000, 10))
    done = [item.request for _, outcome in drain(engine) for item in (*outcome.first_tokens, *outcome.finished)]
    assert done == [1, 1, 2, 2]


def test_a_full_hit_still_computes_the_last_token() -> None:
    engine = EngineModel(EngineSpec(), BLOCK)
    for number in (1, 2):
        engine.submit(request(number, 1_000, 1, ids=[5, 6]))
        drain(engine)
    assert engine.computed_tokens == 1_001


def times(cuts: Sequence[float]) -> list[float]:
    """When tokens of two requests ended, with runs of decode steps cut at the given times."""
    engine = EngineModel(EngineSpec(), BLOCK)
    for number, output_tokens in ((1, 300), (2, 170)):
        engine.submit(request(number, 3_000, output_tokens))
    ends, now_s, pending = [], 0.0, list(cuts)
    while (end_s := engine.start(now_s)) is not None:
        while pending and pending[0] < end_s:
            cut_s = engine.cut(pending.pop(0))
            end_s = end_s if cut_s is None else cut_s
        outcome = engine.finish(end_s)
        ends += [end_s for _ in (*outcome.first_tokens, *outcome.finished)]
        now_s = end_s
    return ends


def test_cutting_a_run_of_decode_steps_moves_no_token() -> None:
    assert times([]) == pytest.approx(times([0.6, 0.61, 1.5, 3.0, 3.0001, 5.0]), rel=1e-9)


def test_a_cut_ends_the_run_at_the_first_step_end_after_it() -> None:
    spec = EngineSpec()
    engine, cost = EngineModel(spec, BLOCK), StepCost(spec)
    engine.submit(request(1, 3_000, 100))
    start_s = engine.start(0.0)
    assert start_s is not None
    engine.finish(start_s)
    engine.start(start_s)
    third_s = start_s + cost.decode_run_s(3, requests=1, kv_tokens=3_000)
    assert engine.cut(third_s - 1e-6) == pytest.approx(third_s, rel=1e-12)
    assert engine.cut(third_s - 2e-6) is None


def test_a_request_that_can_never_fit_is_named() -> None:
    engine = EngineModel(EngineSpec(kv_tokens=1_024), BLOCK)
    with pytest.raises(
        SimulationError, match=r"request 7 needs 3 KV blocks \(1000 input and 100 output tokens\), a replica has 2"
    ):
        engine.submit(request(7, 1_000, 100))


def test_a_known_answer_becomes_hits_in_place_of_the_block_the_prompt_had_begun() -> None:
    engine = EngineModel(EngineSpec(kv_tokens=8 * BLOCK), BLOCK)
    asked = request(1, 2 * BLOCK + 100, BLOCK, [10, 11, 99])
    asked.answer_ids = [12]
    engine.submit(asked)
    last = drain(engine)[-1][1]
    assert last.removed == [99]
    assert [(run.parent, run.ids) for run in last.stored] == [(11, [12])]
    follow_up = request(2, 4 * BLOCK, 1, [10, 11, 12, 13])
    engine.submit(follow_up)
    drain(engine)
    assert follow_up.hit_tokens == 3 * BLOCK


def test_an_answer_changes_nothing_where_the_begun_block_is_somebody_elses_too() -> None:
    engine = EngineModel(EngineSpec(kv_tokens=16 * BLOCK), BLOCK)
    for number, output_tokens in ((1, 40), (2, 400)):
        asked = request(number, BLOCK + 100, output_tokens, [10, 99])
        asked.answer_ids = [11] if number == 1 else []
        engine.submit(asked)
    outcomes = [outcome for _, outcome in drain(engine)]
    assert [block for outcome in outcomes for block in outcome.removed] == []
    assert 11 not in [block for outcome in outcomes for run in outcome.stored for block in run.ids]
