"""Many open streams at once, and what they cost the gateway in memory; one JSON line at the end.

    python -m benchmarks.open_streams --url http://127.0.0.1:8080 --pid 4711 --counts 500,5000

Each stream gets an event every few seconds. At each count all streams stay open while the memory is read: that of the process and
its children, and that of those among them that hold the streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.processes import descriptors, members, rss_mib

_GAP_MS = 4000
_OPEN_PER_S = 1000
_FIRST_EVENT_S = 30.0
_SETTLE_S = 2.0
_HOLDS_STREAMS = 400  # open descriptors


class Stream(asyncio.Protocol):
    """One request whose events are counted and thrown away."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._head = b""
        self.known: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # its first event has come, or never will
        self.begun = self.refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.begun:
            self._head += data
            self.refused = not self._head.startswith(b"HTTP/1.1 200")
            self.begun = b"data:" in self._head
        self._tell()

    def connection_lost(self, error: Exception | None) -> None:
        self.refused = True
        self._tell()

    def _tell(self) -> None:
        if (self.begun or self.refused) and not self.known.done():
            self.known.set_result(None)


async def measure(host: str, port: int, pid: int, counts: list[int]) -> dict[str, Any]:
    """Open streams up to each count in turn, and read the memory there."""
    events = max(64, int(4 * (sum(counts) / _OPEN_PER_S + _FIRST_EVENT_S + _SETTLE_S) * 1000 / _GAP_MS))
    body = json.dumps(
        {
            "model": "mock",
            "messages": [{"role": "user", "content": "hold"}],
            "max_tokens": events,
            "seed": _GAP_MS,
            "stream": True,
        }
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    steps: list[dict[str, Any]] = [{"streams": 0, "refused": 0, "rss_mib": rss_mib(pid)}]
    streams: list[Stream] = []
    loop = asyncio.get_running_loop()
    for count in counts:
        while len(streams) < count:
            _, stream = await loop.create_connection(lambda: Stream(request), host, port)
            streams.append(stream)
            await asyncio.sleep(1 / _OPEN_PER_S)
        await asyncio.wait([stream.known for stream in streams], timeout=_FIRST_EVENT_S)
        await asyncio.sleep(_SETTLE_S)
        running = sum(stream.begun and not stream.refused for stream in streams)
        holders = [rss_mib(one, alone=True) for one in members(pid) if descriptors(one) > _HOLDS_STREAMS]
        steps.append({"streams": running, "refused": count - running, "rss_mib": rss_mib(pid), "holders_rss_mib": holders})
    for stream in streams:
        stream.transport.abort()
    return {"steps": steps}


def main() -> int:
    """Entry point of `python -m benchmarks.open_streams`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--counts", default="500,5000")
    args = parser.parse_args()
    url = urlsplit(args.url)
    counts = [int(count) for count in args.counts.split(",")]
    print(json.dumps(uvloop.run(measure(str(url.hostname), int(url.port or 80), args.pid, counts))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
