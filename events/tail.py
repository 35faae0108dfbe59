"""Follow one event endpoint and report what comes; the view of nobody is changed by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import zmq.asyncio

from events.cursor import Cursor, Duplicate, Gap, Restart
from events.errors import ReplayError
from events.record import Recorder
from events.replay import Frames, ask_replay
from events.zmq_source import Broken, Link, ZmqSource

_REPLAY_TIMEOUT_S = 5.0
_SETTLE_S = 0.2  # from a connection to its subscription being in force


@dataclass(frozen=True, slots=True)
class Heard:
    """One batch; replayed: it came by replay."""

    frames: Frames
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """Something about the stream, in words."""

    text: str


class Tail:
    """Follows until cancelled or `count` batches came. topic: None takes all."""

    def __init__(
        self,
        endpoint: str,
        replay: str | None,
        tell: Callable[[Heard | Note], None],
        *,
        topic: str | None = None,
        recorder: Recorder | None = None,
        count: int | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._replay = replay
        self._tell = tell
        self._topic = topic
        self._recorder = recorder
        self._left = count
        self._cursor = Cursor()

    async def run(self) -> None:
        """Raises EndpointError when the endpoint cannot be one."""
        with zmq.asyncio.Context() as context:
            source = ZmqSource(context, self._endpoint, self._topic)
            try:
                while self._left is None or self._left > 0:
                    for arrival in await source.arrivals():
                        await self._arrived(context, arrival)
            finally:
                source.close()

    async def _arrived(self, context: zmq.asyncio.Context, arrival: Frames | Broken | Link) -> None:
        match arrival:
            case Link():
                up = arrival is Link.UP
                self._tell(Note("connected" if up else "disconnected"))
                if self._recorder is not None:
                    self._recorder.subscriber(up=up)
                if up and self._replay is not None:
                    await asyncio.sleep(_SETTLE_S)
                    await self._ask(context, self._cursor.expected or 0)
            case Broken():
                self._tell(Note(f"broken message, frames of {arrival.sizes} bytes"))
            case Frames():
                await self._live(context, arrival)

    async def _live(self, context: zmq.asyncio.Context, frames: Frames) -> None:
        if self._recorder is not None:
            self._recorder.event(frames)
        match self._cursor.step(frames.seq):
            case Duplicate():
                return
            case Gap() as gap:
                self._tell(Note(f"gap {gap.first}..{gap.last}"))
                if self._replay is not None:
                    await self._ask(context, gap.first)
                if self._cursor.expected == frames.seq + 1:
                    return  # the replay had it
                self._cursor.skip(frames.seq)
            case Restart():
                self._tell(Note("the engine restarted"))
                self._cursor.skip(frames.seq)
            case _:
                pass
        self._heard(Heard(frames))

    async def _ask(self, context: zmq.asyncio.Context, start: int) -> None:
        assert self._replay is not None
        try:
            batches = await ask_replay(context, self._replay, start, timeout_s=_REPLAY_TIMEOUT_S)
        except ReplayError as error:
            self._tell(Note(str(error)))
            return
        if self._recorder is not None:
            self._recorder.replay(start, batches)
        for frames in batches:
            judged = self._cursor.replayed(frames.seq)
            if isinstance(judged, Duplicate):
                continue
            if isinstance(judged, Gap):
                self._tell(Note(f"replay lacks {judged.first}..{judged.last}"))
                self._cursor.skip(frames.seq)
            self._heard(Heard(frames, replayed=True))

    def _heard(self, heard: Heard) -> None:
        if self._left is not None:
            if not self._left:
                return
            self._left -= 1
        self._tell(heard)
