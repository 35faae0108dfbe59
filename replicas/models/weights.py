"""Read the tensors of a Hugging Face folder, one safetensors file or several with an index, and check them against the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from replicas.errors import ModelError

Shapes = Mapping[str, tuple[int, ...]]

_NAMES_SHOWN = 5


class _Index(msgspec.Struct):
    weight_map: dict[str, str]  # tensor -> file beside the index


def load_weights(folder: Path, shapes: Shapes, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors named in `shapes`, memory-mapped where the file has this `dtype`; ModelError names what is missing or wrong."""
    found: dict[str, Tensor] = {}
    unexpected: list[str] = []
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping: it has no iterator)
                    if name in shapes:
                        found[name] = file.get_tensor(name).to(dtype)
                    elif not _is_known_extra(name):
                        unexpected.append(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} can not be read: {error}") from error
    missing = [name for name in shapes if name not in found]
    if missing or unexpected:
        raise ModelError(f"tensors in {folder} do not fit config.json: missing {_some(missing)}; unexpected {_some(unexpected)}")
    wrong = [
        f"{name} is {list(found[name].shape)} and should be {list(shape)}"
        for name, shape in shapes.items()
        if found[name].shape != shape
    ]
    if wrong:
        raise ModelError(f"tensors in {folder} do not fit config.json: {_some(wrong)}")
    return found


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file() or not index.is_file():
        if not single.is_file():
            raise ModelError(
                f"{folder} has neither model.safetensors nor model.safetensors.index.json; other formats are not read"
            )
        return [single]
    try:
        names = sorted(set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()))
    except msgspec.DecodeError as error:
        raise ModelError(f"{index}: {error}") from error
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"{index} names the file {name!r}, which is not in the same folder")
    return [folder / name for name in names]


def _is_known_extra(name: str) -> bool:
    # Old checkpoints carry the rotary frequencies, and some tied ones a copy of the embedding; transformers ignores both.
    return name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMES_SHOWN} more" if len(listed) > _NAMES_SHOWN else ""
    return (", ".join(listed[:_NAMES_SHOWN]) or "none") + more
