"""Which event stream feeds which holder: one supervised stream per rank of every replica that announces its blocks.

Streams are subscribed to; a replica that only has a queue is polled, once for all its ranks. Where relays write to Redis their
streams are read instead, and an engine is listened to while none does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import aiohttp
import zmq.asyncio

from events.endpoints import BIND, QUEUE_PATH, is_queue, queue_url, rank_endpoint
from events.errors import EndpointError
from events.http_queue import EventQueue
from events.poll_source import PollSource
from events.redis_source import RedisStream
from events.relay.store import Place
from events.stream import Stream
from events.supervise import EventStream
from events.types import Freshness
from gateway.config import ReplicaSettings
from gateway.fleet import Fleet, Replica
from gateway.health import Facts
from radix.index import Index

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where one rank publishes."""

    events: str
    replay: str | None


@dataclass(frozen=True, slots=True)
class Queue:
    """Where a replica is polled. block_tokens: learned at some time; the views built before stay."""

    url: str
    block_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Relayed:
    """What a relay writes of one rank. direct: where the rank itself publishes, which may change without a new stream."""

    direct: Sockets | None = field(default=None, compare=False)


Source = Sockets | Queue | Relayed


class Views:
    """Starts, suspects and stops the streams, and copies their freshness to where policies read it."""

    def __init__(self, fleet: Fleet, index: Index, place: Place | None = None) -> None:
        """place: where relays write, None without them."""
        self._place = place
        self._fleet = fleet
        self._index = index
        self._streams: dict[int, Stream] = {}
        self._sources: dict[int, Source | None] = {}
        self._context: zmq.asyncio.Context | None = None  # one I/O thread for all streams, started with the first
        self._session: aiohttp.ClientSession | None = None  # of all queues, opened for the first
        self._pollers: dict[str, tuple[str, PollSource]] = {}  # replica -> what is asked, and who asks
        self._fallbacks: dict[int, Callable[[], Stream] | None] = {}  # of relayed holders, as they were told of last

    def streams(self) -> Iterator[tuple[str, int, Stream]]:
        """(replica, rank, stream) of all that are followed."""
        for holder, stream in self._streams.items():
            if (owner := self._fleet.by_holder.get(holder)) is not None:
                yield owner[0].name, owner[1], stream

    def stream(self, holder: int) -> Stream | None:
        """The stream that feeds a holder; None where nothing is announced."""
        return self._streams.get(holder)

    async def follow(self, replica: Replica, settings: ReplicaSettings, facts: Facts) -> None:
        """Listen to each rank where it announces its blocks now; a stream whose place did not change goes on as it is."""
        await self._learn_ranks(replica, settings, facts)
        for rank, holder in enumerate(replica.holders):
            try:
                source = self._source(replica, settings, facts, rank)
            except EndpointError as error:
                log.warning("not following replica=%s rank=%d error=%s", replica.name, rank, error)
                source = None
            if isinstance(source, Relayed):
                self._fallbacks[holder] = self._fallback(holder, source.direct, settings, facts)
            if self._sources.get(holder) == source:
                continue
            if holder in self._streams:  # another process answers there now, or the same one without its old sockets
                await self._streams.pop(holder).stop()
                self._index.clear(holder)
            self._sources[holder] = source
            if source is None:
                self._fleet.view.freshness[holder] = Freshness.COLD
                continue
            if not isinstance(source, Relayed):  # a relay's snapshots say it
                self._index.set_counting(holder, isinstance(source, Sockets) and not facts.repeats_stores)
            if isinstance(source, Relayed):
                stream = self._relayed(holder, source)
                log.info("following replica=%s rank=%d redis=%s", replica.name, rank, self._place and self._place.shown())
            elif isinstance(source, Queue):
                stream = self._polled(replica, rank, source)
                log.info("following replica=%s rank=%d queue=%s", replica.name, rank, source.url)
            else:
                stream = self._subscribed(holder, source, settings.topic or facts.topic)
                log.info("following replica=%s rank=%d events=%s replay=%s", replica.name, rank, source.events, source.replay)
            self._streams[holder] = stream
            stream.start()

    def unheard(self, replica: Replica) -> bool:
        """A stream of its events has no connection now."""
        return any(not stream.connected for holder in replica.holders if (stream := self._streams.get(holder)) is not None)

    def _subscribed(self, holder: int, source: Sockets, topic: str) -> Stream:
        if self._context is None:
            self._context = zmq.asyncio.Context()
        return EventStream(
            self._index, holder, source.events, source.replay, topic=topic, on_change=self._changed, context=self._context
        )

    def _relayed(self, holder: int, source: Relayed) -> Stream:
        assert self._place is not None

        def direct() -> Stream | None:
            make = self._fallbacks.get(holder)
            return make() if make is not None else None

        return RedisStream(self._index, holder, self._place, direct=direct, on_change=self._changed)

    def _fallback(
        self, holder: int, direct: Sockets | None, settings: ReplicaSettings, facts: Facts
    ) -> Callable[[], Stream] | None:
        """How to listen to a relayed rank itself."""
        if direct is None:
            return None

        def listen() -> Stream:
            self._index.set_counting(holder, not facts.repeats_stores)
            return self._subscribed(holder, direct, settings.topic or facts.topic)

        return listen

    def _source(self, replica: Replica, settings: ReplicaSettings, facts: Facts, rank: int) -> Source | None:
        """Where the events of one rank come from. Raises EndpointError."""
        direct = direct_source(replica, settings, facts, rank)
        relayed = settings.via == "redis" or (settings.via is None and settings.events is None)
        if self._place is None or not relayed:
            return direct
        return Relayed(direct if isinstance(direct, Sockets) else None)

    def _polled(self, replica: Replica, rank: int, source: Queue) -> Stream:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())
        url, poller = self._pollers.get(replica.name, ("", None))
        if poller is None or url != source.url:
            own = source.url.startswith(f"{replica.address.url}/")  # its key is for nobody else
            tls = replica.tls if own else None
            context, name = (tls.context, tls.server_name) if tls is not None else (None, None)
            key = replica.api_key if own else None
            queue = EventQueue(self._session, source.url, api_key=key, tls=context, server_name=name)
            poller = PollSource(self._index, queue, block_tokens=source.block_tokens, on_change=self._changed)
            self._pollers[replica.name] = source.url, poller
        return poller.stream(rank, replica.holders[rank])

    async def _learn_ranks(self, replica: Replica, settings: ReplicaSettings, facts: Facts) -> None:
        if (ranks := ranks_told(settings, facts)) is None:
            return
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

    def emptied(self, replica: Replica) -> None:
        """It dropped its caches and has not said so in its events, as engines that sleep do not; its streams go on (FC-11)."""
        for holder in replica.holders:
            self._index.clear(holder)

    def refresh(self) -> None:
        """Let policies see whose view was trimmed since."""
        for holder, stream in self._streams.items():
            if self._fleet.view.freshness[holder] is not stream.freshness:
                self._changed(holder)

    def answered(self, holder: int, uncached_tokens: int) -> None:
        """A request was answered whose prompt should have stored new blocks: silence now means something (FC-05)."""
        if (stream := self._streams.get(holder)) is not None and uncached_tokens:
            stream.note_answered(uncached_tokens)

    async def unfollow(self, replica: Replica) -> None:
        """Stop listening to one replica."""
        self._pollers.pop(replica.name, None)
        for holder in replica.holders:
            self._sources.pop(holder, None)
            self._fallbacks.pop(holder, None)
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
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _changed(self, holder: int) -> None:
        stream = self._streams.get(holder)
        owner = self._fleet.by_holder.get(holder)
        if stream is not None and owner is not None:
            self._fleet.view.freshness[holder] = stream.freshness
            self._fleet.refresh(owner[0])


