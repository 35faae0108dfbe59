"""TensorRT-LLM's event queue under a test's control: a ring that reading empties, and every way an answer can fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from aiohttp import web

BLOCK = 4
MAIN = 4096  # the window of the main attention


class FakeQueue:
    """Serves `/kv_cache_events` on loopback; comes back on the same port. ring: events kept while nobody asks, per rank."""

    def __init__(self, *, methods: Sequence[str] = ("POST",), ring: int = 1000) -> None:
        self.asked = 0
        self.status = 200
        self.location = ""
        self.raw: bytes | None = None  # what the next answer has instead of events, which are gone then
        self.cut = False  # the next answer breaks off
        self.hung: asyncio.Event | None = None  # answers wait for it
        self.headers: list[dict[str, str]] = []
        self._methods = methods
        self._ring = ring
        self._events: dict[int, list[dict[str, object]]] = {}
        self._ids: dict[int, int] = {}
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/kv_cache_events"

    async def __aenter__(self) -> FakeQueue:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen, as a process with empty caches that has told of its windows."""
        app = web.Application()
        for method in self._methods:
            app.router.add_route(method, "/kv_cache_events", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = int(self._runner.addresses[0][1])

    async def down(self) -> None:
        """End the process."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._events.clear()
        self._ids.clear()

    async def restart(self) -> None:
        """Another process on the same port."""
        await self.down()
        await self.up()

    def tell(self, data: dict[str, object], *, rank: int | None = None, window: int = MAIN) -> int:
        """One event into the ring; returns its number."""
        place = rank or 0
        number = self._ids.get(place, 0)
        self._ids[place] = number + 1
        event = {"event_id": number, "data": data, "window_size": window}
        of_rank = self._events.setdefault(place, [])
        of_rank.append(event | ({"attention_dp_rank": rank} if rank is not None else {}))
        del of_rank[: -self._ring]
        return number

    def skip(self, count: int = 1, rank: int = 0) -> None:
        """Events that nobody will see."""
        self._ids[rank] = self._ids.get(rank, 0) + count

    def steal(self) -> None:
        """Somebody else asks."""
        self._events.clear()

    @property
    def left(self) -> int:
        """Events that were not read yet."""
        return sum(map(len, self._events.values()))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.hung is not None:
            await self.hung.wait()
        if self.status != 200:
            return web.Response(status=self.status, headers={"location": self.location})
        events = [event for _, of_rank in sorted(self._events.items()) for event in of_rank]
        self._events.clear()
        raw, self.raw = self.raw, None
        body = json.dumps(events).encode() if raw is None else raw
        if not self.cut:
            return web.Response(body=body, content_type="application/json")
        self.cut = False
        response = web.StreamResponse(headers={"content-length": str(len(body) + 10)})
        await response.prepare(request)
        await response.write(body)
        assert request.transport is not None
        request.transport.abort()
        return response


def created(blocks: int = 100) -> dict[str, object]:
    """The first event of a process, one for each window."""
    return {"type": "created", "num_blocks_per_cache_level": [blocks, 0]}


def stored(number: int, *, count: int = 1, parent: int | None = None, tokens: int = BLOCK, level: int = 0) -> dict[str, object]:
    """Blocks `number`, `number` + 1 ...: block n has the hash n + 1 and the tokens that `prompt` has there."""
    under = parent if parent is not None else (number or None)
    blocks = [
        {
            **{"type": "stored_block", "block_hash": n + 1, "cache_level": level, "priority": 35},
            "tokens": [{"type": "unique_token", "token_id": 10 * n + i, "token_extra_id": 0} for i in range(tokens)],
        }
        for n in range(number, number + count)
    ]
    return {"type": "stored", "parent_hash": under, "blocks": blocks}


def removed(*numbers: int) -> dict[str, object]:
    """Blocks leave."""
    return {"type": "removed", "block_hashes": [number + 1 for number in numbers]}


def moved(number: int, old: int, new: int) -> dict[str, object]:
    """A block changes its level."""
    return {
        **{"type": "updated", "block_hash": number + 1, "priority": None},
        "cache_level": {"type": "event_diff", "old_value": old, "new_value": new},
    }
