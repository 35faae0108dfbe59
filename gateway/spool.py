"""Lines to a file, written by a thread of their own: the loop only puts down what is to be written.

What waits is bounded; beyond it lines are dropped and counted, requests never wait. Whole lines are written at once to a file
opened for appending, so several processes can share one. Lines are made in the thread too, which gives the GIL back between them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from gateway.errors import ConfigError

log = logging.getLogger(__name__)

_MOST_WAITING = 10_000
_MOST_BYTES = 64 << 20
_LINES_AT_ONCE = 64
_END_S = 5.0  # as long as the end may take; a disk that hangs must not keep the process

MakeLine = Callable[[], bytes | None]


class Spool:
    """A queue and its thread. written, dropped, failed: lines so far; full: the file reached its bound."""

    def __init__(self, name: str, handle: int, *, most_bytes: int | None = None) -> None:
        """handle: of the open file, closed at the end unless it is a standard one. most_bytes: of the file; None for any."""
        self.written = self.dropped = self.failed = 0
        self.full = False
        self._name = name
        self._handle = handle
        self._most_bytes = most_bytes
        self._queue: SimpleQueue[tuple[MakeLine | None, int]] = SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"spool {name}", daemon=True)
        self._thread.start()

    def put(self, make: MakeLine, size: int = 0, *, always: bool = False) -> bool:
        """Have a line made and written; False when it was dropped. size: bytes that wait with it. always: never dropped.

        `make` runs in the thread, in the order of the calls, and may return None for no line.
        """
        if not always and (self._queue.qsize() >= _MOST_WAITING or self._waiting_bytes + size > _MOST_BYTES):
            self.dropped += 1
            return False
        with self._lock:
            self._waiting_bytes += size
        self._queue.put((make, size))
        return True

    def close(self) -> None:
        """Write what waits, for a bounded time, and end. Blocks."""
        self._queue.put((None, 0))
        self._thread.join(_END_S)
        if self._thread.is_alive():
            log.error("lines lost file=%s: not written within_s=%g", self._name, _END_S)

    def _run(self) -> None:
        ended = False
        while not ended:
            lines: list[bytes] = []
            size, ended = self._take(lines)
            try:
                if lines:
                    self._write(lines)
            except OSError as error:  # a full disk may have room again
                self._fail(len(lines), error)
            with self._lock:
                self._waiting_bytes -= size
        if self._handle > 2:
            os.close(self._handle)

    def _take(self, lines: list[bytes]) -> tuple[int, bool]:
        """Make the lines that wait, as many as are written at once; (bytes that waited with them, whether this is the end)."""
        size = 0
        make, own = self._queue.get()
        while make is not None:
            size += own
            try:
                line = make()
                if line is not None:
                    lines.append(line)
            except Exception as error:  # whatever one line meets, the next ones are written
                self._fail(1, error)
            time.sleep(0)  # gives the GIL to the loop, which may be waiting for it
            if len(lines) == _LINES_AT_ONCE or self._queue.empty():
                return size, False
            make, own = self._queue.get()
        return size, True

    def _fail(self, lines: int, error: Exception) -> None:
        if not self.failed:
            log.error("lines not written file=%s error=%s", self._name, type(error).__name__)
        self.failed += lines

    def _write(self, lines: list[bytes]) -> None:
        """All of them with one call, so that other processes' lines stand in front or behind; what does not fit is dropped."""
        fit = len(lines)
        if self._most_bytes is not None:
            room = self._most_bytes - os.fstat(self._handle).st_size
            while fit and sum(map(len, lines[:fit])) > room:
                fit -= 1
        if fit < len(lines):
            self.dropped += len(lines) - fit
            if not self.full:
                self.full = True
                log.warning("file full name=%s bytes=%d: nothing more is written", self._name, self._most_bytes)
        rest = memoryview(b"".join(lines[:fit]))
        while rest:  # one call takes it all, but for full disks and pipes
            rest = rest[os.write(self._handle, rest) :]
        self.written += fit


def open_append(path: str, setting: str) -> int:
    """A handle for appending, readable by its owner only; raises ConfigError naming the setting."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot write {path!r}: {error.strerror}") from error


def keep_older(path: str) -> None:
    """Rename a file that has something in it to the first free of `path.1`, `path.2`, ...; raises ConfigError."""
    old = Path(path)
    if not old.is_file() or not old.stat().st_size:
        return
    number = 1
    while (kept := Path(f"{path}.{number}")).exists():
        number += 1
    try:
        old.rename(kept)
    except OSError as error:
        raise ConfigError(f"cannot rename {path!r} to {kept.name!r}: {error.strerror}") from error
    log.info("older file kept name=%s", kept)
