"""What the index holds, for people: its sizes, its holders, and their blocks.

By default only the shape is shown: hashes and tokens are prompts, or lead to them, so they need the admin token. Salts keep
tenants apart and are never shown. A holder's blocks are read in one go, since the index may change as soon as the loop is given
back; `limit` and a time bound how much that is. A digest costs a look at all blocks of its holder, so it has to be asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import orjson
from aiohttp import web

from gateway.control.admin import Admin
from gateway.control.query import BadQuery, only, switch, whole_number
from gateway.control.show import index_row
from gateway.fleet import Replica
from gateway.followed import FollowedViews
from gateway.place import FleetPlacer
from radix.dump import HeldBlock
from radix.index import Index

Row = dict[str, Any]

_USUAL_BLOCKS, _MOST_BLOCKS = 1000, 100_000
_MOST_RANKS = 1024
_CUT_S = 0.1  # as long as requests may be held up by one holder's blocks


class IndexRoutes:
    """`/index/stats` and `/index/dump`."""

    def __init__(
        self, placer: FleetPlacer, views: FollowedViews, admin: Admin, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = placer.fleet
        self._index = placer.index
        self._own = placer.index if isinstance(placer.index, Index) else None  # else only its index process knows the blocks
        self._views = views
        self._admin = admin
        self._clock = clock

    async def stats(self, request: web.Request) -> web.Response:
        """Sizes of the index, and one row for each holder; `?digest=1` with the digest of its view."""
        only(request, "digest")
        digest = switch(request, "digest")
        rows = []
        for holder, replica, rank in self._holders(None, None):
            if self._own is not None and self._is(holder, replica, rank):
                rows.append(self._holder_row(self._own, holder, replica, rank, digest=digest))
                await asyncio.sleep(0)  # a digest takes its time
        answer = index_row(self._index.stats()) | {"by_holder": rows}
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    async def dump(self, request: web.Request) -> web.StreamResponse:
        """JSON lines: for each holder one of its own and then one per block; the last line says how many and whether that is all.

        `?replica=`, `?rank=`, `?limit=` (blocks), `?digest=1`, `?tokens=1` (with the admin token).
        """
        only(request, "replica", "rank", "limit", "digest", "tokens")
        limit = whole_number(request, "limit", _USUAL_BLOCKS, least=0, most=_MOST_BLOCKS)
        rank = whole_number(request, "rank", 0, least=0, most=_MOST_RANKS) if "rank" in request.query else None
        digest, tokens = switch(request, "digest"), switch(request, "tokens")
        holders = self._holders(request.query.get("replica"), rank)
        if tokens and (refused := self._admin.refuse(request)):
            return refused
        if self._own is None:
            raise BadQuery("a worker does not know the blocks, its index process does", "replica", 404)
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        await response.prepare(request)
        shown, more = 0, False
        for holder, replica, number in holders:
            if self._is(holder, replica, number):
                rows, rest = self._cut(self._own.dump(holder), limit - shown, tokens=tokens)
                head = self._holder_row(self._own, holder, replica, number, digest=digest)
                shown, more = shown + len(rows), more or rest
                await response.write(_lines([head, *rows]))
        await response.write(_lines([{"kind": "end", "shown": shown, "more": more}]))
        await response.write_eof()
        return response

    def _holders(self, name: str | None, rank: int | None) -> list[tuple[int, Replica, int]]:
        """(holder, replica, rank) of those asked for; raises BadQuery where there is none."""
        if name is not None and name not in self._fleet.replicas:
            raise BadQuery(f"no replica is called {name!r:.80}", "replica", 404)
        found = [
            (holder, replica, number)
            for holder, (replica, number) in self._fleet.by_holder.items()
            if name in (None, replica.name) and rank in (None, number)
        ]
        if rank is not None and not found:
            raise BadQuery(f"no replica asked for has a rank {rank}", "rank", 404)
        return found

    def _is(self, holder: int, replica: Replica, rank: int) -> bool:
        """Whether a number still means the same; others may have changed the fleet meanwhile."""
        return self._fleet.by_holder.get(holder) == (replica, rank)

    def _holder_row(self, index: Index, holder: int, replica: Replica, rank: int, *, digest: bool) -> Row:
        """blocks: with a place; trimmed: given up for the byte budget. The counts are None where no events are followed."""
        stream = self._views.stream(holder)
        counts = stream.counts if stream is not None else None
        return {
            "kind": "holder",
            "replica": replica.name,
            "rank": rank,
            "freshness": self._fleet.view.freshness[holder].value,
            "connected": stream is not None and stream.connected,
            "block_tokens": index.block_tokens(holder),
            "blocks": index.blocks(holder),
            "trimmed": index.trimmed(holder),
            "batches": counts.batches if counts is not None else None,
            "restarts": counts.restarts if counts is not None else None,
            "gaps": counts.gaps if counts is not None else None,
            "digest": index.digest(holder).hex() if digest else None,
        }

    def _cut(self, blocks: Iterator[HeldBlock], limit: int, *, tokens: bool) -> tuple[list[Row], bool]:
        """At most `limit` rows, and whether there would be more."""
        rows: list[Row] = []
        until = self._clock() + _CUT_S
        for block in blocks:
            if len(rows) == limit or self._clock() > until:
                return rows, True
            rows.append(_block_row(block, tokens=tokens))
        return rows, False


def _block_row(block: HeldBlock, *, tokens: bool) -> Row:
    """One block. depth: tokens from the prompt's start to its end, None where it has no place. tokens: its own ones only."""
    namespace = block.namespace
    row = {
        "kind": "block",
        "tier": block.tier.name.lower(),
        "group": block.group,
        "depth": len(block.path) // 4 if block.block_tokens else None,
        "block_tokens": block.block_tokens,
        "copies": block.copies,
        "adapter": namespace.adapter,
        "salted": namespace.salt is not None,
        "images": len(namespace.media),
    }
    if tokens:
        row["hash"] = f"{block.hash:016x}"
        row["tokens"] = np.frombuffer(block.path, np.int32)[-block.block_tokens :].tolist() if block.block_tokens else []
    return row


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
