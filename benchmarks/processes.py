"""Start, pin and read the processes of a benchmark; all of them end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_MIB = 2**20


def pinned(command: Sequence[str], core: int) -> list[str]:
    """The command on one core, where there are several and `taskset` exists."""
    cores = os.cpu_count() or 1
    if cores < 2 or shutil.which("taskset") is None:
        return list(command)
    return ["taskset", "-c", str(core), *command]


class Started:
    """A process that printed its first line, and so is ready; use as a context manager."""

    def __init__(self, command: Sequence[str], core: int, *, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            pinned(command, core), stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline().strip()
        if not self.first_line:
            raise RuntimeError(f"{command[0]} ended at once with status {self._process.wait()}")

    def read_line(self) -> str:
        """The next line it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def build_mock_engine(folder: Path) -> Path:
    """Compile the mock engine if its source is newer; needs a C compiler."""
    source = Path(__file__).with_name("mock_engine.c")
    binary = folder / "mock_engine"
    if binary.exists() and binary.stat().st_mtime >= source.stat().st_mtime:
        return binary
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("error: the mock engine needs a C compiler (cc, gcc or clang)")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-O2", "-o", str(binary), str(source)], check=True)
    return binary


def cpu_s(pid: int) -> float:
    """CPU seconds a process and its children have used, all threads."""
    return sum(_own_cpu_s(member) for member in _family(pid))


def rss_mib(pid: int) -> float:
    """Resident memory of a process and its children."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(_read(f"/proc/{member}/statm").split()[1]) for member in _family(pid)) * page / _MIB


def _own_cpu_s(pid: int) -> float:
    fields = _read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        for task in Path(f"/proc/{member}/task").iterdir():
            members += map(int, _read(f"{task}/children").split())
    return members


def _read(path: str) -> str:
    return Path(path).read_text(encoding="ascii")
