"""Compiled code is found again wherever it was made, and what is damaged is compiled again."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from numba.core import event

from radix.core.jit import entry, is_whole, mark_whole

pytestmark = pytest.mark.xdist_group("jit")
SOURCE = "def triple(value):\n    return value * 3\n"


def written(folder: Path, source: str = SOURCE) -> ModuleType:
    """The same module, of a checkout at another place."""
    folder.mkdir()
    (folder / "tripled.py").write_text(source)
    return imported(folder)


def imported(folder: Path) -> ModuleType:
    """A module that is written there."""
    spec = importlib.util.spec_from_file_location("tripled", folder / "tripled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(module: ModuleType, cache: Path) -> tuple[int, bool]:
    """(what it makes of 2, whether something was compiled for that)."""
    with event.install_recorder("numba:compile") as recorder:
        triple: Callable[[int], int] = entry(module.triple, "int64(int64)", cache, nogil=False)
    return triple(2), bool(recorder.buffer)


def test_another_checkout_finds_what_this_one_compiled(tmp_path: Path) -> None:
    """FC-57: a cache that says it is whole is loaded in a thread, which cannot be stopped while it compiles."""
    assert made(written(tmp_path / "a"), tmp_path / "cache") == (6, True)
    assert made(written(tmp_path / "b"), tmp_path / "cache") == (6, False)
    assert made(written(tmp_path / "c", SOURCE.replace("3", "5")), tmp_path / "cache") == (10, True)


def test_a_cache_that_nobody_may_write_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As baked into an image whose root is read-only."""
    cache = tmp_path / "cache"
    made(written(tmp_path / "a"), cache)
    mark_whole(cache)

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError("read-only")

    for name in ("mkdir", "touch", "write_bytes", "write_text"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr("radix.core.kept.tempfile.NamedTemporaryFile", refuse)
    assert made(imported(tmp_path / "a"), cache) == (6, False)
    mark_whole(cache)
    assert is_whole(cache)


@pytest.mark.parametrize("damage", ["cut off", "changed", "gone"])
def test_a_damaged_cache_is_not_whole_and_is_made_anew(tmp_path: Path, damage: str) -> None:
    cache, module = tmp_path / "cache", written(tmp_path / "a")
    made(module, cache)
    assert not is_whole(cache)
    mark_whole(cache)
    assert is_whole(cache)
    (file,) = cache.rglob("*.code")
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:-100] if damage == "cut off" else data[:-1] + bytes([data[-1] ^ 1]))
    assert not is_whole(cache)
    assert made(module, cache) == (6, True)
    assert is_whole(cache)
