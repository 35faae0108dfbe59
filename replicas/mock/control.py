"""The control endpoint, `/mock/...` on the engine's own port: faults, restarts, and what the engine really holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from aiohttp import web

from replicas.api import parse
from replicas.errors import BadRequest
from replicas.mock.engine import MockEngine
from replicas.mock.faults import fault_of_json
from replicas.mock.openai_api import as_json
from replicas.mock.pool import hint_of
from replicas.mock.rank import Rank


class _Restart(msgspec.Struct, frozen=True, kw_only=True):
    """http: the HTTP side goes down too. reconnect: subscribers lose their connection. ranks: None for all."""

    http: bool = False
    reconnect: bool = True
    down_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 0.1
    ranks: list[int] | None = None


class _AnyFields(msgspec.Struct, frozen=True):
    """An object whose members are read by name."""


Bounce = Callable[[float], Awaitable[None]]


class Control:
    """Handlers over one engine. bounce: takes the HTTP side down for so many seconds."""

    def __init__(self, engine: MockEngine, bounce: Bounce) -> None:
        self._engine = engine
        self._bounce = bounce
        self._restarting: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    async def show_faults(self, request: web.Request) -> web.Response:
        """GET /mock/faults: what is on, and how often each has hit."""
        faults = self._engine.faults
        return as_json({"on": faults.shown(), "hits": dict(faults.hits)})

    async def set_faults(self, request: web.Request) -> web.Response:
        """POST /mock/faults: {name: null | true | {value, rate, times, rank}}; what is not named stays."""
        _, fields = parse(await request.read(), _AnyFields)
        wanted = {name: fault_of_json(name, given) for name, given in fields.items()}
        for name, fault in wanted.items():
            self._engine.faults.set(name, fault)
        return await self.show_faults(request)

    async def clear_faults(self, request: web.Request) -> web.Response:
        """DELETE /mock/faults: all off."""
        self._engine.faults.clear()
        return await self.show_faults(request)

    async def restart(self, request: web.Request) -> web.Response:
        """POST /mock/restart: a new life begins behind this answer; /mock/state tells its epoch."""
        raw = await request.read()
        body, _ = parse(raw or b"{}", _Restart)
        count = len(self._engine.ranks)
        ranks = range(count) if body.ranks is None else body.ranks
        if any(not 0 <= rank < count for rank in ranks):
            raise BadRequest(f"ranks {body.ranks} are not all below {count}", "ranks")
        if body.http and len(set(ranks)) < count:
            raise BadRequest("the HTTP side goes down with all ranks only", "ranks")
        task = asyncio.create_task(self._restart(body, set(ranks)))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)
        return as_json({"epoch": self._engine.epoch})

    async def _restart(self, body: _Restart, ranks: set[int]) -> None:
        await asyncio.sleep(0)  # the answer goes first
        async with self._one_at_a_time:
            events = self._engine.restart(ranks, reconnect=body.reconnect, down_s=body.down_s)
            if body.http:
                await asyncio.gather(events, self._bounce(body.down_s))
            else:
                await events

    async def state(self, request: web.Request) -> web.Response:
        """GET /mock/state: epoch, requests, and each rank's blocks and counts."""
        engine = self._engine
        return as_json(
            {
                "number": engine.number,
                "epoch": engine.epoch,
                "open_requests": engine.open_requests,
                "ranks": [self._rank_row(rank) for rank in engine.ranks],
            }
        )

    def _rank_row(self, rank: Rank) -> dict[str, object]:
        stream = self._engine.streams[rank.number] if self._engine.streams else None
        return {
            "running": rank.running,
            "waiting": rank.waiting,
            "used_blocks": rank.pool.used_blocks,
            "cached_blocks": rank.pool.idle_cached_blocks,
            "free_blocks": rank.pool.free_blocks,
            "next_seq": stream.next_seq if stream else None,
            "counts": {name: getattr(rank.counts, name) for name in rank.counts.__slots__},
        }

    async def cache(self, request: web.Request) -> web.Response:
        """GET /mock/cache?rank=0: every block that is a hit, each behind the one it follows; and what sparse groups keep."""
        number = request.query.get("rank", "0")
        if not number.isdigit() or int(number) >= len(self._engine.ranks):
            raise BadRequest(f"rank {number!r:.40} is not one of {len(self._engine.ranks)}", "rank")
        pool = self._engine.ranks[int(number)].pool
        blocks = []
        for held in pool.contents():
            hint = hint_of(held.salt)
            row = {"hash": held.name, "parent": held.parent, "tokens": held.tokens.tolist(), "copies": held.copies}
            blocks.append({**row, "adapter": hint.adapter, "salt": hint.salt})
        groups = {str(group.number): group.names() for group in pool.sparse}
        return as_json({"block_tokens": pool.block_tokens, "blocks": blocks, "groups": groups})
