"""What must not end is started again, and ends when it is told to."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from events.attempts import Attempts
from tests.fakes.publisher import until


class Runs:
    """What is run, and how often it began. crash: the next runs raise."""

    def __init__(self) -> None:
        self.begun = 0
        self.crash = False
        self.deaf = False
        self.waits_s: list[float] = []
        self.attempts = Attempts(self.run, self.waits_s.append, "test", backoff_s=0.01, max_backoff_s=0.04)

    async def run(self) -> None:
        self.begun += 1
        if self.crash:
            raise ValueError("crash")
        if not self.deaf:
            await asyncio.Event().wait()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def test_it_runs_once_however_often_it_is_started_and_can_begin_anew_or_again() -> None:
    runs = Runs()
    runs.attempts.anew()
    for _ in range(2):
        runs.attempts.start()
    await until(lambda: runs.begun == 1)
    runs.attempts.anew()
    await until(lambda: runs.begun == 2)
    await runs.attempts.stop()
    await runs.attempts.stop()
    runs.attempts.start()
    await until(lambda: runs.begun == 3)
    await runs.attempts.stop()
    assert runs.waits_s == []
    assert not any(task.get_name().startswith("test") for task in asyncio.all_tasks())


async def test_after_crashes_it_waits_longer_and_longer_up_to_a_limit() -> None:
    """FC-04."""
    runs = Runs()
    runs.crash = True
    runs.attempts.start()
    await until(lambda: len(runs.waits_s) == 5)
    runs.crash = False
    await until(lambda: runs.begun == 6)
    await runs.attempts.stop()
    for wait_s, backoff_s in zip(runs.waits_s, (0.01, 0.02, 0.04, 0.04, 0.04), strict=True):
        assert backoff_s * 0.5 <= wait_s <= backoff_s * 1.5


async def test_a_run_that_does_not_hear_that_it_was_cancelled_still_ends() -> None:
    runs = Runs()
    runs.deaf = True
    runs.attempts.start()
    await until(lambda: runs.begun == 1)
    async with asyncio.timeout(20):
        await runs.attempts.stop()
    assert runs.begun == 1
