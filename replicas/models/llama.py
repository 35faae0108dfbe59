"""The Llama architecture: embedding, layers of attention and gated MLP, final norm, output head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from replicas.models.config import LlamaConfig
from replicas.models.layers import Attention, rms_norm, rotary_frequencies, rotary_tables, rotate


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix [out, in] and, for some models, a bias [out]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in] -> [tokens, out]."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one decoder layer.

    q, k and v stay three matrices, gate and up two: joining them made a step no faster here and would copy the mapped file.
    """

    attention_norm: Tensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    mlp_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear


def weight_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model has, by its Hugging Face name."""
    hidden, mlp = config.hidden_size, config.mlp_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (queries, hidden, config.attention_bias),
        "self_attn.k_proj": (keys, hidden, config.attention_bias),
        "self_attn.v_proj": (keys, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, queries, config.attention_bias),
        "mlp.gate_proj": (mlp, hidden, config.mlp_bias),
        "mlp.up_proj": (mlp, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, mlp, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for number in range(config.layers):
        prefix = f"model.layers.{number}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        for name, (rows, columns, has_bias) in matrices.items():
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


class Llama:
    """A model with its weights; computes steps of any mix of tokens, and keeps no state of its own between them."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self._embedding = weights["model.embed_tokens.weight"]
        self._layers = [_layer(weights, f"model.layers.{number}") for number in range(config.layers)]
        self._norm = weights["model.norm.weight"]
        self._head = self._embedding if config.tied_embeddings else weights["lm_head.weight"]
        self._frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and so of the KV."""
        return self._embedding.dtype

    def hidden(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """tokens and positions: [tokens], int64, of any number of sequences -> [tokens, hidden_size] before the final norm."""
        eps = self.config.norm_eps
        x = functional.embedding(tokens, self._embedding)
        tables = rotary_tables(positions, self._frequencies, x.dtype)
        for number, layer in enumerate(self._layers):
            normed = rms_norm(x, layer.attention_norm, eps)
            q = rotate(self._split(layer.q(normed)), tables)
            k = rotate(self._split(layer.k(normed)), tables)
            attended = attention(number, q, k, self._split(layer.v(normed)))
            x = x + layer.o(attended.flatten(1))
            normed = rms_norm(x, layer.mlp_norm, eps)
            x = x + layer.down(functional.silu(layer.gate(normed)) * layer.up(normed))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [rows, hidden_size], as `hidden` gives it -> float32 [rows, vocab_size]."""
        return functional.linear(rms_norm(hidden, self._norm, self.config.norm_eps), self._head).float()

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.config.head_dim)


def _layer(weights: Mapping[str, Tensor], prefix: str) -> Layer:
    def linear(name: str) -> Linear:
        return Linear(weights[f"{prefix}.{name}.weight"], weights.get(f"{prefix}.{name}.bias"))

    return Layer(
        attention_norm=weights[f"{prefix}.input_layernorm.weight"],
        q=linear("self_attn.q_proj"),
        k=linear("self_attn.k_proj"),
        v=linear("self_attn.v_proj"),
        o=linear("self_attn.o_proj"),
        mlp_norm=weights[f"{prefix}.post_attention_layernorm.weight"],
        gate=linear("mlp.gate_proj"),
        up=linear("mlp.up_proj"),
        down=linear("mlp.down_proj"),
    )
