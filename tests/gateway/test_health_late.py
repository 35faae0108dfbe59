"""Health checks that get no answer in time: whose fault that is, and what becomes of the view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web

from gateway.config import Health, ReplicaSettings
from gateway.health import HealthMonitor
from gateway.verdict import Failure
from tests.gateway.test_health import House

SOON = Health(interval_s=0.01, timeout_s=0.05, failures=3, successes=1)


class Late(House):
    """An engine whose health page hangs when told, and a monitor that is told of lag and progress."""

    def __init__(self, session: ClientSession) -> None:
        super().__init__(session)
        self.hang = False
        self.asked = 0
        self.late_s = 0.0
        self.moves = False
        self.pieces = 0
        self.engine._health = self._hanging  # type: ignore[method-assign]
        self.monitor = HealthMonitor(
            self.fleet,
            SOON,
            session,
            on_up=self._up,
            on_down=self._down,
            unheard=lambda replica: self.unheard,
            late_s=lambda since: self.late_s,
            progress=lambda replica: self._progress(),
        )

    async def _hanging(self, request: web.Request) -> web.Response:
        self.asked += 1
        while self.hang and request.transport is not None:  # until the client has given up
            await asyncio.sleep(0.005)
        return web.Response(status=self.engine.health)

    def _progress(self) -> int:
        self.pieces += self.moves
        return self.pieces


@pytest.fixture
async def late() -> AsyncIterator[Late]:
    async with ClientSession() as session:
        late = Late(session)
        await late.engine.start()
        url = f"http://127.0.0.1:{late.engine.port}"
        await late.watch()
        await late.until(lambda: late.replica.healthy)
        assert ReplicaSettings(url=url).url == url
        yield late
        late.hang = False
        await late.monitor.stop()
        await late.engine.stop()


async def asked_again(late: Late, times: int = 8) -> None:
    asked = late.asked
    await late.until(lambda: late.asked >= asked + times)


async def test_a_replica_that_only_hangs_is_left_but_keeps_its_view(late: Late, caplog: pytest.LogCaptureFixture) -> None:
    """FC-32: it goes down after several in a row, is logged once, and comes back as it was."""
    late.hang = True
    await late.until(lambda: not late.replica.healthy)
    await asked_again(late)
    assert (late.down, late.replica.down, late.fleet.view.eligible[0]) == (0, Failure.TIMEOUT.value, 0)
    assert caplog.text.count("replica down replica=r") == 1
    assert "view=kept" in caplog.text
    late.hang = False
    await late.until(lambda: late.replica.healthy)
    assert (late.down, late.replica.down) == (0, None)


async def test_a_check_that_our_own_loop_starved_does_not_count(late: Late) -> None:
    """FC-32: a process that is not given the processor sees every deadline pass."""
    late.hang, late.late_s = True, 0.04
    await asked_again(late)
    assert late.replica.healthy
    assert "stood still" in (late.replica.last_error or "")
    late.late_s = 0.0
    await late.until(lambda: not late.replica.healthy)


async def test_streams_that_go_on_count_as_life(late: Late) -> None:
    """FC-32: progress on open streams counts as life."""
    late.hang, late.moves = True, True
    await asked_again(late)
    assert late.replica.healthy
    late.moves = False
    await late.until(lambda: not late.replica.healthy)


async def test_a_view_kept_is_dropped_once_nobody_listens_any_more(late: Late) -> None:
    late.hang = True
    await late.until(lambda: not late.replica.healthy)
    assert late.down == 0
    await late.engine.stop()
    await late.until(lambda: late.down == 1)
    assert late.replica.down == Failure.REFUSED.value
    await asyncio.sleep(0.05)
    assert late.down == 1
    late.hang = False
    await late.engine.start()
    await late.until(lambda: late.replica.healthy)


async def test_a_view_kept_is_dropped_once_its_events_can_not_be_heard(late: Late) -> None:
    late.hang = True
    await late.until(lambda: not late.replica.healthy)
    assert late.down == 0
    late.unheard = True
    await late.until(lambda: late.down == 1)


async def test_an_engine_that_answers_with_errors_loses_its_view_as_before(late: Late) -> None:
    late.engine.health = 500
    await late.until(lambda: not late.replica.healthy)
    assert (late.down, late.replica.down) == (1, Failure.STATUS.value)
