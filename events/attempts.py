"""Keep something running that must not end: again after a crash, later each time, and anew at once when asked."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine

_STEADY_S = 60.0  # what ran this long starts its back-off anew


class Attempts:
    """Runs `run` from `start` to `stop`.

    crashed: called while the exception is being handled, with the seconds until the next attempt.
    """

    def __init__(
        self,
        run: Callable[[], Coroutine[None, None, None]],
        crashed: Callable[[float], None],
        name: str,
        *,
        backoff_s: float,
        max_backoff_s: float,
    ) -> None:
        self._run = run
        self._crashed = crashed
        self._name = name
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._task: asyncio.Task[None] | None = None
        self._attempt: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running event loop; nothing happens when it runs already."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._repeat(), name=self._name)

    def anew(self) -> None:
        """End the attempt that runs now; the next one begins at once."""
        if self._attempt is not None:
            self._attempt.cancel()

    async def stop(self) -> None:
        """End for good, until the next `start`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _repeat(self) -> None:
        this = asyncio.current_task()
        assert this is not None
        backoff_s = self._backoff_s
        while not this.cancelling():  # an attempt may take its cancellation for something else and end as if nothing were
            began = time.monotonic()
            self._attempt = asyncio.get_running_loop().create_task(self._run(), name=f"{self._name} attempt")
            try:
                await self._attempt
            except asyncio.CancelledError:
                if this.cancelling():
                    raise  # `stop`; otherwise it was `anew`
            except Exception:  # whatever it was, it has to come back (FC-04)
                if time.monotonic() - began > _STEADY_S:
                    backoff_s = self._backoff_s
                wait_s = backoff_s * random.uniform(0.5, 1.5)
                self._crashed(wait_s)
                await asyncio.sleep(wait_s)
                backoff_s = min(backoff_s * 2, self._max_backoff_s)
