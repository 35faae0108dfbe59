"""A relay of bytes: the floor of the proxy benchmark. It frames messages by their length or last chunk, and knows nothing else.

    python -m benchmarks.raw_relay http://127.0.0.1:9001 ...

One protocol per side on uvloop, kept engine connections, engines in turn. It trusts both sides: no limits, checks or timeouts.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import cast
from urllib.parse import urlsplit

import uvloop

_END = b"\r\n0\r\n\r\n"
_LENGTH = b"content-length:"


def _body_length(head: bytes) -> int | None:
    """The announced length of what follows a head in lower case; None without one."""
    at = head.find(_LENGTH)
    return None if at < 0 else int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0])


class Framing:
    """Where one message ends, fed piece by piece."""

    def __init__(self) -> None:
        self._head = b""
        self._left: int | None = None
        self._in_body = False
        self._tail = b""

    def ended(self, data: bytes) -> bool:
        """Whether the message ends with this piece."""
        if not self._in_body:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return False
            self._in_body = True
            self._left = _body_length(self._head[:end].lower() + b"\r\n")
            data = self._head[end + 4 :]
        if self._left is not None:
            self._left -= len(data)
            return self._left <= 0
        self._tail = (self._tail + data)[-len(_END) :]
        return self._tail == _END


class Engine(asyncio.Protocol):
    """One connection to an engine, and the client it works for."""

    def __init__(self, pool: list[Engine]) -> None:
        self._pool = pool
        self.client: Client | None = None
        self._framing = Framing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def serve(self, client: Client, request: Sequence[bytes]) -> None:
        """Send a request; its answer goes to the client."""
        self.client = client
        self._framing = Framing()
        self.transport.writelines(request)

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            self.transport.abort()
            return
        client.transport.write(data)
        if self._framing.ended(data):
            self.client = None
            client.engine = None
            self._pool.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._pool:
            self._pool.remove(self)
        if self.client is not None:
            self.client.transport.abort()


class Client(asyncio.Protocol):
    """One client connection; it sends its next request only after its answer."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._pieces: list[bytes] = []
        self._framing = Framing()
        self.engine: Engine | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if self._framing.ended(data):
            request, self._pieces, self._framing = self._pieces, [], Framing()
            self._relay.forward(self, request)

    def connection_lost(self, error: Exception | None) -> None:
        if self.engine is not None:
            self.engine.client = None
            self.engine.transport.abort()


class Relay:
    """Clients on one side, engines in turn on the other."""

    def __init__(self, engines: Sequence[str]) -> None:
        places = [(str(urlsplit(url).hostname), int(urlsplit(url).port or 80)) for url in engines]
        self._next: Iterator[tuple[tuple[str, int], list[Engine]]] = itertools.cycle([(place, []) for place in places])
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen on a free loopback port; returns it."""
        server = await asyncio.get_running_loop().create_server(lambda: Client(self), "127.0.0.1", 0, backlog=4096)
        return int(server.sockets[0].getsockname()[1])

    def forward(self, client: Client, request: Sequence[bytes]) -> None:
        """Send a whole request to the next engine."""
        place, pool = next(self._next)
        if pool:
            client.engine = pool.pop()
            client.engine.serve(client, request)
            return
        task = asyncio.get_running_loop().create_task(self._open(client, request, place, pool))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, client: Client, request: Sequence[bytes], place: tuple[str, int], pool: list[Engine]) -> None:
        _, engine = await asyncio.get_running_loop().create_connection(lambda: Engine(pool), *place)
        client.engine = engine
        engine.serve(client, request)


async def _serve(engines: Sequence[str]) -> None:
    print(await Relay(engines).start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1:]))
