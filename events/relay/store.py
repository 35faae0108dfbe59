"""What lies in Redis for one rank, and the few scripts that may change it.

    PREFIX:{REPLICA/RANK}:stream     entries, field `e`
    PREFIX:{REPLICA/RANK}:snapshot   epoch, number, id of the entry it stands behind, data
    PREFIX:{REPLICA/RANK}:writer     token and name of the relay that writes, until when (ms, the server's clock), its last entry
    PREFIX:{REPLICA/RANK}:want       there when a gateway needs a new snapshot

Every write is a script that first compares the token, so that a relay that was believed dead and wakes up changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from events.errors import Fenced, RelayDataError
from events.types import EventsError, Freshness

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 5.0
_WANT_MS = 10_000
_STATES = {state.value.encode(): state for state in Freshness}

# The lease is measured by the server's clock alone: those of relays and gateways need not agree.
_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "

# A new writer has not written yet: who reads shall not take the last entry of the one before for its own.
_ACQUIRE = (
    _NOW
    + """
local w = redis.call('HMGET', KEYS[1], 'token', 'name', 'until')
if w[1] and w[1] ~= ARGV[1] then
  if tonumber(w[3]) > now then return {w[2], tonumber(w[3]) - now} end
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'name', ARGV[2], 'until', now + ARGV[3])
return {}
"""
)
# An entry whose answer was lost is sent again and recognised. 'lost': the server forgot what it had confirmed (failover, an old
# file, an evicted key), so only a new epoch can go on.
_APPEND = (
    _NOW
    + """
local w = redis.call('HMGET', KEYS[1], 'token', 'name', 'epoch', 'number', 'id')
if not w[1] then return {'gone'} end
if w[1] ~= ARGV[1] then return {'fenced', w[2]} end
local number = tonumber(ARGV[4])
if w[3] == ARGV[3] and tonumber(w[4]) == number then return {'ok', w[5]} end
if number > 0 then
  local tail = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
  if w[3] ~= ARGV[3] or tonumber(w[4]) ~= number - 1 or not tail[1] or tail[1][1] ~= w[5]
    or redis.call('EXISTS', KEYS[3]) == 0 then return {'lost'} end
end
local id = redis.call('XADD', KEYS[2], '*', 'e', ARGV[5])
redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'number', number, 'id', id, 'freshness', ARGV[6], 'until', now + ARGV[2])
if ARGV[7] ~= '' then
  redis.call('DEL', KEYS[3])
  redis.call('HSET', KEYS[3], 'epoch', ARGV[3], 'number', number, 'id', id, 'data', ARGV[7])
  redis.call('XTRIM', KEYS[2], 'MAXLEN', '=', math.max(1, tonumber(ARGV[8])))
end
return {'ok', id}
"""
)
_SAVE = """
local w = redis.call('HMGET', KEYS[1], 'token', 'name', 'epoch')
if not w[1] then return {'gone'} end
if w[1] ~= ARGV[1] then return {'fenced', w[2]} end
if w[3] ~= ARGV[2] then return {'lost'} end
redis.call('HSET', KEYS[3], 'epoch', ARGV[2], 'number', ARGV[3], 'id', ARGV[4], 'data', ARGV[5])
redis.call('XTRIM', KEYS[2], 'MAXLEN', '=', ARGV[6])
return {'ok', ARGV[4]}
"""
_BEAT = (
    _NOW
    + """
local w = redis.call('HMGET', KEYS[1], 'token', 'name')
if not w[1] then return {'gone'} end
if w[1] ~= ARGV[1] then return {'fenced', w[2]} end
redis.call('HSET', KEYS[1], 'until', now + ARGV[2])
return {'ok', redis.call('DEL', KEYS[2])}
"""
)
_STATE = (
    _NOW
    + """
local w = redis.call('HMGET', KEYS[1], 'until', 'id', 'freshness')
if not w[1] then return {} end
return {tonumber(w[1]) - now, w[2], w[3]}
"""
)


class WriterGone(EventsError):
    """The server knows nothing of the writer: it was emptied."""


class WritesLost(EventsError):
    """The server no longer has what it had confirmed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the streams of a fleet are. url: redis://, rediss:// or unix://, with user and password where they are needed."""

    url: str
    prefix: str = "trunkline"

    def shown(self) -> str:
        """The URL without what must stay secret."""
        return shown_url(self.url)


@dataclass(frozen=True, slots=True)
class WriterState:
    """What is known of the relay. left_s: of its lease, negative when it is over.

    id, freshness: of its newest entry, and of the view by then; None before the first.
    """

    left_s: float
    id: bytes | None
    freshness: Freshness | None


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot as it lies there. id: of the entry it stands behind."""

    id: bytes
    data: bytes


def check_url(url: str) -> None:
    """Raises EventsError, without the URL's secrets, when it is none of Redis."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise EventsError("redis URL has no valid port") from None
    usable = parts.path if parts.scheme == "unix" else parts.scheme in ("redis", "rediss") and parts.hostname
    if not usable or port == 0:
        raise EventsError(f"redis URL must be redis://host:port, rediss://host:port or unix:///path, got {shown_url(url)!r}")
    try:
        pool = connect(Place(url)).connection_pool
        pool.connection_class(**pool.connection_kwargs)  # which opens nothing yet
    except (TypeError, ValueError, RedisError) as error:
        raise EventsError(f"redis URL {shown_url(url)!r} has an option that cannot be used: {type(error).__name__}") from None


