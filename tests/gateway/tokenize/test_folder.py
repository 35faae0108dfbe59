"""Where models lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.tokenize.folder import cache_root, model_folder


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRUNKLINE_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    assert model_folder("smollm2") == tmp_path / "models" / "smollm2-135m-instruct"


def test_cache_root_is_in_the_users_cache_folder_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRUNKLINE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "trunkline"


def test_a_path_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model_folder("/models/missing") == Path("/models/missing")
    assert model_folder("~/models/x") == tmp_path / "models" / "x"
