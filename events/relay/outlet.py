"""One rank's way into Redis: entries in small batches, a snapshot now and then, all under one token."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from redis.exceptions import RedisError

from events.relay.entries import CodecState, Encoder
from events.relay.frame import EPOCH_BYTES
from events.relay.inventory import Inventory
from events.relay.ops import Op
from events.relay.snapshot import pack_snapshot
from events.relay.store import RankStore, WriterGone, WritesLost
from events.relay.tap import Tap
from events.types import Freshness
from radix.changes import Batch

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a relay writes, and how much it leaves there.

    batch_s: between two entries; so long a batch may wait for others, and one that comes after a pause does not. entry_batches:
    the most that one entry has. keep_entries: left for gateways that are behind; those after the newest snapshot always stay.
    """

    batch_s: float = 0.02
    entry_batches: int = 256
    snapshot_s: float = 60.0
    snapshot_entries: int = 10_000
    keep_entries: int = 10_000
    lease_s: float = 5.0
    backoff_s: float = 0.05  # after a failure of the server, doubled each time
    max_backoff_s: float = 2.0
    warn_every_s: float = 30.0


@dataclass(slots=True)
class OutletCounts:
    """What was written. lag_s: from the engine's clock to confirmed by the server, of the newest batch."""

    entries: int = 0
    batches: int = 0
    bytes: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0
    epochs: int = 0
    failures: int = 0  # of the server
    lag_s: float = 0.0
    newest_snapshot_bytes: int = 0


class _Moment(NamedTuple):
    """What a snapshot says, and behind which entry."""

    epoch: bytes
    freshness: Freshness
    inventory: Inventory
    codec: CodecState


