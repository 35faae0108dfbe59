"""Small Llama models made by transformers, and ways to run ours over whole texts: what the model tests compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from gateway.tokenize.folder import model_folder
from replicas.fetch import is_complete
from replicas.models.llama import Llama
from replicas.paged import KvPool, PagedAttention
from replicas.runner import TorchRunner
from replicas.step import Slice

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TINY_SIZES = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def random_llama(**changes: object) -> LlamaForCausalLM:
    """A transformers model whose weights, norms and biases are all random, so that a forgotten one shows."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**TINY_SIZES, **changes})).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    return model


def their_logits(model: LlamaForCausalLM, tokens: Sequence[int]) -> torch.Tensor:
    """float32 [tokens, vocab_size] as transformers computes them."""
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0].float()


def our_logits(model: Llama, tokens: Sequence[int]) -> torch.Tensor:
    """float32 [tokens, vocab_size] as `model` computes them in one step, pages in reverse order."""
    blocks = list(range(len(tokens) // 16, -1, -1))
    pool = KvPool(model.config, model.dtype, len(blocks), 16)
    with torch.inference_mode():
        attention = PagedAttention(pool, [Slice(tokens, 0, blocks, True)], model.dtype)
        return model.logits(model.hidden(torch.tensor(list(tokens)), attention.positions, attention))


def greedy(
    runner: TorchRunner, prompt: Sequence[int], blocks: Sequence[int], count: int, *, cached: int = 0, chunk: int = 999
) -> list[int]:
    """The next `count` tokens, each the likeliest; positions below `cached` are taken from `blocks`, the rest comes in chunks."""
    start = cached
    while start < len(prompt):
        part = prompt[start : start + chunk]
        logits = runner.step([Slice(part, start, blocks, start + len(part) == len(prompt))])
        start += len(part)
    answer = [int(logits[0].argmax())]
    while len(answer) < count:
        logits = runner.step([Slice(answer[-1:], start, blocks, True)])
        answer.append(int(logits[0].argmax()))
        start += 1
    return answer


def smollm2_or_skip() -> Path:
    """The real model's folder in the cache; the test is skipped where it has not been fetched."""
    folder = model_folder("smollm2")
    if not is_complete(folder):
        pytest.skip(f"no SmolLM2 in {folder}: `trunkline model fetch smollm2` puts it there")
    return folder
