"""An HTTP engine of raw bytes: it reads requests properly and answers whatever its script writes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

Script = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """One request an engine received, and the wire its answer goes on."""

    head: bytes
    body: bytes
    connection: int  # which of the engine's connections, counted from 1
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)

    @property
    def request_line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """Header fields in order, names in lower case."""
        lines = self.head.split(b"\r\n")[1:]
        return [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines if line)]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]

    async def send(self, *pieces: bytes) -> None:
        """Write each piece in its own turn of the loop."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    def close(self) -> None:
        """Close in order (FIN)."""
        self.writer.close()

    def reset(self) -> None:
        """Close with RST."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def left(self, within_s: float = 1.0) -> bool:
        """Whether the gateway closes this connection within the time."""
        try:
            return await asyncio.wait_for(self.reader.read(1), within_s) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


class FakeEngine:
    """A loopback engine; use as an async context manager. calls: every request received, in order.

    reads_bodies: False leaves a request's body unread, for engines that answer before they have seen it.
    """

    def __init__(self, script: Script, *, reads_bodies: bool = True, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.script = script
        self.reads_bodies = reads_bodies
        self.calls: list[Call] = []
        self.connections = 0
        self.open = 0
        self.errors: list[BaseException] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FakeEngine:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**16, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop_listening(self) -> None:
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        try:
            await self._serve(reader, writer, self.connections)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except RuntimeError as error:
            if "closed" not in str(error):  # uvloop's word for a write after the other side has gone
                self.errors.append(error)
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.open -= 1
            self._tasks.discard(task)
            with suppress(Exception):
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
            lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths and self.reads_bodies else b""
            call = Call(head, body, number, reader, writer)
            self.calls.append(call)
            await self.script(call)


def answer(body: bytes, status: bytes = b"200 OK", fields: bytes = b"content-type: application/json\r\n") -> bytes:
    """A whole answer with a length."""
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, fields, len(body), body)


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(text: str) -> bytes:
    """One chat chunk with that text."""
    return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text.encode()


def usage_event(prompt: int, completion: int, cached: int) -> bytes:
    """The usage-only chunk engines send last when asked."""
    return (
        b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d}}}\n\n' % (prompt, completion, prompt + completion, cached)
    )


def stream(events: Sequence[bytes]) -> bytes:
    """A whole chunked stream, one chunk per event, with its end."""
    return STREAM_HEAD + b"".join(chunk(item) for item in events) + END


def always(*pieces: bytes) -> Script:
    """A script that answers every request with the same pieces."""

    async def script(call: Call) -> None:
        await call.send(*pieces)

    return script
