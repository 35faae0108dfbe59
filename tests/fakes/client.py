"""A client of raw bytes: it writes anything, and reads answers by its own strict reading of HTTP/1.1."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Any


@dataclass
class Answer:
    """One answer. complete: its body ended the way its framing says; interim: statuses of 1xx answers before it."""

    status: int
    fields: list[tuple[bytes, bytes]]
    body: bytes
    complete: bool
    interim: list[int]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """Server-sent events, without their blank lines."""
        return [event for event in self.body.split(b"\n\n") if event]


class RawClient:
    """One connection; use as an async context manager."""

    def __init__(self, port: int, *, receive_buffer: int | None = None, tls: ssl.SSLContext | None = None) -> None:
        """tls: speak it, with the name localhost."""
        self._tls = tls
        self._port = port
        self._receive_buffer = receive_buffer

    async def __aenter__(self) -> RawClient:
        sock = socket.socket()
        if self._receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = "localhost" if self._tls is not None else None
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=2**16, ssl=self._tls, server_hostname=name)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()

    async def send(self, *pieces: bytes) -> None:
        """Write each piece in its own turn of the loop."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    def reset(self) -> None:
        """Leave with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def answer(self, *, head_only: bool = False, within_s: float = 5.0) -> Answer:
        """Read one answer to its end, or to where the connection ended."""
        async with asyncio.timeout(within_s):
            interim: list[int] = []
            while True:
                status, fields = await self._head()
                if status >= 200:
                    break
                interim.append(status)
            body = bytearray()
            complete = True
            if not (head_only or status in (204, 304)):
                complete = await self._body(dict(fields), body)
        return Answer(status, fields, bytes(body), complete, interim)

    async def closed(self, within_s: float = 3.0) -> bool:
        """Whether the gateway closes the connection, with nothing more to read, within the time."""
        try:
            return await asyncio.wait_for(self.reader.read(1), within_s) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def _head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        head = (await self.reader.readuntil(b"\r\n\r\n"))[:-4]
        first, *lines = head.split(b"\r\n")
        assert first.startswith(b"HTTP/1.1 "), first
        fields = []
        for line in lines:
            name, colon, value = line.partition(b":")
            assert colon, line
            fields.append((name.lower(), value.strip()))
        return int(first.split(b" ")[1]), fields

    async def _body(self, fields: dict[bytes, bytes], body: bytearray) -> bool:
        try:
            if b"transfer-encoding" in fields:
                assert b"content-length" not in fields
                return await self._chunks(body)
            if b"content-length" in fields:
                while len(body) < int(fields[b"content-length"]):
                    body += await self._some(int(fields[b"content-length"]) - len(body))
                return True
            while data := await self.reader.read(65536):
                body += data
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        return True

    async def _chunks(self, body: bytearray) -> bool:
        while True:
            line = await self.reader.readuntil(b"\r\n")
            size = int(line[:-2], 16)
            end = len(body) + size
            while len(body) < end:
                body += await self._some(end - len(body))
            assert await self.reader.readexactly(2) == b"\r\n"
            if size == 0:
                return True

    async def _some(self, most: int) -> bytes:
        data = await self.reader.read(most)
        if not data:
            raise asyncio.IncompleteReadError(b"", most)
        return data


CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def post(body: bytes | dict[str, Any], *, fields: bytes = b"", path: bytes = b"/v1/chat/completions") -> bytes:
    """A whole request."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = b"POST %s HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n%s" % (path, fields)
    return b"%sContent-Length: %d\r\n\r\n%s" % (head, len(raw), raw)


def get(path: bytes, *, fields: bytes = b"", method: bytes = b"GET") -> bytes:
    """A whole request without a body."""
    return b"%s %s HTTP/1.1\r\nHost: gateway\r\n%s\r\n" % (method, path, fields)
