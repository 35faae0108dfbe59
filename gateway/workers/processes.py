"""The processes of a gateway: each is started, waited for, and started again when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from gateway.errors import ConfigError
from gateway.workers.child import Job, Ready

log = logging.getLogger(__name__)

_BACKOFF_S = 0.1  # doubled each time
_MOST_BACKOFF_S = 5.0  # an index process is back before workers drop the view of the last one
_STEADY_S = 30.0  # a process that ran this long starts its back-off anew
_WRONG_USE = 2


class Process:
    """One of them. ready: where it listens, None while it does not run. restarts: how often it was started again."""

    def __init__(self, name: str, job: Callable[[], Job], environment: dict[str, str]) -> None:
        """job: asked at each start, since replicas come and go."""
        self.name = name
        self.ready: Ready | None = None
        self.restarts = 0
        self._job = job
        self._environment = environment
        self._child: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waited_for = False
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"process {self.name}")

    async def first_ready(self) -> None:
        """Wait until it listens for the first time; raises ConfigError when it says that it can not."""
        self._waited_for = True
        await asyncio.shield(self._first)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal; nothing happens when none runs."""
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)

    async def stop(self, within_s: float) -> None:
        """Let it end, by force after a while; it is not started again."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=within_s)
        if not done:
            log.warning("process killed name=%s: not ended within_s=%g", self.name, within_s)
            self.signal(signal.SIGKILL)
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        backoff_s = _BACKOFF_S
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._once()
            if self._stopping.is_set():
                return
            if self._waited_for and not self._first.done() and status == _WRONG_USE:
                self._first.set_exception(ConfigError(f"{self.name} did not start; it says why above"))
                return
            if time.monotonic() - began > _STEADY_S:
                backoff_s = _BACKOFF_S
            log.warning("process ended name=%s status=%d again_in_s=%.1f", self.name, status, backoff_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff_s)
            backoff_s = min(backoff_s * 2, _MOST_BACKOFF_S)
            self.restarts += 1

    async def _once(self) -> int:
        """One life; returns its exit status. It has a session of its own, so that Ctrl-C reaches only us."""
        job = self._job()
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway.workers.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(job.door, *job.handles),
            start_new_session=True,
            env={**os.environ, **self._environment},
        )
        assert child.stdin is not None
        assert child.stdout is not None
        if self._stopping.is_set():
            self.signal(signal.SIGTERM)
        child.stdin.write(msgspec.json.encode(job) + b"\n")
        if line := await child.stdout.readline():
            self.ready = msgspec.json.decode(line, type=Ready)
            if not self._first.done():
                self._first.set_result(None)
            log.info("process up name=%s pid=%d control_port=%d", self.name, child.pid, self.ready.control_port)
        status = await child.wait()
        self.ready = None
        child.stdin.close()
        return status
