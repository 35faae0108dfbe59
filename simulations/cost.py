"""How long an engine's step takes: a roofline over compute and memory, plus what a step costs whatever is in it.

    t = fixed + requests * per_request + max(compute, memory) + parallel
    compute = (2 * params * (p + b) + A * sum(p_i * (ctx_i + p_i / 2))) / (flops * mfu)
    memory  = (weights + kv * K) / (bandwidth * mbu)

p: prompt tokens computed in the step, p_i of them for one request that has ctx_i tokens of KV already; b: decoding requests;
K: tokens of KV read; A = 4 * layers * heads * head_dim. Nothing here is measured on a GPU of ours: it is a model, good for
comparing policies, and a report names its numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from simulations.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One replica: model, hardware and limits. Default: a Llama-3-70B-like model in bf16 on four H100, tensor parallel.

    mfu, mbu: reached shares of peak compute and bandwidth. kv_tokens: what the KV pool holds; None = without limit.
    chunk_tokens: the most tokens one step computes. fixed_step_s: CPU work and launches between two steps.
    """

    name: str = "llama-3-70b-like, bf16, 4 x H100"
    params: float = 70.6e9
    layers: int = 80
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 128
    weight_bytes: int = 2
    kv_bytes: int = 2
    flops: float = 4 * 989e12
    mfu: float = 0.55
    bandwidth: float = 4 * 3.35e12  # bytes per second
    mbu: float = 0.75
    fixed_step_s: float = 6e-3
    per_request_s: float = 0.0
    parallel_s: float = 0.0
    kv_tokens: int | None = 448_000
    chunk_tokens: int = 8_192
    max_sequences: int = 256

    def __post_init__(self) -> None:
        may_be_zero = {"fixed_step_s", "per_request_s", "parallel_s"}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name == "name" or value is None:
                continue
            allows_zero = spec.name in may_be_zero
            if not math.isfinite(value) or value < 0 or (value == 0 and not allows_zero):
                raise SettingError(f"engine {spec.name} must be {'at least 0' if allows_zero else 'positive'}, got {value}")
        for share in ("mfu", "mbu"):
            if getattr(self, share) > 1:
                raise SettingError(f"engine {share} must be at most 1, got {getattr(self, share)}")


class StepCost:
    """The formulas of one `EngineSpec` with everything constant folded."""

    __slots__ = ("_overhead_s", "_pair_s", "_per_request_s", "_read_s", "_token_s", "_weights_s")

    def __init__(self, spec: EngineSpec) -> None:
        compute, memory = spec.flops * spec.mfu, spec.bandwidth * spec.mbu
        self._token_s = 2 * spec.params / compute
        self._pair_s = 4 * spec.layers * spec.heads * spec.head_dim / compute
        self._weights_s = spec.params * spec.weight_bytes / memory
        self._read_s = 2 * spec.layers * spec.kv_heads * spec.head_dim * spec.kv_bytes / memory
        self._overhead_s = spec.fixed_step_s + spec.parallel_s
        self._per_request_s = spec.per_request_s

    def step_s(self, *, requests: int, tokens: int, pairs: float, kv_tokens: int) -> float:
        """Seconds of one step. tokens: p + b; pairs: sum of p_i * (ctx_i + p_i / 2); kv_tokens: K."""
        compute_s = self._token_s * tokens + self._pair_s * pairs
        memory_s = self._weights_s + self._read_s * kv_tokens
        return self._overhead_s + requests * self._per_request_s + max(compute_s, memory_s)

    def decode_run_s(self, steps: int, *, requests: int, kv_tokens: int) -> float:
        """Seconds of `steps` steps in which `requests` decode and nothing else happens; K grows by `requests` a step."""
        memory_s = self._weights_s + self._read_s * kv_tokens
        compute_s = self._token_s * requests
        growth_s = self._read_s * requests
        # Compute is constant and memory grows, so compute bounds at most a leading part of the run.
        bound = min(steps, max(0, math.ceil((compute_s - memory_s) / growth_s)))
        rest = steps - bound
        read_s = rest * (memory_s + growth_s * (bound + (rest - 1) / 2))
        return steps * (self._overhead_s + requests * self._per_request_s) + bound * compute_s + read_s

    def prefill_alone_s(self, tokens: int, *, context: int = 0, chunk_tokens: int) -> float:
        """Seconds until the first token of a request that has the engine for itself: the sum over its chunks."""
        total_s, done = 0.0, context
        while done < context + tokens:
            chunk = min(chunk_tokens, context + tokens - done)
            total_s += self.step_s(requests=1, tokens=chunk, pairs=chunk * (done + chunk / 2), kv_tokens=done)
            done += chunk
        return total_s
