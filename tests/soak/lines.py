"""Questions and answers between the soak and its child processes: one JSON object a line, on stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

_LINE_BYTES = 256 * 2**20
_STOP_S = 20.0


class Child:
    """A process that printed its first line, and so is ready."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log
        self._asking = asyncio.Lock()
        self.ready: Any = None

    @classmethod
    async def start(cls, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> Child:
        """Start `python -m command`, and wait for its first line."""
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stream,
                limit=_LINE_BYTES,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )
        child = cls(process, log)
        child.ready = await child._line()
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, do: str, **fields: Any) -> Any:
        """Ask one thing and wait for the answer."""
        assert self._process.stdin is not None
        async with self._asking:
            self._process.stdin.write(orjson.dumps({"do": do, **fields}) + b"\n")
            await self._process.stdin.drain()
            return await self._line()

    async def stop(self, *, terminate: bool) -> int:
        """End its stdin or terminate it, and its exit status; killed when it does not go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if terminate and self._process.returncode is None:
            self._process.terminate()
        try:
            return await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()

    def log_tail(self) -> str:
        """The end of what it complained about."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    async def _line(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"process {self.pid} ended with status {await self._process.wait()}:\n{self.log_tail()}")
        return orjson.loads(line)


async def answer_lines(answer: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """The child's side: answer what comes on stdin until it ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        say(await answer(orjson.loads(line)))


def say(value: Any) -> None:
    """One line on stdout."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()
