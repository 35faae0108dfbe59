"""From what a person writes after `--model` to a model in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from gateway.tokenize.folder import model_folder
from replicas.errors import ModelError
from replicas.fetch import fetch_smollm2
from replicas.models.config import LlamaConfig, read_config
from replicas.models.llama import Llama, weight_shapes
from replicas.models.weights import load_weights

log = logging.getLogger(__name__)

TINY = LlamaConfig(
    vocab_size=49_152,  # SmolLM2's, so that its tokenizer serves both
    hidden_size=64,
    mlp_size=160,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    max_context=8192,
    norm_eps=1e-5,
    rope_theta=10_000.0,
    eos_token_ids=frozenset({2}),
)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(model: str, *, dtype: str = "float32", progress: Callable[[str], None] | None = None) -> Llama:
    """'smollm2' (fetched on first use), 'tiny' (random weights, always the same), or a local Hugging Face folder."""
    if dtype not in _DTYPES:
        raise ModelError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    if model == "tiny":
        return tiny_model(_DTYPES[dtype])
    folder = fetch_smollm2(progress or _log_progress) if model == "smollm2" else model_folder(model)
    if not folder.is_dir():
        raise ModelError(f"model {model!r} is neither smollm2 nor tiny nor a folder")
    config = read_config(folder)
    return Llama(config, load_weights(folder, weight_shapes(config), _DTYPES[dtype]))


def tiny_model(dtype: torch.dtype = torch.float32, *, config: LlamaConfig = TINY, seed: int = 0) -> Llama:
    """A model of random weights for tests: quick, and every token of the context changes what comes next."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in weight_shapes(config).items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(shape, dtype=dtype)
            continue
        # At a gain of 1 attention is so flat that greedy decoding repeats one token whatever the prompt was.
        gain = 3.0 if "proj" in name else 1.0
        weights[name] = (torch.randn(shape, generator=generator) * (gain / shape[-1] ** 0.5)).to(dtype)
    return Llama(config, weights)


def _log_progress(line: str) -> None:
    log.info("model fetch step=%r", line)
