"""Our forward pass against Hugging Face transformers on the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from replicas.models.load import load_model
from tests.fakes.llama import our_logits, random_llama, smollm2_or_skip, their_logits

TOKENS = [(7 * number * number + 3 * number) % 211 for number in range(75)]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"num_key_value_heads": 4}, id="group 1"),
        pytest.param({"num_attention_heads": 6, "num_key_value_heads": 2}, id="group 3"),
        pytest.param({"num_key_value_heads": 1}, id="group 4"),
        pytest.param({"tie_word_embeddings": True}, id="tied embeddings"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"head_dim": 20}, id="own head_dim"),
        pytest.param({"rope_parameters": LLAMA3}, id="llama3 rope"),
        pytest.param(
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rms_norm_eps": 0.01}, id="theta and eps"
        ),
    ],
)
def test_logits_equal_those_of_transformers(tmp_path: Path, changes: dict[str, object]) -> None:
    theirs = random_llama(**changes)
    theirs.save_pretrained(tmp_path)
    ours = our_logits(load_model(str(tmp_path)), TOKENS)
    torch.testing.assert_close(ours, their_logits(theirs, TOKENS), atol=1e-3, rtol=0)


def test_a_sharded_folder_gives_the_same_model(tmp_path: Path) -> None:
    theirs = random_llama()
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = our_logits(load_model(str(tmp_path)), TOKENS)
    torch.testing.assert_close(ours, their_logits(theirs, TOKENS), atol=1e-3, rtol=0)


def test_half_precision_weights_run_in_their_own_type(tmp_path: Path) -> None:
    theirs = random_llama()
    theirs.save_pretrained(tmp_path)
    exact, half = (our_logits(load_model(str(tmp_path), dtype=dtype), TOKENS) for dtype in ("float32", "bfloat16"))
    assert half.dtype == torch.float32
    error = (half - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.05


def test_the_tiny_model_is_always_the_same_and_reads_its_context() -> None:
    first, second = load_model("tiny"), load_model("tiny")
    logits = our_logits(first, [5, 6, 7, 8])
    assert torch.equal(logits, our_logits(second, [5, 6, 7, 8]))
    assert (logits[-1] - our_logits(first, [9, 6, 7, 8])[-1]).abs().max() > 0.1


@pytest.mark.model
def test_the_real_model_equals_transformers_on_a_sentence() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2_or_skip()
    chat = [{"role": "user", "content": "Explain in 1 sentence why 7 is a prime number, naïvely."}]
    tokens = AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert 40 <= len(tokens) <= 60
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(our_logits(load_model("smollm2"), tokens), their_logits(theirs, tokens), atol=1e-3, rtol=0)
