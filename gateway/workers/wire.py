"""What the index process and the workers say to each other, over one Unix socket each.

No socket has a name: a worker makes a pair and sends one end through the door, a socket that all these processes have from
their parent. So a worker may knock while there is no index process; the next one finds it waiting. The first byte from the index
process carries the file handle of its shared memory; messages follow, 4 bytes of length and msgpack each.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TypeVar

import msgspec

from events.apply import Counts
from gateway.errors import GatewayError
from radix.directory import Directory
from radix.index import IndexStats

T = TypeVar("T")

_GREETING = b"I"
_LENGTH_BYTES = 4
_MOST_BYTES = 64 << 20


class WireError(GatewayError):
    """The other side is not what it should be."""


class StreamState(msgspec.Struct, frozen=True):
    """One stream that the index process follows. freshness: value of `Freshness`. relayed: it comes over Redis."""

    replica: str
    rank: int
    freshness: str
    connected: bool
    relayed: bool
    counts: Counts


class Told(msgspec.Struct, frozen=True, tag=True):
    """All that workers have to know beside the shared tree; sent when it changed, and each second."""

    directory: Directory
    streams: list[StreamState]
    stats: IndexStats


class RankLoad(msgspec.Struct, frozen=True, array_like=True):
    """What one rank was given by a worker, or by several; see `gateway.fleet.Load`."""

    replica: str
    rank: int
    in_flight: int
    queued_tokens: int
    decoding: int


class Loads(msgspec.Struct, frozen=True, tag=True):
    """What all other workers together have given to replicas; ranks that are not named have nothing."""

    elsewhere: list[RankLoad]


class Notes(msgspec.Struct, frozen=True):
    """What others have to know of a worker's requests.

    answered: (replica, rank, most uncached tokens of an answered request), for the streams. faults: replicas that failed. loads:
    all it has given to replicas; None when that is what it was.
    """

    answered: list[tuple[str, int, int]] = []
    faults: list[str] = []
    loads: list[RankLoad] | None = None


TO_WORKER: msgspec.msgpack.Decoder[Told | Loads] = msgspec.msgpack.Decoder(Told | Loads)
TO_INDEX = msgspec.msgpack.Decoder(Notes)


def framed(message: msgspec.Struct) -> bytes:
    """A message as it is sent."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


async def next_message(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The next message; raises WireError for another one, and IncompleteReadError or OSError at the end."""
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
    if size > _MOST_BYTES:
        raise WireError(f"a message of {size} bytes")
    try:
        return decoder.decode(await reader.readexactly(size))
    except msgspec.DecodeError as error:
        raise WireError(f"a message that cannot be read: {error}") from error


def new_door() -> tuple[socket.socket, socket.socket]:
    """(the index process's side, the workers' side); whole messages, however many knock at once."""
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for side in (inside, outside):
        side.setblocking(False)
    return inside, outside


async def knock(door: socket.socket) -> socket.socket:
    """Ask for a connection; it is there when the index process greets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    with theirs:
        await _when(door, lambda: socket.send_fds(door, [_GREETING], [theirs.fileno()]), write=True)
    return ours


async def next_visitor(door: socket.socket) -> socket.socket:
    """The next worker that asked for a connection."""
    handles = await _when(door, lambda: socket.recv_fds(door, len(_GREETING), 1)[1])
    if len(handles) != 1:
        raise WireError(f"a knock with {len(handles)} handles")
    visitor = socket.socket(fileno=handles[0])
    visitor.setblocking(False)
    return visitor


def greet(visitor: socket.socket, memory: int) -> None:
    """Hand a worker the shared memory."""
    socket.send_fds(visitor, [_GREETING], [memory])


async def greeting(connection: socket.socket) -> int:
    """The file handle of the shared memory, to be closed by the caller; raises WireError when the index process ended first."""
    handles = await _when(connection, lambda: socket.recv_fds(connection, len(_GREETING), 1)[1])
    if len(handles) != 1:
        raise WireError("the index process ended before it greeted")
    return handles[0]


async def _when(sock: socket.socket, call: Callable[[], T], *, write: bool = False) -> T:
    """The result of a call on a socket that does not block, once it has one."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return call()
        except BlockingIOError:
            await _ready(loop, sock, write=write)


async def _ready(loop: asyncio.AbstractEventLoop, sock: socket.socket, *, write: bool) -> None:
    ready = asyncio.Event()
    if write:
        loop.add_writer(sock.fileno(), ready.set)
    else:
        loop.add_reader(sock.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        (loop.remove_writer if write else loop.remove_reader)(sock.fileno())