def shown_url(url: str) -> str:
    """A URL without user, password and query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "..."
    authority, slash, path = rest.rpartition("@")[2].partition("/")
    return f"{scheme}://{authority.partition('?')[0]}{slash}{path.partition('?')[0]}"


def connect(place: Place, *, connections: int = 4) -> Redis:
    """A client that never retries by itself: who waits for what is decided where it is known."""
    keepalive = {} if place.url.startswith("unix:") else {"socket_keepalive": True}
    return Redis.from_url(
        place.url,
        protocol=2,
        decode_responses=False,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=ANSWER_TIMEOUT_S,
        max_connections=connections,
        **keepalive,
    )


class RankStore:
    """The keys of one rank. Methods raise RedisError when the server is not there or refuses."""

    def __init__(self, client: Redis, prefix: str, replica: str, rank: int) -> None:
        base = f"{prefix}:{{{quote(replica, safe='')}/{rank}}}"
        self.stream, self.snapshot, self.writer, self.want = (
            f"{base}:{part}" for part in ("stream", "snapshot", "writer", "want")
        )
        self._client = client
        self._rank = f"{replica}/{rank}"
        self._acquire, self._append, self._save, self._beat, self._state = (
            client.register_script(script) for script in (_ACQUIRE, _APPEND, _SAVE, _BEAT, _STATE)
        )

    async def acquire(self, token: str, name: str, lease_ms: int) -> tuple[str, float] | None:
        """Become the writer; else (name of the one there is, seconds its lease still runs)."""
        answer = await _heeding(self._acquire(keys=[self.writer], args=[token, name, lease_ms]))
        return (answer[0].decode("utf-8", "replace"), answer[1] / 1000) if answer else None

    async def append(
        self,
        token: str,
        lease_ms: int,
        epoch: bytes,
        number: int,
        entry: bytes,
        freshness: Freshness,
        *,
        snapshot: bytes,
        keep: int,
    ) -> bytes:
        """Add an entry; returns its id. Raises Fenced, WriterGone, WritesLost.

        The first of an epoch brings a snapshot, and the newest `keep` entries are kept.
        """
        keys = [self.writer, self.stream, self.snapshot]
        args: list[bytes | str | int] = [token, lease_ms, epoch, number, entry, freshness.value, snapshot, keep]
        entry_id = self._done(await _heeding(self._append(keys=keys, args=args)))
        assert isinstance(entry_id, bytes)
        return entry_id

    async def save(self, token: str, epoch: bytes, number: int, entry_id: bytes, data: bytes, keep: int) -> None:
        """Replace the snapshot and keep the newest `keep` entries. Raises Fenced, WriterGone, WritesLost."""
        keys = [self.writer, self.stream, self.snapshot]
        self._done(await _heeding(self._save(keys=keys, args=[token, epoch, number, entry_id, data, keep])))

    async def beat(self, token: str, lease_ms: int) -> bool:
        """Renew the lease (0 gives it up); True when a gateway wants a snapshot. Raises Fenced, WriterGone."""
        return bool(int(self._done(await _heeding(self._beat(keys=[self.writer, self.want], args=[token, lease_ms])))))

    async def state(self) -> WriterState | None:
        """What the writer is doing; None when there never was one."""
        answer = await _heeding(self._state(keys=[self.writer]))
        if not answer:
            return None
        left, entry_id, freshness = answer
        return WriterState(left / 1000, entry_id, _STATES.get(freshness))

    async def saved(self) -> Saved | None:
        """The newest snapshot."""
        entry_id, data = await _heeding(self._client.hmget(self.snapshot, ["id", "data"]))
        return Saved(entry_id, data) if entry_id is not None and data is not None else None

    async def read(self, after: bytes, count: int, wait_ms: int) -> Sequence[tuple[bytes, bytes]]:
        """(id, entry) of those behind `after`, after at most `wait_ms`; raises RelayDataError for what a relay did not write."""
        answer = await _heeding(self._client.xread({self.stream: after}, count=count, block=wait_ms))
        entries = answer[0][1] if answer else []
        if any(not fields or b"e" not in fields for _, fields in entries):
            raise RelayDataError("an entry of the stream has no field 'e'")
        return [(entry_id, fields[b"e"]) for entry_id, fields in entries]

    async def ask_for_snapshot(self) -> None:
        """Have the relay write a new one soon."""
        await _heeding(self._client.set(self.want, 1, px=_WANT_MS))

    def _done(self, answer: Sequence[Any]) -> Any:
        match answer[0]:
            case b"ok":
                return answer[1]
            case b"gone":
                raise WriterGone(f"{self._rank}: the server knows no writer")
            case b"lost":
                raise WritesLost(f"{self._rank}: the server lost entries it had confirmed")
            case _:
                name = answer[1].decode("utf-8", "replace")
                raise Fenced(f"relay {name} writes {self._rank} now: this one stops")


async def _heeding(call: Any) -> Any:
    """An answer, unless this task was cancelled: on Python 3.11 the client's `asyncio.wait_for` now and then swallows that."""
    answer = await call
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    return answer
