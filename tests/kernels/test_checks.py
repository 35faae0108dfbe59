"""What the wrappers refuse, and what they do with nothing to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import checks
from kernels.decode import decode
from kernels.errors import KernelError, ShapeError
from kernels.prefill import prefill
from kernels.store_kv import store_kv
from tests.kernels.cases import Batch, Case, build

Change = Callable[[Tensor], Tensor]


@pytest.fixture
def batch() -> Batch:
    return build(Case("fp32", 64, 16, 2, 2, (7, 20), (1, 1)))


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [
        ("q", lambda t: t[:, :, :32], "q must fit the pool"),
        ("q", lambda t: t.half(), "q must fit the pool"),
        ("q", lambda t: t[:, :3], "multiple of kv_heads"),
        ("q", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "contiguous"),
        ("k_pool", lambda t: t[:-1], "equal shape"),
        ("k_pool", lambda t: t.double(), "bf16, fp16 or fp32"),
        ("k_pool", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "equal strides"),
        ("tables", lambda t: t.long(), "int32"),
        ("tables", lambda t: t[:1], "one row per sequence"),
        ("lengths", lambda t: t[:1], "lengths must be"),
        ("lengths", lambda t: t.long(), "lengths must be"),
    ],
)
def test_decode_refuses_what_does_not_fit(batch: Batch, name: str, change: Change, rule: str) -> None:
    tensors = {key: getattr(batch, key) for key in ("q", "k_pool", "v_pool", "tables", "lengths")}
    tensors[name] = change(tensors[name])
    with pytest.raises(ShapeError, match=rule) as refusal:
        decode(**tensors)
    assert str(list(tensors[name].shape)) in str(refusal.value)


@pytest.mark.parametrize("block_tokens", [8, 48])
def test_unknown_block_sizes_are_refused(block_tokens: int) -> None:
    pool = torch.zeros(2, block_tokens, 1, 64)
    with pytest.raises(ShapeError, match="block_tokens"):
        checks.check_pools(pool, pool)


@pytest.mark.parametrize("dim", [8, 68, 136])
def test_unknown_head_sizes_are_refused(dim: int) -> None:
    pool, tables = torch.zeros(2, 16, 1, dim), torch.zeros((1, 2), dtype=torch.int32)
    with pytest.raises(ShapeError, match="dim must be"):
        checks.check_attention(torch.zeros(1, 1, dim), pool, pool, tables)


@pytest.mark.parametrize("splits", [0, -1, 65])
def test_decode_refuses_impossible_splits(batch: Batch, splits: int) -> None:
    with pytest.raises(ShapeError, match=f"got {splits}"):
        decode(batch.q, batch.k_pool, batch.v_pool, batch.tables, batch.lengths, splits=splits)


def test_prefill_refuses_what_does_not_fit(batch: Batch) -> None:
    pools = (batch.k_pool, batch.v_pool, batch.tables)
    with pytest.raises(ShapeError, match="starts must be"):
        prefill(batch.q, *pools, batch.starts[:-1], batch.contexts)
    with pytest.raises(ShapeError, match="contexts must be"):
        prefill(batch.q, *pools, batch.starts, batch.contexts.long())
    with pytest.raises(ShapeError, match="without a sequence"):
        prefill(batch.q, *pools[:2], batch.tables[:0], batch.starts[:1], batch.contexts[:0])


def test_store_refuses_what_does_not_fit(batch: Batch) -> None:
    k, slots = torch.zeros(3, 2, 64), torch.zeros(3, dtype=torch.int64)
    pools = (batch.k_pool, batch.v_pool)
    for wrong, rule in ((k[:, :1], "k must be"), (k.half(), "k must be"), (k[:2], "as many tokens")):
        with pytest.raises(ShapeError, match=rule):
            store_kv(wrong, k, *pools, slots)
    for wrong_slots in (slots.int(), slots[:2], slots[:, None]):
        with pytest.raises(ShapeError, match="slots must be"):
            store_kv(k, k, *pools, wrong_slots)


def test_nothing_to_do_launches_nothing(batch: Batch) -> None:
    pools = (batch.k_pool, batch.v_pool)
    none, no_ids = torch.zeros(0, 4, 64), torch.zeros(0, dtype=torch.int32)
    out, lse = decode(none, *pools, batch.tables[:0], no_ids)
    assert (out.shape, lse.shape) == ((0, 4, 64), (0, 4))
    out, lse = prefill(none, *pools, batch.tables, torch.zeros(3, dtype=torch.int32), batch.contexts)
    assert (out.shape, lse.shape) == ((0, 4, 64), (0, 4))
    before = batch.k_pool.nan_to_num()
    store_kv(none[:, :2], none[:, :2], *pools, no_ids.long())
    assert torch.equal(batch.k_pool.nan_to_num(), before)


def test_all_tensors_must_be_on_one_device(batch: Batch) -> None:
    with pytest.raises(ShapeError, match="one device"):
        decode(batch.q.to("meta"), batch.k_pool, batch.v_pool, batch.tables, batch.lengths)


def test_a_cpu_is_refused_by_name_when_nothing_is_interpreted(batch: Batch) -> None:
    with pytest.raises(KernelError, match=r"got cpu: use kernels\.reference"):
        checks.check_place(False, q=batch.q)
