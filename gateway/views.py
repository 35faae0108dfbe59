"""Which event stream feeds which holder: one supervised stream per rank of every replica that announces its blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import zmq.asyncio

from events.endpoints import BIND, rank_endpoint
from events.errors import EndpointError
from events.supervise import EventStream
from events.types import Freshness
from gateway.config import ReplicaSettings
from gateway.fleet import Fleet, Replica
from gateway.health import Facts
from radix.index import Index

log = logging.getLogger(__name__)

Source = tuple[str, str | None]  # events and replay endpoint


class Views:
    """Starts, suspects and stops the streams, and copies their freshness to where policies read it."""

    def __init__(self, fleet: Fleet, index: Index) -> None:
        self._fleet = fleet
        self._index = index
        self._streams: dict[int, EventStream] = {}
        self._sources: dict[int, Source | None] = {}
        self._context: zmq.asyncio.Context | None = None  # one I/O thread for all streams, started with the first

    def streams(self) -> Iterator[tuple[str, int, EventStream]]:
        """(replica, rank, stream) of all that are followed."""
        for holder, stream in self._streams.items():
            if (owner := self._fleet.by_holder.get(holder)) is not None:
                yield owner[0].name, owner[1], stream

    def stream(self, holder: int) -> EventStream | None:
        """The stream that feeds a holder; None where nothing is announced."""
        return self._streams.get(holder)

    async def follow(self, replica: Replica, settings: ReplicaSettings, facts: Facts) -> None:
        """Listen to each rank where it announces its blocks now; a stream whose place did not change goes on as it is."""
        await self._learn_ranks(replica, settings, facts)
        for rank, holder in enumerate(replica.holders):
            try:
                source = _source(replica, settings, facts, rank)
            except EndpointError as error:
                log.warning("not following replica=%s rank=%d error=%s", replica.name, rank, error)
                source = None
            if self._sources.get(holder) == source:
                continue
            if holder in self._streams:  # another process answers there now, or the same one without its old sockets
                await self._streams.pop(holder).stop()
                self._index.clear(holder)
            self._sources[holder] = source
            if source is None:
                self._fleet.view.freshness[holder] = Freshness.COLD
                continue
            self._index.set_counting(holder, not facts.repeats_stores)
            self._start(holder, source, settings.topic or facts.topic)
            log.info("following replica=%s rank=%d events=%s replay=%s", replica.name, rank, *source)

    def unheard(self, replica: Replica) -> bool:
        """A stream of its events has no connection now."""
        return any(not stream.connected for holder in replica.holders if (stream := self._streams.get(holder)) is not None)

    def _start(self, holder: int, source: Source, topic: str) -> None:
        if self._context is None:
            self._context = zmq.asyncio.Context()
        events, replay = source
        stream = EventStream(self._index, holder, events, replay, topic=topic, on_change=self._changed, context=self._context)
        self._streams[holder] = stream
        stream.start()

    async def _learn_ranks(self, replica: Replica, settings: ReplicaSettings, facts: Facts) -> None:
        """A replica that tells where each rank's events are has that many; unless it was configured to have several."""
        if not facts.event_sources or settings.ranks > 1:
            return
        ranks = max(facts.event_sources) + 1
        for holder in replica.holders[ranks:]:
            self._sources.pop(holder, None)
            if (stream := self._streams.pop(holder, None)) is not None:
                await stream.stop()
            self._index.clear(holder)
        self._fleet.set_ranks(replica, ranks)

    def suspect(self, replica: Replica) -> None:
        """The process behind it is gone: what it held is gone too."""
        for holder in replica.holders:
            if (stream := self._streams.get(holder)) is not None:
                stream.suspect()
            else:
                self._index.clear(holder)

    def answered(self, holder: int, uncached_tokens: int) -> None:
        """A request was answered whose prompt should have stored new blocks: silence now means something (FC-05)."""
        if (stream := self._streams.get(holder)) is not None and uncached_tokens:
            stream.note_answered(uncached_tokens)

    async def unfollow(self, replica: Replica) -> None:
        """Stop listening to one replica."""
        for holder in replica.holders:
            self._sources.pop(holder, None)
            if (stream := self._streams.pop(holder, None)) is not None:
                await stream.stop()

    async def stop(self) -> None:
        """Stop all streams."""
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            await stream.stop()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _changed(self, holder: int) -> None:
        stream = self._streams.get(holder)
        owner = self._fleet.by_holder.get(holder)
        if stream is not None and owner is not None:
            self._fleet.view.freshness[holder] = stream.freshness
            self._fleet.refresh(owner[0])


def _source(replica: Replica, settings: ReplicaSettings, facts: Facts, rank: int) -> Source | None:
    """Where one rank announces: as configured, with port + rank; else where the replica says. None where there are no events.

    A configured wildcard, as an engine's own flag has it, means the host we reach the replica at. Of what a replica says only
    the port counts: what it calls itself may mean nothing here, and it must not send us elsewhere. Raises EndpointError.
    """
    host = f"[{replica.address.host}]" if ":" in replica.address.host else replica.address.host
    if settings.events is not None:
        events, replay = rank_endpoint(settings.events, rank), settings.replay and rank_endpoint(settings.replay, rank)
        return _without_wildcard(events, host), _without_wildcard(replay, host) if replay else None
    if rank not in facts.event_sources:
        return None
    events, replay = facts.event_sources[rank]
    return _at_host(events, host), _at_host(replay, host) if replay else None


def _without_wildcard(endpoint: str, host: str) -> str:
    if endpoint.startswith(BIND):
        return endpoint  # it is ours
    for wildcard in ("*", "0.0.0.0", "[::]"):
        endpoint = endpoint.replace(f"tcp://{wildcard}:", f"tcp://{host}:", 1)
    return endpoint


def _at_host(endpoint: str, host: str) -> str:
    scheme, _, rest = endpoint.partition("://")
    if scheme != "tcp":
        raise EndpointError(f"a replica's events must be at tcp://, got {endpoint!r:.80}")
    return rank_endpoint(f"tcp://{host}:{rest.rpartition(':')[2]}", 0)
