"""The relay's process: a stream for each rank it follows, and an outlet into Redis for each.

Between them lies a `Tap`: to the stream it is an index, to the outlet a queue of changes and, when asked, the whole view.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import zmq.asyncio
from redis.exceptions import RedisError

from events.endpoints import is_queue, queue_url, rank_endpoint
from events.http_queue import EventQueue
from events.poll_source import PollSource
from events.relay.outlet import Outlet, Pace
from events.relay.store import Place, RankStore, connect
from events.relay.tap import Tap, Taps
from events.relay.target import Target
from events.stream import Stream
from events.supervise import EventStream
from events.times import StreamTimes

log = logging.getLogger(__name__)

_CLOSE_S = 3.0


@dataclass(frozen=True, slots=True)
class Line:
    """One rank: what comes in, what goes out."""

    tap: Tap
    stream: Stream
    outlet: Outlet


class Relay:
    """Follows every rank of its targets and writes what they say, while `run` runs. name: told to relays that are kept out."""

    def __init__(
        self,
        targets: Sequence[Target],
        place: Place,
        *,
        pace: Pace | None = None,
        name: str | None = None,
        times: StreamTimes | None = None,
        max_blocks: int = 8_000_000,
    ) -> None:
        self.lines: list[Line] = []
        self._targets = targets
        self._place = place
        self._pace = pace or Pace()
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._token = os.urandom(16).hex()  # of this process's life; never the same again, whatever Redis forgets
        self._times = times
        self._max_blocks = max_blocks
        self._ending = asyncio.Event()

    @property
    def ranks(self) -> int:
        """How many streams it is to write."""
        return sum(target.ranks for target in self._targets)

    @property
    def writing(self) -> bool:
        """Every rank's stream is ours and was begun."""
        return bool(self.lines) and all(line.outlet.writing for line in self.lines)

    def end(self) -> None:
        """Let `run` send what is pending, give up the leases and return."""
        self._ending.set()

    async def run(self) -> None:
        """Relay until `end`; raises Fenced when another relay writes one of the streams."""
        client = connect(self._place, connections=2 * self.ranks + 2)
        context: zmq.asyncio.Context = zmq.asyncio.Context()
        try:
            async with aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
                taps = [self._tap(target, rank) for target in self._targets for rank in range(target.ranks)]
                streams = self._streams(Taps(taps), context, session)
                for tap, stream in zip(taps, streams, strict=True):
                    store = RankStore(client, self._place.prefix, tap.replica, tap.rank)
                    self.lines.append(Line(tap, stream, Outlet(tap, store, self._token, self._name, self._pace)))
                await self._relay()
        finally:
            context.destroy(linger=0)
            await client.aclose()

    def _tap(self, target: Target, rank: int) -> Tap:
        return Tap(
            target.name,
            rank,
            counting=not target.repeats_stores,
            full_at=self._pace.entry_batches,
            max_blocks=self._max_blocks,
        )

    def _streams(self, taps: Taps, context: zmq.asyncio.Context, session: aiohttp.ClientSession) -> list[Stream]:
        streams: list[Stream] = []
        for target in self._targets:
            poller: PollSource | None = None
            if is_queue(target.events):
                queue = EventQueue(session, queue_url(target.events))
                poller = PollSource(taps, queue, block_tokens=target.block_tokens, on_change=self._changed)
            for rank in range(target.ranks):
                holder = len(streams)
                if poller is not None:
                    streams.append(poller.stream(rank, holder))
                    continue
                streams.append(
                    EventStream(
                        taps,
                        holder,
                        rank_endpoint(target.events, rank),
                        rank_endpoint(target.replay, rank) if target.replay else None,
                        topic=target.topic,
                        on_change=self._changed,
                        times=self._times,
                        context=context,
                    )
                )
        return streams

    def _changed(self, holder: int) -> None:
        line = self.lines[holder]
        line.tap.tell(line.stream.freshness)

    async def _relay(self) -> None:
        loop = asyncio.get_running_loop()
        for line in self.lines:
            line.stream.start()
        writers = [loop.create_task(line.outlet.run(), name=f"outlet {line.tap.replica}/{line.tap.rank}") for line in self.lines]
        ending = loop.create_task(self._ending.wait(), name="relay ending")
        try:
            done, _ = await asyncio.wait([ending, *writers], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # an outlet ends by itself only when it is fenced off
        finally:
            ending.cancel()
            for line in self.lines:
                await line.stream.stop()
                line.outlet.close()
            _, late = await asyncio.wait(writers, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
            ended = await asyncio.gather(*writers, return_exceptions=True)
            for error in ended:
                if isinstance(error, RedisError | OSError):
                    log.warning("relay could not say goodbye error=%r", error)
