"""The files that a gateway writes requests to: a recording, a log, both or none."""

from __future__ import annotations

import asyncio

from gateway.config import Settings
from gateway.record import Recorder
from gateway.request_log import RequestLog
from gateway.witness import Witnesses


class Written:
    """Opened when the gateway starts to serve, closed when the last request ended."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.request_log: RequestLog | None = None

    def open(self, settings: Settings) -> Witnesses:
        """What is to be told of every request; raises ConfigError."""
        if settings.record is not None:
            self.recorder = Recorder(settings.record)
        if settings.request_log is not None:
            self.request_log = RequestLog(settings.request_log)
        return Witnesses([one for one in (self.recorder, self.request_log) if one is not None])

    async def close(self) -> None:
        """Write what waits, and close."""
        for one in (self.recorder, self.request_log):
            if one is not None:
                await asyncio.to_thread(one.spool.close)
