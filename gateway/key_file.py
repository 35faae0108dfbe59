"""The keys file as it is now: read at start, and again when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from gateway.auth import Keys
from gateway.errors import ConfigError

log = logging.getLogger(__name__)

_LOOK_S = 1.0


class KeyFile:
    """Keeps the keys of a file. A new file that can not be read changes nothing: the old keys stay until it can."""

    def __init__(self, path: Path, changed: Callable[[Keys], None] = lambda keys: None) -> None:
        """Raises ConfigError for a file that can not be read."""
        self.changed = changed
        self._path = path
        self._seen = _mark(path)
        self.keys = Keys.load(path)

    async def keep(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if await asyncio.to_thread(_mark, self._path) != self._seen:
                self.look()

    def look(self) -> None:
        """Read it again."""
        self._seen = _mark(self._path)
        try:
            keys = Keys.load(self._path)
        except ConfigError as error:
            log.error("keys file not taken, the old keys stay error=%s", error)
            return
        self.keys = keys
        log.info("keys file read names=%d", len(keys.allowances()))
        self.changed(keys)


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Differs when the file was changed or exchanged; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
