"""Child processes that are waited for until they are ready, keep their logs, and never outlive us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_STOP_S = 15.0


class ProcessError(Exception):
    """A child did not come up or ended early; the text has the end of its log."""


class Process:
    """One child: started at once, its output in `log`. Its own session, so that Ctrl-C reaches only us, who then stop it."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.ready_line = ""
        self._log_file = log.open("wb")
        self._child = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def wait_ready(self, timeout_s: float) -> str:
        """The first line on the child's stdout; raises ProcessError when it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not self._ready.wait(0.1):
            if self._child.poll() is not None and not self._ready.wait(0.5):
                raise ProcessError(f"{self.name} ended with status {self._child.returncode}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} was not ready within {timeout_s:.0f} s:\n{self._tail()}")
        return self.ready_line

    def kill(self) -> None:
        """End it without any chance to clean up, as a crash would."""
        self._child.kill()
        self._child.wait()

    def wait(self, timeout_s: float) -> int:
        """The exit status once it ends by itself; raises subprocess.TimeoutExpired."""
        return self._child.wait(timeout_s)

    def stop(self) -> int:
        """SIGTERM, then SIGKILL for what does not go; returns the exit status."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._child.pid, signal.SIGKILL)
                self._child.wait()
        self._reader.join(1.0)
        if self._child.stdout:
            self._child.stdout.close()
        self._log_file.close()
        return self._child.returncode

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if not self._ready.is_set():
                self.ready_line = line.decode().strip()
                self._ready.set()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def trunkline(*args: str) -> list[str]:
    """The command line of our own command, in this very Python environment."""
    return [sys.executable, "-m", "gateway.cli", *args]


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
