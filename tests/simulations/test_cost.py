"""The cost model against its formulas written out a second time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.cost import EngineSpec, StepCost
from simulations.errors import SettingError

COST = StepCost(EngineSpec())


def test_the_default_engine_prefills_at_about_15_400_tokens_per_second() -> None:
    compute = 4 * 989e12 * 0.55
    assert compute / (2 * 70.6e9) == pytest.approx(15_400, rel=0.01)
    # One chunk: weights times tokens, half a square of attention, and the fixed cost.
    expected_s = 6e-3 + (2 * 70.6e9 * 8_000 + 4 * 80 * 64 * 128 * 8_000**2 / 2) / compute
    assert COST.prefill_alone_s(8_000, chunk_tokens=8_192) == pytest.approx(expected_s, rel=1e-9)
    assert expected_s == pytest.approx(0.564, abs=1e-3)


def test_a_decode_step_reads_weights_and_kv() -> None:
    expected_s = 6e-3 + (70.6e9 * 2 + 2 * 80 * 8 * 128 * 2 * 100_000) / (4 * 3.35e12 * 0.75)
    assert COST.step_s(requests=20, tokens=20, pairs=0, kv_tokens=100_000) == pytest.approx(expected_s, rel=1e-9)


@given(steps=st.integers(1, 300), requests=st.integers(1, 400), kv_tokens=st.integers(1, 400_000))
def test_a_run_of_decode_steps_takes_as_long_as_its_steps_one_by_one(steps: int, requests: int, kv_tokens: int) -> None:
    one_by_one = math.fsum(
        COST.step_s(requests=requests, tokens=requests, pairs=0, kv_tokens=kv_tokens + step * requests) for step in range(steps)
    )
    assert COST.decode_run_s(steps, requests=requests, kv_tokens=kv_tokens) == pytest.approx(one_by_one, rel=1e-9)


def test_chunks_of_a_long_prompt_cost_the_same_attention() -> None:
    whole = COST.prefill_alone_s(16_384, chunk_tokens=16_384)
    assert COST.prefill_alone_s(16_384, chunk_tokens=8_192) == pytest.approx(whole + 6e-3, rel=1e-9)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"mfu": 0.0}, "mfu must be positive, got 0"),
        ({"mbu": 1.5}, "mbu must be at most 1, got 1.5"),
        ({"kv_tokens": -1}, "kv_tokens must be positive, got -1"),
        ({"fixed_step_s": -0.1}, "fixed_step_s must be at least 0, got -0.1"),
        ({"flops": math.inf}, "flops must be positive, got inf"),
    ],
)
def test_a_wrong_engine_names_the_setting(setting: dict[str, float], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        EngineSpec(**setting)  # type: ignore[arg-type]
