"""Faults of the HTTP side: what a request meets instead of, or before, its answer."""

from __future__ import annotations

import asyncio
import math
import socket
import struct

from aiohttp import web

from replicas.error_answers import Handler
from replicas.mock.engine import MockEngine, MockHandle
from replicas.openai_shapes import error_body

_RST = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing resets


def reset_transport(transport: asyncio.Transport) -> None:
    """Close a connection with RST; what was written and not sent yet is lost."""
    if (sock := transport.get_extra_info("socket")) is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
    transport.abort()


def reset(request: web.Request) -> None:
    """Reset a request's connection."""
    if request.transport is not None:
        reset_transport(request.transport)


def end_early(request: web.Request) -> None:
    """Close a request's connection in order, after what was written."""
    if request.transport is not None:
        request.transport.close()


def before_the_answer(engine: MockEngine, handler: Handler) -> Handler:
    """A handler of requests that generate, with the faults that strike before its first byte."""

    async def faulty(request: web.Request) -> web.StreamResponse:
        faults = engine.faults
        if faults.hit("reset") is not None:
            reset(request)
            raise ConnectionResetError("reset on command")
        if faults.hit("hang") is not None:
            await asyncio.Event().wait()  # until the client leaves
        if (status := faults.hit("error")) is not None:
            body = error_body(int(status), "an error on command", code="mock_error")
            return web.Response(status=int(status), body=body, content_type="application/json")
        if (retry_after_s := faults.hit("busy")) is not None:
            refusal = web.Response(status=429, body=error_body(429, "busy on command"), content_type="application/json")
            refusal.headers["Retry-After"] = str(math.ceil(retry_after_s))
            return refusal
        if (wait_s := faults.hit("slow_first_byte")) is not None:
            await asyncio.sleep(wait_s)
        return await handler(request)

    return faulty


def arm(engine: MockEngine, request: web.Request, handle: MockHandle) -> None:
    """Decide whether this answer will be cut, and after how many of its chunks."""
    if (chunks := engine.faults.hit("cut")) is not None:
        handle.cut = (int(chunks), lambda: reset(request))
    elif (chunks := engine.faults.hit("end_early")) is not None:
        handle.cut = (int(chunks), lambda: end_early(request))
