"""Start, pin and read the processes of a benchmark; all of them end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
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
    """A process that printed its first line, and so is ready; use as a context manager. says: it prints one."""

    def __init__(self, command: Sequence[str], core: int, *, env: dict[str, str] | None = None, says: bool = True) -> None:
        self._process = subprocess.Popen(
            pinned(command, core),
            stdout=subprocess.PIPE if says else subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.first_line = ""
        if not says:
            return
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
    return sum(_own_cpu_s(member) for member in members(pid))


def rss_mib(pid: int, *, alone: bool = False) -> float:
    """Resident memory of a process and its children; alone: without these."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(_read(f"/proc/{member}/statm").split()[1]) for member in ([pid] if alone else members(pid))) * page / _MIB


def descriptors(pid: int) -> int:
    """Open files and sockets of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def busy_share(seconds: float) -> float:
    """Of all cores, over so many seconds: 0 for an idle machine, 1 for one without a free moment."""
    before = _machine_ticks()
    time.sleep(seconds)
    busy, total = (after - then for after, then in zip(_machine_ticks(), before, strict=True))
    return busy / total if total else 0.0


def _machine_ticks() -> tuple[int, int]:
    ticks = [int(word) for word in _read("/proc/stat").splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # without idle and waiting for disks


def _own_cpu_s(pid: int) -> float:
    fields = _read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def members(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for member in found:
        for task in Path(f"/proc/{member}/task").iterdir():
            found += map(int, _read(f"{task}/children").split())
    return found


def _read(path: str) -> str:
    return Path(path).read_text(encoding="ascii")
