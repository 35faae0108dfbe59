"""Reading config.json: both spellings of rotary settings, derived sizes, refusals by key and value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicas.errors import ModelError
from replicas.models.config import Llama3Scaling, read_config

BASE = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def write(folder: Path, **changes: object) -> Path:
    (folder / "config.json").write_text(json.dumps({**BASE, **changes}))
    return folder


def test_what_is_not_written_is_derived_or_takes_the_default_of_transformers(tmp_path: Path) -> None:
    config = read_config(write(tmp_path))
    assert (config.head_dim, config.kv_heads, config.max_context) == (16, 4, 2048)
    assert (config.norm_eps, config.rope_theta, config.rope_scaling) == (1e-6, 10_000.0, None)
    assert not (config.attention_bias or config.mlp_bias or config.tied_embeddings)
    assert config.eos_token_ids == frozenset()


def test_head_dim_may_differ_from_hidden_size_over_heads(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, head_dim=24)).head_dim == 24


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500_000, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 500_000, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500_000, **LLAMA3}},
    ],
)
def test_every_spelling_of_llama3_scaling_reads_the_same(tmp_path: Path, rope: dict[str, object]) -> None:
    config = read_config(write(tmp_path, **rope))
    assert config.rope_theta == 500_000.0
    assert config.rope_scaling == Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)


@pytest.mark.parametrize("written", [None, {"rope_type": "default"}])
def test_default_rope_scaling_is_no_scaling(tmp_path: Path, written: dict[str, str] | None) -> None:
    assert read_config(write(tmp_path, rope_scaling=written)).rope_scaling is None


def test_end_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=7)
    assert read_config(tmp_path).eos_token_ids == {7}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    assert read_config(tmp_path).eos_token_ids == {8, 9}


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"model_type": "mistral"}, "model_type", "'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act", "'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type", "'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type", "'linear'"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor", "0.5"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor", "0.25"),
        ({"rope_interleaved": True}, "rope_interleaved", "True"),
        ({"sliding_window": 4096}, "sliding_window", "4096"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config", "awq"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor", "None"),
        ({"hidden_size": "64"}, "$.hidden_size", "str"),
        ({"num_attention_heads": 5}, "num_attention_heads", "5"),
        ({"num_key_value_heads": 3}, "kv_heads", "3"),
        ({"num_hidden_layers": 0}, "layers", "0"),
        ({"head_dim": 15}, "head_dim", "15"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_key_and_value(
    tmp_path: Path, changes: dict[str, object], key: str, value: str
) -> None:
    with pytest.raises(ModelError) as refused:
        read_config(write(tmp_path, **changes))
    assert key in str(refused.value) and value in str(refused.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in BASE.items() if key != "hidden_size"}))
    with pytest.raises(ModelError, match="hidden_size"):
        read_config(tmp_path)


@pytest.mark.parametrize("content", [None, "{ not json"])
def test_an_absent_or_broken_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)