class Outlet:
    """Writes what a tap collects, from `run` to `close`. token: of this relay's life; name: for those it keeps out."""

    def __init__(
        self, tap: Tap, store: RankStore, token: str, name: str, pace: Pace, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.tap = tap
        self.counts = OutletCounts()
        self.writing = False
        self._owner = (tap.replica, tap.rank)
        self._store = store
        self._token = token
        self._name = name
        self._pace = pace
        self._clock = clock
        self._lease_ms = int(pace.lease_s * 1000)
        self._encoder = Encoder(b"")
        self._closing = False
        self._saving: asyncio.Task[None] | None = None
        self._saved_number = 0
        self._saved_at = 0.0
        self._last_id = b""
        self._beat_at = 0.0
        self._sent_at = 0.0
        self._warned_at = -1e9

    async def run(self) -> None:
        """Write until `close`; raises Fenced when another relay does."""
        try:
            while not self._closing:
                await self._acquire()
                try:
                    await self._write()
                except WriterGone:
                    self._warn("redis was emptied replica=%s rank=%d: telling the whole view again")
        finally:
            self.writing = False
            if self._saving is not None:
                self._saving.cancel()

    def close(self) -> None:
        """Let `run` send what is pending, give up the lease and end."""
        self._closing = True
        self.tap.wake.set()
        self.tap.urgent.set()

    async def _acquire(self) -> None:
        while not self._closing:
            other = await self._try(lambda: self._store.acquire(self._token, self._name, self._lease_ms))
            if other is None:
                return
            name, left_s = other
            self._warn("standing by replica=%s rank=%d writer=%s", name)
            self.tap.break_off()
            await asyncio.sleep(min(left_s, self._pace.lease_s / 4) + 0.001)

    async def _write(self) -> None:
        self.tap.break_off()
        self._beat_at = time.monotonic()
        while not self._closing:
            try:
                await self._turn()
            except WritesLost:
                self._warn("redis lost entries replica=%s rank=%d: telling the whole view again")
                self.tap.break_off()
        if self.writing:
            if not self.tap.broken and self.tap.pending:
                await self._send(self.tap.take())
            await self._store.beat(self._token, 0)

    async def _turn(self) -> None:
        if self.tap.broken:
            await self._begin()
        await self._rest()
        if self._saving is not None and self._saving.done():
            saving, self._saving = self._saving, None
            saving.result()
        if not self.tap.broken and (self.tap.pending or self._snapshot_due()):
            await self._send(self.tap.take(self._pace.entry_batches))
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self._pace.lease_s / 3
            if await self._try(lambda: self._store.beat(self._token, self._lease_ms)):
                self._warn("a gateway cannot go on replica=%s rank=%d: telling the whole view again")
                self.tap.break_off()

    async def _rest(self) -> None:
        """Until something is to be sent that should not wait for more, or the lease is to be renewed."""
        tap = self.tap
        if await _set_within(tap.wake, self._beat_at - time.monotonic()) and not tap.urgent.is_set():
            await _set_within(tap.urgent, self._sent_at + self._pace.batch_s - time.monotonic())

    async def _begin(self) -> None:
        """A new epoch: its first entry, and with it the whole view."""
        encoder = self._encoder = Encoder(os.urandom(EPOCH_BYTES))
        inventory, freshness = self.tap.whole(), self.tap.freshness
        entry = encoder.entry([freshness])
        data = await self._packed(_Moment(encoder.epoch, freshness, inventory, encoder.state()))
        self._last_id = await self._append(0, entry, data)
        self.writing = True
        self.counts.epochs += 1
        self._note_snapshot(0, data)
        log.info("epoch begun replica=%s rank=%d blocks=%d bytes=%d", *self._owner, len(inventory.blocks), len(data))

    async def _send(self, ops: list[Op]) -> None:
        """One entry, and a snapshot behind it when it is time."""
        encoder, moment = self._encoder, None
        if self._snapshot_due():
            ops += self.tap.take()  # the view to be saved has them all
        entry = encoder.entry(ops) if ops else b""
        if self._snapshot_due():
            moment = _Moment(encoder.epoch, self.tap.freshness, self.tap.inventory(), encoder.state())
        if ops:
            self._last_id = await self._append(encoder.number, entry)
            self._note_batches([op for op in ops if isinstance(op, Batch)])
        if moment is not None:
            self._saving = asyncio.get_running_loop().create_task(self._save(moment, self._last_id), name="snapshot")

    async def _append(self, number: int, entry: bytes, snapshot: bytes = b"") -> bytes:
        self._sent_at = time.monotonic()
        epoch, keep, freshness = self._encoder.epoch, self._pace.keep_entries, self.tap.freshness
        entry_id = await self._try(
            lambda: self._store.append(self._token, self._lease_ms, epoch, number, entry, freshness, snapshot=snapshot, keep=keep)
        )
        self.counts.entries += 1
        self.counts.bytes += len(entry)
        return entry_id

    def _snapshot_due(self) -> bool:
        if self._saving is not None:
            return False
        since = self._encoder.number - self._saved_number
        old = since > 0 and time.monotonic() - self._saved_at >= self._pace.snapshot_s
        return old or since >= self._pace.snapshot_entries

    async def _save(self, moment: _Moment, entry_id: bytes) -> None:
        number = moment.codec.number
        data = await self._packed(moment)

        def save() -> Awaitable[None]:
            behind = self._encoder.number - number + 1
            keep = max(self._pace.keep_entries, behind)
            return self._store.save(self._token, moment.epoch, number, entry_id, data, keep)

        await self._try(save)
        self._note_snapshot(number, data)

    async def _packed(self, moment: _Moment) -> bytes:
        counting = self.tap.counting
        return await asyncio.to_thread(
            pack_snapshot, moment.epoch, moment.freshness, counting, moment.inventory, moment.codec
        )  # a large one would hold up the other ranks

    def _note_snapshot(self, number: int, data: bytes) -> None:
        self._saved_number, self._saved_at = number, time.monotonic()
        self.counts.snapshots += 1
        self.counts.snapshot_bytes += len(data)
        self.counts.newest_snapshot_bytes = len(data)

    def _note_batches(self, batches: list[Batch]) -> None:
        self.counts.batches += len(batches)
        if batches and batches[-1].ts:
            self.counts.lag_s = self._clock() - batches[-1].ts

    async def _try(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """The server's answer, however long it takes; every call may be repeated."""
        pause_s = self._pace.backoff_s
        while True:
            try:
                return await call()
            except (RedisError, OSError) as error:
                self.counts.failures += 1
                if self._closing:
                    raise
                self._warn("redis does not take entries replica=%s rank=%d error=%r", error)
                await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
                pause_s = min(pause_s * 2, self._pace.max_backoff_s)

    def _warn(self, message: str, *values: object) -> None:
        if time.monotonic() - self._warned_at >= self._pace.warn_every_s:
            self._warned_at = time.monotonic()
            log.warning(message, *self._owner, *values)


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether it is set by then."""
    if not event.is_set() and timeout_s > 0:
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
    return event.is_set()
