"""Read a Hugging Face config.json into what the Llama forward needs.

What it cannot compute exactly is refused, naming the key and the value: a model that answers nonsense looks like one that works.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from replicas.errors import ModelError

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """How Llama 3.1 stretches rotary frequencies to a longer context."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The sizes and switches of one Llama-architecture model."""

    vocab_size: int
    hidden_size: int
    mlp_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_context: int  # tokens
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "mlp_size", "layers", "heads", "kv_heads", "head_dim", "max_context")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ModelError(f"model {name} must be at least 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ModelError(f"model heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.head_dim % 2:
            raise ModelError(f"model head_dim must be even for rotary positions, got {self.head_dim}")


class _Rope(msgspec.Struct):
    """`rope_scaling` (transformers 4) and `rope_parameters` (5)."""

    rope_type: str | None = None
    type: str | None = None  # the oldest name of rope_type
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None


class _Raw(msgspec.Struct):
    """The keys of config.json that change the result, with the defaults of transformers' LlamaConfig."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_id: int | list[int] | None = None
    # Keys that other models of the same layout carry; any value but the default changes the arithmetic.
    rope_interleaved: bool = False
    partial_rotary_factor: float | None = None
    sliding_window: int | None = None
    quantization_config: dict[str, object] | None = None


class _Generation(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def read_config(folder: Path) -> LlamaConfig:
    """The configuration in `folder`; ModelError names the key that is missing, wrong or not supported."""
    raw = _decode(folder / "config.json", _Raw)
    _refuse_unsupported(raw)
    rope = raw.rope_parameters or raw.rope_scaling or _Rope()
    generation_path = folder / "generation_config.json"
    # What generation_config.json says wins, as in transformers: chat models often stop at more tokens than config.json names.
    eos = _decode(generation_path, _Generation).eos_token_id if generation_path.is_file() else None
    return LlamaConfig(
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        mlp_size=raw.intermediate_size,
        layers=raw.num_hidden_layers,
        heads=raw.num_attention_heads,
        kv_heads=raw.num_key_value_heads if raw.num_key_value_heads is not None else raw.num_attention_heads,
        head_dim=raw.head_dim if raw.head_dim is not None else _derived_head_dim(raw),
        max_context=raw.max_position_embeddings,
        norm_eps=raw.rms_norm_eps,
        rope_theta=_first(rope.rope_theta, raw.rope_theta, 10_000.0),
        rope_scaling=_scaling(rope),
        attention_bias=raw.attention_bias,
        mlp_bias=raw.mlp_bias,
        tied_embeddings=raw.tie_word_embeddings,
        eos_token_ids=_ids(eos if eos is not None else raw.eos_token_id),
    )


def _refuse_unsupported(raw: _Raw) -> None:
    rope = raw.rope_parameters or raw.rope_scaling or _Rope()
    refused: list[tuple[str, object, tuple[object, ...]]] = [
        ("model_type", raw.model_type, ("llama",)),
        ("hidden_act", raw.hidden_act, ("silu",)),
        ("rope_interleaved", raw.rope_interleaved, (False,)),
        ("partial_rotary_factor", _first(rope.partial_rotary_factor, raw.partial_rotary_factor, 1.0), (1.0,)),
        ("sliding_window", raw.sliding_window, (None,)),
        ("quantization_config", raw.quantization_config, (None,)),
        ("rope type", rope.rope_type or rope.type or "default", ("default", "llama3")),
    ]
    for key, value, supported in refused:
        if value not in supported:
            raise ModelError(f"config.json {key} is {value!r}; supported: {', '.join(map(repr, supported))}")


def _scaling(rope: _Rope) -> Llama3Scaling | None:
    if (rope.rope_type or rope.type or "default") == "default":
        return None
    original = rope.original_max_position_embeddings
    if rope.factor is None or rope.low_freq_factor is None or rope.high_freq_factor is None or original is None:
        raise ModelError(
            "config.json rope type 'llama3' needs factor, low_freq_factor, high_freq_factor, original_max_position_embeddings; "
            f"got {rope.factor}, {rope.low_freq_factor}, {rope.high_freq_factor} and {original}"
        )
    return Llama3Scaling(rope.factor, rope.low_freq_factor, rope.high_freq_factor, original)


def _derived_head_dim(raw: _Raw) -> int:
    if raw.num_attention_heads < 1 or raw.hidden_size % raw.num_attention_heads:
        raise ModelError(
            f"config.json has no head_dim, and hidden_size {raw.hidden_size} is not a multiple "
            f"of num_attention_heads {raw.num_attention_heads}"
        )
    return raw.hidden_size // raw.num_attention_heads


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _decode(path: Path, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ModelError(f"{path} can not be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{path}: {error}") from error