def ranks_told(settings: ReplicaSettings, facts: Facts) -> int | None:
    """A replica that tells where each rank's events are has that many; unless it was configured to have several."""
    return max(facts.event_sources) + 1 if facts.event_sources and settings.ranks == 1 else None


def direct_source(replica: Replica, settings: ReplicaSettings, facts: Facts, rank: int) -> Source | None:
    """Where one rank announces: as configured, with port + rank; else where the replica says; else in its queue, or nowhere.

    A configured wildcard, as an engine's own flag has it, means the host we reach the replica at. Of what a replica says only
    the port counts: what it calls itself may mean nothing here, and it must not send us elsewhere. Raises EndpointError.
    """
    host = f"[{replica.address.host}]" if ":" in replica.address.host else replica.address.host
    if settings.events is not None:
        if is_queue(settings.events):
            return Queue(queue_url(settings.events), settings.block_tokens)
        events, replay = rank_endpoint(settings.events, rank), settings.replay and rank_endpoint(settings.replay, rank)
        return Sockets(_without_wildcard(events, host), _without_wildcard(replay, host) if replay else None)
    if facts.has_queue:
        return Queue(replica.address.url + QUEUE_PATH, facts.queue_block_tokens)
    if rank not in facts.event_sources:
        return None
    events, replay = facts.event_sources[rank]
    return Sockets(_at_host(events, host), _at_host(replay, host) if replay else None)


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
