"""Break the kernels on purpose, one line at a time, and see that the checks of this folder notice.

Each mutant is a copy of the package under another name with one text replaced; a text that is no longer there fails the test.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor

import kernels
from tests.kernels.cases import Case, check_decode, check_prefill, check_store
from tests.kernels.conftest import import_interpreted
from tests.kernels.test_far_offsets import check_far, pools  # noqa: F401 (a fixture)

NUMBERS = itertools.count()
DECODE = Case("fp32", 64, 16, 2, 3, (69, 0, 32), (1, 1, 1), columns=32, splits=2)
PREFILL = Case("fp32", 64, 16, 2, 3, (40, 0), (20, 33), rows=32, columns=16)


@dataclass(frozen=True)
class Mutant:
    """A file of the package, a text in it, and the wrong text."""

    file: str
    right: str
    wrong: str


def breaks(name: str, file: str, right: str, wrong: str) -> object:
    return pytest.param(Mutant(file, right, wrong), id=name)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Mutant | None, str, str], Callable[..., object]]]:
    """Imports one function of a mutated package."""
    package = f"mutant_{next(NUMBERS)}"

    def load(mutant: Mutant | None, module: str, function: str) -> Callable[..., object]:
        folder = tmp_path / package
        if not folder.exists():
            shutil.copytree(Path(kernels.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
            if mutant is not None:
                text = (folder / mutant.file).read_text()
                assert text.count(mutant.right) == 1
                (folder / mutant.file).write_text(text.replace(mutant.right, mutant.wrong))
            for file in folder.glob("*.py"):
                file.write_text(file.read_text().replace("from kernels", f"from {package}"))
        return getattr(import_interpreted(f"{package}.{module}"), function)  # type: ignore[no-any-return]

    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a broken kernel may well divide by zero
        yield load
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]


Load = Callable[[Mutant | None, str, str], Callable[..., tuple[Tensor, Tensor]]]


def test_an_unbroken_copy_passes(load: Load) -> None:
    """Otherwise the tests below would pass for a reason of their own."""
    check_store(load(None, "store_kv", "store_kv"), "fp32", 2, 64, 16, 20)
    check_decode(load(None, "decode", "decode"), DECODE)
    check_prefill(load(None, "prefill", "prefill"), PREFILL)


@pytest.mark.parametrize(
    "mutant",
    [
        breaks("scale", "decode.py", "(dim**-0.5 if scale is None else scale) * LOG2_E", "dim**-0.5"),
        breaks("split edge", "decode.py", "end = tl.minimum(first + split_tokens, length)", "end = length"),
        breaks("split start", "decode.py", "first = split * split_tokens", "first = split * COLUMNS"),
        breaks("length mask", "decode.py", "valid = positions < end", "valid = positions <= end"),
        breaks("head of a group", "decode.py", "head = kv_head * GROUP + row\n", "head = kv_head + row\n"),
        breaks("merge weights", "decode.py", "weights = tl.exp2(part_lse - shift)", "weights = tl.exp2(shift - part_lse)"),
        breaks("merge of splits", "decode.py", "part = row * splits + split\n", "part = row * splits + split // splits\n"),
        breaks("softmax decay", "device.py", "total * decay + ", "total + "),
        breaks("accumulator decay", "device.py", "acc * decay[:, None])", "acc)"),
        breaks("slot stride", "device.py", "slots * slot_stride", "slots * block_stride // BLOCK_TOKENS // 2"),
        breaks("block of a position", "device.py", "positions // BLOCK_TOKENS,", "positions // (2 * BLOCK_TOKENS),"),
        breaks("empty rows", "device.py", "tl.where(seen, total, 1.0)", "total"),
    ],
)
def test_a_broken_decode_is_caught(load: Load, mutant: Mutant) -> None:
    decode = load(mutant, "decode", "decode")
    with pytest.raises(AssertionError):
        check_decode(decode, DECODE)


@pytest.mark.parametrize(
    "mutant",
    [
        breaks("mask too tight", "prefill.py", "<= position[:, None]", "< position[:, None]"),
        breaks("mask too wide", "prefill.py", "<= position[:, None]", "<= position[:, None] + 1"),
        breaks("unmasked loop too long", "prefill.py", "(context + first_token + 1) // COLUMNS", "(end) // COLUMNS"),
        breaks("context forgotten", "prefill.py", "position = context + token", "position = token"),
        breaks("tile of a sequence", "prefill.py", "- (start // TOKENS + seq)", "- (start // TOKENS)"),
        breaks("search", "prefill.py", "// TOKENS + middle <= tile", "// TOKENS + middle < tile"),
        breaks("rows of a token", "prefill.py", "token = first_token + row // GROUP", "token = first_token + row // (GROUP + 1)"),
        breaks("last tile", "prefill.py", "tokens // tile_tokens + sequences", "tokens // tile_tokens"),
        breaks("scale", "prefill.py", "(dim**-0.5 if scale is None else scale) * LOG2_E", "dim**-0.5"),
    ],
)
@pytest.mark.usefixtures("poisoned")
def test_a_broken_prefill_is_caught(load: Load, mutant: Mutant) -> None:
    prefill = load(mutant, "prefill", "prefill")
    with pytest.raises(AssertionError):
        check_prefill(prefill, PREFILL)


@pytest.mark.parametrize(
    "mutant",
    [
        breaks("skipped slot", "store_kv.py", "(slots >= 0)[:, None]", "(slots >= -1)[:, None]"),
        breaks("head stride", "store_kv.py", "head.to(tl.int64) * head_stride + dim", "head.to(tl.int64) * head_stride"),
        breaks("values from keys", "store_kv.py", "tl.load(v_ptr", "tl.load(k_ptr"),
        breaks("last program", "store_kv.py", "triton.cdiv(tokens, rows)", "max(tokens // rows, 1)"),
    ],
)
def test_a_broken_store_is_caught(load: Load, mutant: Mutant) -> None:
    store_kv = load(mutant, "store_kv", "store_kv")
    with pytest.raises(AssertionError):
        check_store(store_kv, "fp32", 2, 64, 16, 40)


@pytest.mark.parametrize(
    "mutant",
    [
        breaks("read", "device.py", "other=0).to(tl.int64)", "other=0)"),
        breaks("write", "store_kv.py", "other=-1)  # int64", "other=-1).to(tl.int32)  # int32"),
    ],
)
def test_offsets_of_32_bits_are_caught(load: Load, mutant: Mutant, pools: tuple[Tensor, Tensor]) -> None:  # noqa: F811
    """FC-64: the test of far blocks sees an offset that wraps."""
    functions = [load(mutant, name, name) for name in ("store_kv", "decode", "prefill")]
    with pytest.raises(AssertionError):
        check_far(*functions, pools)
