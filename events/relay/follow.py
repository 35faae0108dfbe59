"""A gateway's end of one rank's stream in Redis: from the newest snapshot on, entry by entry, for as long as they fit together.

Whatever does not fit (another epoch, a missing number, damaged bytes, a server that forgot) leads back to the newest snapshot.
While there is none that can be used, or nobody writes, the view is marked; after a while it is given up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from redis.exceptions import RedisError

from events.apply import Applier
from events.errors import RelayDataError
from events.relay.entries import Decoder, unpack_entry
from events.relay.snapshot import Snapshot, unpack_snapshot
from events.relay.store import Place, RankStore, connect
from events.types import EventsError, Freshness
from radix.changes import Batch

log = logging.getLogger(__name__)

_AT_ONCE = 100  # entries
_SLICE_S = 0.002  # the loop also serves requests; give it back after this long
_EVENTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowTimes:
    """How long the parts of a relayed stream may take."""

    wait_s: float = 1.0  # for an entry, before the relay's lease is looked at
    doubt_s: float = 3.0  # without a living relay; then the engine is listened to directly, where that is possible
    drop_s: float = 10.0  # the same without such a way; what we believe then may be long gone
    again_s: float = 0.05  # between two looks for a snapshot that can be used, doubled each time
    max_again_s: float = 2.0
    suspect_s: float = 2.0  # after the engine was called dead; its relay has noticed by then
    silence_grace_s: float = 60.0
    backoff_s: float = 0.5  # after a crash, doubled each time
    max_backoff_s: float = 30.0
    warn_every_s: float = 30.0


class Astray(EventsError):
    """The stream cannot be continued from where we are; the text says why."""


class NoRelay(Astray):
    """There is nothing to read, and nobody who writes it."""


class Follower:
    """The state of one relayed stream; `run` may be called again after it ended.

    set_counting: told how the engine announces copies, before a snapshot is applied.
    """

    def __init__(self, applier: Applier, place: Place, times: FollowTimes, set_counting: Callable[[bool], None]) -> None:
        self.in_step = False  # we have all there is, and someone writes more
        self._applier = applier
        self._counts = applier.counts
        self._place = place
        self._times = times
        self._set_counting = set_counting
        self._decoder: Decoder | None = None
        self._after = b"0-0"  # id of the newest entry applied
        self._told = Freshness.COLD  # by the relay
        self._astray_since = time.monotonic()
        self._owed: bytes | None = None  # id of an entry we know of and did not get
        self._failures = 0  # in a row
        self._again_s = times.again_s
        self._suspected = False
        self._warned_at: dict[str, float] = {}

    @property
    def astray_s(self) -> float:
        """Seconds since it was last in step; 0 while it is."""
        return 0.0 if self.in_step else time.monotonic() - self._astray_since

    def begin(self) -> None:
        """The time without a relay is over; whatever the view is now, it is not what comes next."""
        self._decoder = None
        self._astray_since = time.monotonic()
        self._failures = 0
        self._again_s = self._times.again_s

    def suspect(self) -> None:
        """The engine is gone: so is the view, until the relay can have noticed."""
        self.forget()
        self._suspected = True

    def forget(self) -> None:
        """Nothing is known any more."""
        self._lose_step()
        self._decoder = None
        self._applier.clear()
        self._applier.set(Freshness.COLD)

    async def run(self, until_astray_s: float | None = None) -> None:
        """Follow until cancelled, or until it was not in step for so long."""
        client = connect(self._place)
        try:
            store = RankStore(client, self._place.prefix, self._applier.replica, self._applier.rank)
            while until_astray_s is None or self.astray_s < until_astray_s:
                try:
                    await self._turn(store)
                except (Astray, RelayDataError) as error:
                    await self._heal(store, error)
                except (RedisError, OSError) as error:
                    await self._server_away(error)
                if self.astray_s > self._times.drop_s and not self._applier.cold:
                    self._warn("drop", "relay cut off replica=%s rank=%d s=%g: view dropped", self._times.drop_s)
                    self.forget()
        finally:
            self._lose_step()
            await client.aclose()

    async def alive(self) -> None:
        """Return as soon as somebody writes entries that can be joined."""
        client = connect(self._place)
        try:
            store = RankStore(client, self._place.prefix, self._applier.replica, self._applier.rank)
            while True:
                try:
                    state = await store.state()
                    if state is not None and state.left_s > 0 and state.id is not None and await store.saved() is not None:
                        return
                except (RedisError, OSError):  # the way that works goes on meanwhile
                    pass
                await asyncio.sleep(self._times.wait_s)
        finally:
            await client.aclose()

    async def _turn(self, store: RankStore) -> None:
        if self._suspected:
            await self._trust_again(store)
            return
        if self._decoder is None:
            await self._join(store)
            return
        entries = await store.read(self._after, _AT_ONCE, int(self._times.wait_s * 1000))
        for entry_id, data in entries:
            await self._entry(entry_id, data)
        if not entries:
            await self._look(store)
            return
        self._owed = None
        if len(entries) < _AT_ONCE:
            self._keep_step()

    async def _join(self, store: RankStore) -> None:
        """Begin with the newest snapshot."""
        state = await store.state()
        if state is None or state.id is None or state.left_s <= 0:
            raise NoRelay("no relay writes")  # what lies there may be long gone
        saved = await store.saved()
        if saved is None:
            raise Astray("the snapshot is missing")
        self._counts.replays += 1
        snapshot = await asyncio.to_thread(unpack_snapshot, saved.data)
        self._lose_step()
        self._applier.clear()
        self._set_counting(snapshot.counting)
        await self._take_in(snapshot)
        self._counts.bytes += len(saved.data)
        self._decoder = Decoder(snapshot.epoch, snapshot.codec)
        self._after, self._told, self._owed = saved.id, snapshot.freshness, None
        await self._look(store)

    async def _take_in(self, snapshot: Snapshot) -> None:
        slice_end = time.monotonic() + _SLICE_S
        for first in range(0, len(snapshot.events), _EVENTS_AT_ONCE):
            self._apply(Batch(None, 0, 0.0, tuple(snapshot.events[first : first + _EVENTS_AT_ONCE])))
            if time.monotonic() > slice_end:
                await asyncio.sleep(0)
                slice_end = time.monotonic() + _SLICE_S

    async def _entry(self, entry_id: bytes, data: bytes) -> None:
        assert self._decoder is not None
        frame = unpack_entry(data)
        if frame.epoch != self._decoder.epoch:
            self._counts.restarts += 1
            raise Astray("another epoch began")
        if frame.number != self._decoder.number + 1:
            self._counts.gaps += 1
            raise Astray(f"entry {frame.number} came after {self._decoder.number}")
        for op in self._decoder.read(frame):
            if isinstance(op, Freshness):
                self._told = op
            else:
                self._apply(op)
        self._counts.bytes += len(data)
        self._after = entry_id
        await asyncio.sleep(0)

    async def _look(self, store: RankStore) -> None:
        """Nothing came: is anyone there who would write it, and is the server where it was?"""
        state = await store.state()
        if state is not None and state.id is None:
            raise NoRelay("a new relay has written nothing yet")
        if state is None or state.id is None:
            raise Astray("the server was emptied")
        if state.id != self._after and self._owed is not None:  # also where a server took over whose ids are older than ours
            raise Astray("entries vanished")
        self._owed = state.id if state.id != self._after else None
        if state.left_s <= 0:
            self._lose_step()
            self._warn("dead", "relay does not write replica=%s rank=%d since_s=%.1f", -state.left_s)
        elif self._owed is None:
            self._keep_step()

    async def _trust_again(self, store: RankStore) -> None:
        """An engine that was called dead is believed again when its relay, which had time to notice, still hears it."""
        await asyncio.sleep(self._times.suspect_s)
        state = await store.state()
        if state is not None and state.left_s > 0:
            self._astray_since = time.monotonic()  # it is the engine that is missing, not the relay
            if state.freshness in (Freshness.GAP, Freshness.COLD):
                return
        self._suspected = False

    async def _server_away(self, error: Exception) -> None:
        self._lose_step()
        self._warn("redis", "redis cannot be read replica=%s rank=%d error=%r", error)
        await self._pause()

    async def _heal(self, store: RankStore, error: EventsError) -> None:
        self._lose_step()
        self._decoder = None
        self._failures += not isinstance(error, NoRelay)
        if isinstance(error, RelayDataError):
            self._counts.decode_errors += 1
        self._warn("astray", "relayed stream interrupted replica=%s rank=%d why=%s", error)
        if self._failures > 1:  # the newest snapshot does not help
            with suppress(RedisError, OSError):
                await store.ask_for_snapshot()
        await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._again_s * random.uniform(0.75, 1.25))
        self._again_s = min(self._again_s * 2, self._times.max_again_s)

    def _apply(self, batch: Batch) -> None:
        try:
            self._applier.take(batch)
        except Exception as error:  # a bug of ours in one batch must not stop the stream
            self._counts.apply_errors += 1
            raise Astray(f"batch {batch.seq} cannot be applied: {error!r}") from error

    def _keep_step(self) -> None:
        self.in_step = True
        self._failures = 0
        self._again_s = self._times.again_s
        self._applier.set(self._told)

    def _lose_step(self) -> None:
        if self.in_step:
            self.in_step = False
            self._astray_since = time.monotonic()
        if not self._applier.cold:
            self._applier.set(Freshness.GAP)

    def _warn(self, kind: str, message: str, *values: object) -> None:
        now = time.monotonic()
        if now - self._warned_at.get(kind, -1e9) >= self._times.warn_every_s:
            self._warned_at[kind] = now
            log.warning(message, self._applier.replica, self._applier.rank, *values)
