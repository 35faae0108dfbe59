"""Is somebody at an event port, and what is the newest batch that an engine can repeat."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import zmq.asyncio

from events.endpoints import BIND
from events.errors import ReplayError
from events.replay import ask_replay

_CONNECT_S = 2.0
_REPLAY_S = 3.0


@dataclass(frozen=True, slots=True)
class Newest:
    """seq: number of the newest batch, -1 for none at or behind the one asked from. error: why it is not known."""

    seq: int | None
    error: str | None = None


async def is_reached(endpoint: str) -> bool | None:
    """Whether a connection to a tcp endpoint comes about; None for one that engines connect to, or of another kind."""
    if endpoint.startswith(BIND) or not endpoint.startswith("tcp://"):
        return None
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def newest_batch(context: zmq.asyncio.Context, replay: str, at_least: int) -> Newest:
    """The newest batch the engine has, asked from `at_least` on, so that no more than that comes."""
    try:
        batches = await ask_replay(context, replay, max(0, at_least), timeout_s=_REPLAY_S)
        if batches or at_least <= 0:
            return Newest(batches[-1].seq if batches else -1)
        older = await ask_replay(context, replay, 0, timeout_s=_REPLAY_S)  # of the life it is in now
        return Newest(older[-1].seq if older else -1)
    except ReplayError as error:
        return Newest(None, str(error))
