"""Turn one SmolLM2 GGUF file into a Hugging Face folder: configuration, tokenizer, chat template, fp32 weights.

Weights are written as the fp32 values the quantised file stands for, not as fp16 or bf16: only a fifth of the embedding is exact
in fp16 and 3 % of it in bf16, and fp32 needs no conversion at load, so replicas of one machine share one memory-mapped copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from replicas.errors import ModelError

if TYPE_CHECKING:
    from gguf import GGUFReader

T = TypeVar("T")
Progress = Callable[[str], None]
Weights = dict[str, npt.NDArray[np.float32]]

FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")

_SPECIAL = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSOR = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.weight")


class Metadata:
    """The key-value part of a GGUF file, read by type; a missing key or another type raises ModelError with its name."""

    def __init__(self, reader: GGUFReader) -> None:
        self._values = {key: field.contents() for key, field in reader.fields.items()}

    def text(self, key: str) -> str:
        """A string value."""
        return str(self._get(key, str))

    def count(self, key: str) -> int:
        """An integer value."""
        return int(self._get(key, int))

    def real(self, key: str) -> float:
        """A float value, rounded to the 7 digits that float32 holds (1e-05, not 9.99999974e-06)."""
        return float(f"{self._get(key, float):.7g}")

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        return [str(item) for item in self._get(key, list)]

    def counts(self, key: str) -> list[int]:
        """A list of integers."""
        return [int(item) for item in self._get(key, list)]

    def require(self, key: str, expected: str | bool) -> None:
        """Raise unless the key has the one value this conversion understands."""
        if self._values.get(key) != expected:
            raise ModelError(f"GGUF {key} is {self._values.get(key)!r}, only {expected!r} can be converted")

    def _get(self, key: str, kind: type[T]) -> T:
        value = self._values.get(key)
        if not isinstance(value, kind):
            raise ModelError(f"GGUF {key} must be {kind.__name__}, found {type(value).__name__}")
        return value


def convert(source: Path, folder: Path, progress: Progress) -> None:
    """Write `FILES` into the existing, empty `folder`."""
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    progress("reading the GGUF file")
    reader = GGUFReader(source)
    metadata = Metadata(reader)
    metadata.require("general.architecture", "llama")
    metadata.require("tokenizer.ggml.model", "gpt2")
    metadata.require("tokenizer.ggml.pre", "smollm")
    metadata.require("tokenizer.ggml.add_bos_token", False)
    metadata.require("tokenizer.ggml.add_space_prefix", False)
    _write_json(folder / "config.json", model_config(metadata))
    _write_json(folder / "generation_config.json", _special_ids(metadata))
    write_tokenizer(metadata, folder)
    progress("converting the weights to fp32")
    weights = read_weights(reader, metadata)
    progress(f"writing {sum(array.nbytes for array in weights.values()) / 1e6:.0f} MB of weights")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def model_config(metadata: Metadata) -> dict[str, object]:
    """The config.json of the model, in the keys that transformers 4 and 5 both read."""
    hidden = metadata.count("llama.embedding_length")
    heads = metadata.count("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata.count("llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": metadata.count("llama.feed_forward_length"),
        "num_hidden_layers": metadata.count("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.count("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": metadata.count("llama.context_length"),
        "rms_norm_eps": metadata.real("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.real("llama.rope.freq_base"),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,  # read_weights refuses a file with an output tensor of its own
        "torch_dtype": "float32",
        **_special_ids(metadata),
    }


def write_tokenizer(metadata: Metadata, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json: byte-level BPE, each digit on its own, specials taken as they stand."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokens = metadata.texts("tokenizer.ggml.tokens")
    merges = [_pair(merge) for merge in metadata.texts("tokenizer.ggml.merges")]
    specials = [
        token for token, kind in zip(tokens, metadata.counts("tokenizer.ggml.token_type"), strict=True) if kind == _SPECIAL
    ]
    tokenizer = Tokenizer(BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata, tokens))


def _tokenizer_config(metadata: Metadata, tokens: list[str]) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata.count("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[metadata.count("tokenizer.ggml.eos_token_id")],
        "unk_token": tokens[metadata.count("tokenizer.ggml.unknown_token_id")],
        "pad_token": tokens[metadata.count("tokenizer.ggml.padding_token_id")],
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.count("llama.context_length"),
        "chat_template": metadata.text("tokenizer.chat_template"),
    }


def read_weights(reader: GGUFReader, metadata: Metadata) -> Weights:
    """All tensors dequantised to fp32, by their Hugging Face names."""
    from gguf.quants import dequantize

    heads = {"attn_q": metadata.count("llama.attention.head_count"), "attn_k": metadata.count("llama.attention.head_count_kv")}
    weights: Weights = {}
    for tensor in reader.tensors:
        name = _TENSOR.fullmatch(tensor.name)
        if name is None or name["part"] not in _NAMES:
            raise ModelError(f"GGUF tensor {tensor.name!r} has no place in a Llama model with tied embeddings")
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if name["part"] in heads:
            array = uninterleave(array, heads[name["part"]])
        prefix = "" if name["layer"] is None else f"model.layers.{name['layer']}."
        weights[f"{prefix}{_NAMES[name['part']]}.weight"] = np.ascontiguousarray(array)
    return weights


def uninterleave(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's row order of q and k: [heads, dim / 2, 2, in] -> [heads, 2, dim / 2, in], both seen as [heads * dim, in].

    llama.cpp rotates neighbouring rows, everybody else rotates row i with row i + dim / 2.
    """
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _special_ids(metadata: Metadata) -> dict[str, object]:
    return {
        "bos_token_id": metadata.count("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.count("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.count("tokenizer.ggml.padding_token_id"),
    }


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
