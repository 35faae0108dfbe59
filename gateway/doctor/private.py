"""Examine the replicas of a configuration file by a gateway that serves nobody, and ends when it is done."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec

from events.endpoints import is_queue
from events.types import Freshness
from gateway.check import check_settings
from gateway.config import Listen, ReplicaSettings, Settings, load_settings
from gateway.doctor.row import Row, diagnosis_row
from gateway.errors import NoTokens
from gateway.serve import Gateway

_SETTLE_S = 8.0  # for health checks, and for the replays of large views
_LOOK_S = 0.05


async def examine(config: Path, *, probe: bool) -> Row:
    """One round over the replicas of a file; raises ConfigError."""
    settings = load_settings(config)
    check_settings(settings)
    gateway = Gateway(_private(settings))
    await gateway.start(serves=False)
    try:
        with contextlib.suppress(NoTokens, OSError):  # the doctor says that it is not there
            await gateway.tokenizer.load()
        await _settle(gateway)
        assert gateway.doctor is not None
        return diagnosis_row(await gateway.doctor.examine(probe=probe))
    finally:
        await gateway.stop()


def _private(settings: Settings) -> Settings:
    """On free ports of loopback, writing nothing; queues are left to the gateway that polls them."""
    return msgspec.structs.replace(
        settings,
        listen=Listen("127.0.0.1", 0, "127.0.0.1", 0),
        replicas=tuple(_unpolled(replica) for replica in settings.replicas),
        workers=1,
        record=None,
        request_log=None,
    )


def _unpolled(replica: ReplicaSettings) -> ReplicaSettings:
    events = None if replica.events is not None and is_queue(replica.events) else replica.events
    return msgspec.structs.replace(replica, poll_events=False, events=events)


async def _settle(gateway: Gateway) -> None:
    """Until every replica was looked at and its streams know where they stand, for a bounded time."""
    fleet, views = gateway.fleet, gateway.views
    for _ in range(int(_SETTLE_S / _LOOK_S)):
        looked_at = all(replica.healthy or replica.last_error for replica in fleet.replicas.values())
        holders = [holder for replica in fleet.replicas.values() if replica.healthy for holder in replica.holders]
        waiting = [
            holder
            for holder in holders
            if views.stream(holder) is not None and fleet.view.freshness[holder] in (Freshness.COLD, Freshness.GAP)
        ]
        if looked_at and not waiting:
            return
        await asyncio.sleep(_LOOK_S)
