"""Import the kernels under Triton's interpreter, without leaving its switch on for any other test or child process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def interpreting() -> Iterator[None]:
    """Functions decorated inside are interpreted: Triton looks at the variable at that moment only."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


def interpret_library() -> None:
    """Make `tl.max`, `tl.zeros` and the like interpreted too: another test may have imported triton (transformers does)."""
    import triton
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    for module in (tl, tl.standard, tl.math):
        for name, value in list(vars(module).items()):
            if isinstance(value, triton.JITFunction):
                setattr(module, name, InterpretedFunction(value.fn))


def import_interpreted(name: str) -> object:
    """Import a module whose kernels are to be interpreted."""
    with interpreting():
        return importlib.import_module(name)


if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]  # there are wheels for Linux only
elif "kernels.device" in sys.modules and not sys.modules["kernels.device"].INTERPRETED:
    raise RuntimeError("kernels.device was imported before tests/kernels/conftest.py: its kernels would need a GPU")
else:
    # Triton imports its gluon language at the first launch, and that module asserts what the switch says: settle it now.
    for _name in ("triton.experimental.gluon", "kernels.store_kv", "kernels.decode", "kernels.prefill"):
        import_interpreted(_name)
    interpret_library()


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every float tensor that `torch.empty` makes is full of NaN, so an element nobody writes shows."""
    empty = torch.empty

    def empty_of_nan(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*args, **kwargs)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", empty_of_nan)
