"""A model written as llama.cpp writes it comes back as the model it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from replicas.errors import ModelError
from replicas.gguf_convert import FILES, convert
from replicas.models.load import load_model
from tests.fakes.llama import our_logits, random_llama, their_logits

SPECIALS = ["<unk>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "Ġ hell", "1 2"]
TOKENS = [*SPECIALS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
SIZES = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QUANTISED = {"ffn_up": GGMLQuantizationType.Q4_1, "token_embd": GGMLQuantizationType.Q8_0}


def gguf_name(name: str) -> str:
    """`model.layers.0.self_attn.q_proj.weight` -> `blk.0.attn_q.weight`."""
    parts = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "input_layernorm": "attn_norm"}
    parts |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm"}
    parts |= {"embed_tokens": "token_embd", "norm": "output_norm"}
    pieces = name.split(".")
    return f"blk.{pieces[2]}.{parts[pieces[-2]]}.weight" if pieces[1] == "layers" else f"{parts[pieces[-2]]}.weight"


def write_gguf(path: Path, tensors: dict[str, np.ndarray], *, pre: str = "smollm", extra: str | None = None) -> None:
    """Rows of q and k are stored in pairs, as llama.cpp's converter puts them; two tensors are quantised."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(1234.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_merges(MERGES)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    if extra is not None:
        writer.add_tensor(extra, np.zeros(4, dtype=np.float32))
    for name, array in tensors.items():
        kind = next((kind for part, kind in QUANTISED.items() if part in name), GGMLQuantizationType.F32)
        heads = 4 if "attn_q" in name else 2 if "attn_k" in name else 0
        rows = array.reshape(heads, 2, -1, 64).swapaxes(1, 2).reshape(array.shape) if heads else array
        writer.add_tensor(name, quantize(rows, kind) if kind in QUANTISED.values() else rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    """Random weights under GGUF names; the quantised ones hold values their type can express."""
    model = random_llama(**SIZES, tie_word_embeddings=True)
    arrays = {gguf_name(name): tensor.numpy() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    for name, array in arrays.items():
        for part, kind in QUANTISED.items():
            if part in name:
                arrays[name] = dequantize(quantize(array, kind), kind)
    return arrays


@pytest.fixture(scope="module")
def folder(tensors: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("gguf")
    write_gguf(base / "model.gguf", tensors)
    (base / "folder").mkdir()
    convert(base / "model.gguf", base / "folder", lambda line: None)
    return base / "folder"


def test_every_file_is_written_and_no_other(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_the_converted_model_gives_the_logits_of_the_original(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    rope = {"rope_type": "default", "rope_theta": 1234.0}
    original = random_llama(**SIZES, tie_word_embeddings=True, rope_parameters=rope, rms_norm_eps=1e-5)
    state = {name: torch.from_numpy(tensors[gguf_name(name)]) for name in original.state_dict() if name != "lm_head.weight"}
    original.load_state_dict(state, strict=False)
    tokens = [(5 * number * number + number) % len(TOKENS) for number in range(50)]
    ours = our_logits(load_model(str(folder)), tokens)
    torch.testing.assert_close(ours, their_logits(original, tokens), atol=1e-3, rtol=0)


def test_transformers_reads_the_same_model_from_the_folder(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokens = list(range(40))
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert theirs.dtype == torch.float32
    torch.testing.assert_close(our_logits(load_model(str(folder)), tokens), their_logits(theirs, tokens), atol=1e-3, rtol=0)


def test_the_tokenizer_splits_digits_merges_bytes_and_keeps_specials_whole(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "<|im_start|>hell hello 12\r\n é🎉<|im_end|>"
    encoding = tokenizer.encode(text)
    assert encoding.tokens[:7] == ["<|im_start|>", "hell", "Ġhell", "o", "Ġ", "1", "2"]
    assert encoding.ids[-1] == 2
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text


def test_the_chat_template_and_the_specials_are_carried_over(folder: Path) -> None:
    written = json.loads((folder / "tokenizer_config.json").read_text())
    assert written["chat_template"] == TEMPLATE
    assert [written[f"{kind}_token"] for kind in ("unk", "bos", "eos", "pad")] == [*SPECIALS, "<|im_end|>"]
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2


def test_another_pre_tokenizer_is_refused(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tensors, pre="llama-bpe")
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre is 'llama-bpe', only 'smollm'"):
        convert(tmp_path / "model.gguf", tmp_path, lambda line: None)


@pytest.mark.parametrize("extra", ["output.weight", "blk.0.attn_q.bias", "rope_freqs.weight"])
def test_a_tensor_without_a_place_is_refused(tensors: dict[str, np.ndarray], tmp_path: Path, extra: str) -> None:
    write_gguf(tmp_path / "model.gguf", tensors, extra=extra)
    with pytest.raises(ModelError, match=f"'{extra}' has no place"):
        convert(tmp_path / "model.gguf", tmp_path, lambda line: None)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre is None"):
        convert(tmp_path / "model.gguf", tmp_path, lambda line: None)
