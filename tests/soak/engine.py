"""One replica of the soak: it answers health checks and completions, announces its cache, and lives a troubled life."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
import zmq.asyncio
from aiohttp import web

from events.encode import encode
from radix import Event, Removed, Stored, Tier
from tests.fakes.wire import CLEARED, as_array, batch, removed, stored
from tests.soak.cache import Cache
from tests.soak.prompts import Prompts
from tests.soak.rank import RankSockets, Trouble

MODEL = "soak"
_MEDIUM = {Tier.DEVICE: "GPU", Tier.HOST: "CPU"}


@dataclass(frozen=True, slots=True)
class Style:
    """How an engine behaves. arrays: older events. discovered: it tells where its events are, else that is configured."""

    counting: bool
    arrays: bool
    block_tokens: int
    buffer: int
    discovered: bool


@dataclass(frozen=True, slots=True)
class Pace:
    """batches_per_s: of a rank. faults: multiplies how often things go wrong. The rest: how likely each is, per batch."""

    batches_per_s: float = 8.0
    faults: float = 1.0
    gentle: bool = False  # replays are late, but always answered and whole
    clear: float = 0.002
    hole: float = 0.10
    copy: float = 0.05
    restart: float = 0.0008
    blink: float = 0.0008

    def trouble(self) -> Trouble:
        """Of the network, while the engine lives this life."""
        if self.gentle:
            return Trouble(lost=0.01 * self.faults, slow=0.2)
        return Trouble(0.01 * self.faults, 0.0003 * self.faults, slow=0.2, unanswered=0.02, torn=0.02)


class Engine:
    """One replica with one rank. `start`, then `live` until cancelled; `stop` at the end."""

    def __init__(self, name: str, style: Style, seed: int, context: zmq.asyncio.Context) -> None:
        self.name = name
        self.style = style
        self.counts: Counter[str] = Counter()
        self._random = Random(seed)
        self._prompts = Prompts(seed)
        self._sockets = RankSockets(context, self._random, buffer=style.buffer, topic=f"kv@{name}")
        self._changing = asyncio.Lock()  # a change of the cache and its batch belong together
        self._port = 0
        self._server: asyncio.Server | None = None
        self._http: web.Server[web.BaseRequest] | None = None
        self._cache = self._empty()

    async def start(self, history: int) -> None:
        """Come up with `history` batches behind it."""
        await self._sockets.up()
        await self._listen()
        for _ in range(history):  # short ones: a gateway that starts holds all replays in memory at once
            tokens = self._random.choices(range(7, 270), k=self.style.block_tokens + 1)
            self._sockets.keep(self._payload(self._cache.prompt(tokens, None)[0]))

    async def stop(self) -> None:
        """Close all sockets."""
        await self._sockets.down()
        await self._hang_up()

    def settings(self) -> dict[str, Any]:
        """What a gateway is told about it."""
        told: dict[str, Any] = {"name": self.name, "url": f"http://127.0.0.1:{self._port}"}
        if not self.style.discovered:
            told |= {"events": self._sockets.events, "replay": self._sockets.replay, "topic": f"kv@{self.name}"}
        return told

    async def live(self, pace: Pace, first: str = "") -> None:
        """Change and announce, restart and blink; cancelled only between two changes. first: what surely happens."""
        self._sockets.trouble = pace.trouble()
        try:
            while True:
                await asyncio.sleep(self._random.expovariate(pace.batches_per_s))
                await asyncio.shield(asyncio.create_task(self._step(pace, first)))
                first = ""
        finally:
            async with self._changing:
                self._sockets.trouble = Trouble()

    async def settle(self) -> None:
        """One more batch that gets through, so that whoever missed something notices."""
        async with self._changing:
            await self._publish(self._change(Pace(clear=0.0)))

    async def truth(self) -> dict[str, Any]:
        """The view a gateway should have. whole: a replay has all there was."""
        async with self._changing:
            rows = self._cache.rows()
            return {"digest": self._cache.digest().hex(), "blocks": len(rows), "whole": self._sockets.whole, "rows": rows}

    async def _step(self, pace: Pace, fault: str) -> None:
        async with self._changing:
            chance = self._random.random() / pace.faults
            if fault == "restart" or chance < pace.restart:
                await self._restart()
            elif fault == "blink" or chance < pace.restart + pace.blink:
                self.counts["blinks"] += 1
                await self._sockets.blink()
            await self._publish(self._change(pace))

    def _change(self, pace: Pace) -> list[Event]:
        chance = self._random.random()
        if chance < pace.clear:
            return self._cache.clear()
        if chance < pace.clear + pace.hole:
            return self._cache.lose_one()
        prompt = self._prompts.draw()
        return self._cache.prompt(prompt.tokens, prompt.salt, use_cache=self._random.random() >= pace.copy)[0]

    async def _publish(self, events: Sequence[Event]) -> None:
        if not events:
            return
        self.counts["batches"] += 1
        self.counts["stored"] += sum(len(event.hashes) for event in events if isinstance(event, Stored))
        self.counts["removed"] += sum(len(event.hashes) for event in events if isinstance(event, Removed))
        self.counts["lost"] += not await self._sockets.send(self._payload(events))

    def _payload(self, events: Sequence[Event]) -> bytes:
        if not self.style.arrays:
            return encode(events, ts=time.time(), rank=0)
        return batch(*(as_array(fields_of(event)) for event in events), ts=time.time())

    async def _restart(self) -> None:
        """The process ends, and after a moment another one answers in its place."""
        self.counts["restarts"] += 1
        await self._sockets.down()
        await self._hang_up()
        self._cache = self._empty()
        await asyncio.sleep(self._random.uniform(0.05, 2.0))
        await self._sockets.up()
        await self._listen()

    def _empty(self) -> Cache:
        style = self.style
        life = f"{self.name} {self._random.random()}"  # another process has other hashes
        return Cache(life, self._random, capacity=500, block_tokens=style.block_tokens, counting=style.counting)

    async def _listen(self) -> None:
        self._http = web.Server(self._answer)
        self._server = await asyncio.get_running_loop().create_server(self._http, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _hang_up(self) -> None:
        assert self._server is not None
        assert self._http is not None
        self._server.close()
        await self._http.shutdown(0.001)  # open answers are cut, as by a crash; 0 would wait for them

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/health":
            return web.json_response({})
        if request.path == "/v1/models":
            owner = "vllm" if self.style.counting else "sglang"
            return web.json_response({"data": [{"id": MODEL, "owned_by": owner}]})
        if request.path == "/kv_event_sources" and self.style.discovered:
            sockets = self._sockets
            source = {"endpoint": sockets.events, "replay_endpoint": sockets.replay, "topic": f"kv@{self.name}"}
            return web.json_response({"0": source})
        if request.path == "/v1/completions":
            return await self._complete(request)
        return web.json_response({}, status=404)

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        async with self._changing:
            events, cached = self._cache.prompt(body["prompt"], body.get("cache_salt"))
            await self._publish(events)
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if not body.get("stream"):
            return web.json_response({"object": "text_completion", "choices": [{"text": "four"}], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(4):
            await response.write(b'data: {"choices":[{"text":"t"}]}\n\n')
            await asyncio.sleep(self._random.uniform(0.0, 0.05))
        await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        await response.write_eof()
        return response


def fields_of(event: Event) -> dict[str, object]:
    """An event as older engines write it, made without our own encoder."""
    match event:
        case Stored():
            hint = event.namespace_hint
            more: dict[str, object] = {"medium": _MEDIUM[event.tier]}
            if hint.salt:
                more["extra_keys"] = [[hint.salt]] + [None] * (len(event.hashes) - 1)
            return stored(event.hashes, event.parent, event.tokens.tolist(), event.block_tokens, **more)
        case Removed():
            return removed(*event.hashes, medium=_MEDIUM[event.tier])
        case _:
            return CLEARED


def style_of(number: int) -> Style:
    """Every engine is a little different; the same number is always the same."""
    return Style(
        counting=number % 4 != 3,
        arrays=number % 3 == 1,
        block_tokens=(16, 16, 32, 8)[number % 4],
        buffer=300 if number % 16 == 7 else 10_000,
        discovered=number % 2 == 0,
    )


def totals(engines: Sequence[Engine]) -> dict[str, int]:
    """What all of them did so far."""
    return dict(sum((engine.counts for engine in engines), Counter()))
