"""Processes that end, hang, or cannot start."""

from __future__ import annotations

import signal
from unittest.mock import Mock

import pytest

from gateway.config import Listen, ReplicaSettings, Settings
from gateway.errors import ConfigError
from gateway.workers.child import Job, Ready
from gateway.workers.processes import Process
from gateway.workers.watchdog import Watchdog
from gateway.workers.wire import new_door


def stub(name: str, pid: int) -> Mock:
    """A process that is up."""
    process = Mock(spec=Process)
    process.name, process.pid, process.ready = name, pid, Ready(1, 2)
    return process


async def test_a_process_that_does_not_answer_three_times_is_killed() -> None:
    hung, well = stub("hung", 1), stub("well", 2)

    async def answers(process: Process) -> bool:
        return process is not hung

    watchdog = Watchdog([hung, well], answers)
    for _ in range(2):
        await watchdog.look()
    hung.signal.assert_not_called()
    await watchdog.look()
    hung.signal.assert_called_once_with(signal.SIGKILL)
    well.signal.assert_not_called()


async def test_an_answer_in_between_and_a_new_process_count_anew() -> None:
    process = stub("slow", 1)
    answering = iter([False, False, True, False, False])

    async def answers(_: Process) -> bool:
        return next(answering, False)

    watchdog = Watchdog([process], answers)
    for _ in range(5):
        await watchdog.look()
    process.pid = 2
    for _ in range(2):
        await watchdog.look()
    process.signal.assert_not_called()
    await watchdog.look()
    process.signal.assert_called_once_with(signal.SIGKILL)


async def test_one_that_does_not_run_is_not_asked() -> None:
    process = stub("down", 1)
    process.ready = None
    watchdog = Watchdog([process], Mock(side_effect=AssertionError))
    for _ in range(4):
        await watchdog.look()
    process.signal.assert_not_called()


async def test_a_worker_that_says_it_cannot_start_ends_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    """Wrong settings are told at once, not tried again and again."""
    inside, outside = new_door()
    settings = Settings(
        listen=Listen("127.0.0.1", 0, "127.0.0.1", 0),
        replicas=(ReplicaSettings(url="http://127.0.0.1:1"),),
        api_keys_file="/nowhere/keys",
    )
    process = Process("worker-0", lambda: Job("worker", "worker-0", settings, outside.fileno()), {})
    process.start()
    with pytest.raises(ConfigError, match="worker-0 did not start"):
        await process.first_ready()
    await process.stop(5)
    assert "/nowhere/keys" in capfd.readouterr().err
    assert process.restarts == 0
    inside.close()
    outside.close()
