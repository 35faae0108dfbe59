"""A plain reverse proxy in aiohttp: the yardstick of the proxy benchmark. It routes in turn and knows nothing else."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Sequence

import aiohttp
import uvloop
from aiohttp import web

_HOP_BY_HOP = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "trailer", "upgrade"))


class Proxy:
    """Forwards everything to the engines, one after the other."""

    def __init__(self, engines: Sequence[str]) -> None:
        self._next = itertools.cycle(engines)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> int:
        """Listen on a free loopback port; returns it."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self.forward)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        return int(runner.addresses[0][1])

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """One request there and its answer back, as it comes."""
        assert self._session is not None
        fields = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP]
        body = await request.read()
        url = next(self._next) + request.path_qs
        async with self._session.request(request.method, url, headers=fields, data=body) as answer:
            back = [(name, value) for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP]
            if answer.content_length is not None:
                return web.Response(status=answer.status, headers=back, body=await answer.read())
            response = web.StreamResponse(status=answer.status, headers=back)
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response


async def _serve(engines: Sequence[str]) -> None:
    print(await Proxy(engines).start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # clients of a load generator leave in mid-answer
    uvloop.run(_serve(sys.argv[1:]))
