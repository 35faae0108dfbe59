"""What runs beside the requests may not end unseen."""

from __future__ import annotations

import asyncio
import logging
import signal

import pytest

from gateway.config import Listen, Settings
from gateway.fleet import Fleet
from gateway.serve import Gateway, OwnKnowledge
from gateway.views import Views


class Failing:
    """Knowledge that cannot be kept up."""

    def __init__(self, settings: Settings) -> None:
        self._own = OwnKnowledge(settings)
        self.index = self._own.index

    def views(self, fleet: Fleet) -> Views:
        """As they are."""
        return self._own.views(fleet)

    async def keep(self) -> None:
        """What nobody foresaw."""
        raise LookupError("nobody foresaw this")


@pytest.mark.parametrize("several", [False, True])
async def test_a_task_that_dies_is_told_and_ends_a_process_that_is_started_again(
    several: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FC-57: an index process whose work stopped answers its probes as before."""
    signals: list[signal.Signals] = []
    monkeypatch.setattr("gateway.serve.signal.raise_signal", signals.append)
    settings = Settings(listen=Listen("127.0.0.1", 0, "127.0.0.1", 0))
    gateway = Gateway(settings, Failing(settings))
    with caplog.at_level(logging.ERROR):
        await gateway.start(serves=not several)
        while "task died" not in caplog.text:
            await asyncio.sleep(0)
    await gateway.stop()
    assert "name=index" in caplog.text
    assert "nobody foresaw this" in caplog.text
    assert signals == ([signal.SIGTERM] if several else [])
