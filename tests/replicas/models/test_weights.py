"""Reading safetensors: one file or shards, and every way a folder can fail to fit its configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from replicas.errors import ModelError
from replicas.models.weights import load_weights

SHAPES = {"a.weight": (2, 3), "b.weight": (4,)}


def tensors() -> dict[str, torch.Tensor]:
    return {"a.weight": torch.arange(6.0).view(2, 3), "b.weight": torch.arange(4.0)}


def test_one_file_is_read(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    loaded = load_weights(tmp_path, SHAPES, torch.float32)
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == {
        name: tensor.tolist() for name, tensor in tensors().items()
    }


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    for number, (name, tensor) in enumerate(tensors().items()):
        save_file({name: tensor}, tmp_path / f"part-{number}.safetensors")
    index = {"weight_map": {"a.weight": "part-0.safetensors", "b.weight": "part-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(load_weights(tmp_path, SHAPES, torch.float32)) == set(SHAPES)
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"part-1\.safetensors"):
        load_weights(tmp_path, SHAPES, torch.float32)


def test_an_index_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": "../x.safetensors"}}))
    with pytest.raises(ModelError, match=r"\.\./x\.safetensors"):
        load_weights(tmp_path, SHAPES, torch.float32)


def test_half_precision_on_disk_becomes_the_asked_type(tmp_path: Path) -> None:
    save_file({name: tensor.bfloat16() for name, tensor in tensors().items()}, tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in load_weights(tmp_path, SHAPES, torch.float32).values()} == {torch.float32}


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(2, 3), "c.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"missing b\.weight; unexpected c\.weight"):
        load_weights(tmp_path, SHAPES, torch.float32)


def test_a_long_list_of_missing_tensors_is_cut(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"missing x0, x1, x2, x3, x4 and 2 more"):
        load_weights(tmp_path, {**SHAPES, **{f"x{number}": (1,) for number in range(7)}}, torch.float32)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    save_file({**tensors(), "b.weight": torch.zeros(5)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"b\.weight is \[5\] and should be \[4\]"):
        load_weights(tmp_path, SHAPES, torch.float32)


def test_buffers_of_old_checkpoints_and_a_tied_head_are_passed_over(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8), "lm_head.weight": torch.zeros(4)}
    save_file({**tensors(), **extra}, tmp_path / "model.safetensors")
    assert set(load_weights(tmp_path, SHAPES, torch.float32)) == set(SHAPES)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"model\.safetensors can not be read"):
        load_weights(tmp_path, SHAPES, torch.float32)


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        load_weights(tmp_path, SHAPES, torch.float32)
