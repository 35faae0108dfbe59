"""The replica's HTTP side: OpenAI routes, vLLM's helpers, health and metrics. `serve` starts and stops it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from gateway.errors import NoTokens
from gateway.tokenize.prompt import Tokenizer
from replicas.answer import answer_stream, answer_whole
from replicas.api import ChatRequest, CompletionRequest, DetokenizeRequest, Request, TokenizeRequest, at_most, parse, token_ids
from replicas.engine import Engine
from replicas.error_answers import errors_in_api_shape
from replicas.errors import BadRequest, EngineStopped, UnknownModel, brief
from replicas.generation import Generation
from replicas.metrics import MetricsPage
from replicas.openai_shapes import ChatShape, CompletionShape, Shape

# A gateway takes bodies of 64 MiB and adds the prompt's ids to them before it sends them on: at 8 bytes for an id in JSON
# another 64 MiB hold 8 million of them, more than any context.
BODY_LIMIT_BYTES = 128 * 1024 * 1024
_INLINE_S = 0.001  # tokenizing that should take longer than this leaves the loop
_COMPLETION_MAX_TOKENS = 16  # the API's default for raw completions; a chat may fill the context


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the replica says about itself. epoch: this life of the process. events, replay: endpoints as bound, None without."""

    model: str
    epoch: str
    started: int  # unix seconds
    events: str | None = None
    replay: str | None = None
    topic: str = ""


class Server:
    """Handlers over one engine.

    open_requests: generations from their tokens to the end of their answer. tokenized_requests: those that came as text.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, identity: Identity) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._identity = identity
        self._metrics = MetricsPage(engine, lambda: self.tokenized_requests)
        self.tokenized_requests = 0
        self.draining = False
        self.open_requests = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def application(self) -> web.Application:
        """The aiohttp application.

        Run it with `handler_cancellation`, or clients that leave are not noticed (FC-49), and without `auto_decompress`, or
        bodies in another encoding are answered before the middleware sees them.
        """
        app = web.Application(client_max_size=BODY_LIMIT_BYTES, middlewares=[errors_in_api_shape])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completion),
                web.get("/v1/models", self.models),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
                web.get("/kv_event_sources", self.kv_event_sources),
                web.get("/server_info", self.server_info),
                web.get("/health", self.health),
                web.get("/metrics", self.metrics),
            ]
        )
        return app

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        raw = await request.read()
        body, fields = parse(raw, ChatRequest)
        self._check(body)
        if body.prompt_token_ids is not None:
            prompt = token_ids(body.prompt_token_ids, "prompt_token_ids")
        else:
            prompt = await self._chat_tokens(fields, len(raw))
            self.tokenized_requests += 1
        room = self._engine.max_model_tokens - len(prompt)
        max_tokens = body.max_completion_tokens or body.max_tokens or max(1, room)
        return await self._generate(request, body, (prompt,), max_tokens, ChatShape(self._identity.model))

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        body, _ = parse(await request.read(), CompletionRequest)
        self._check(body)
        given = body.prompts()
        texts = [one for one in given if isinstance(one, str)]
        encoded = await self._text_tokens(texts, body.add_special_tokens is not False) if texts else []
        prompts = (*encoded, *(one for one in given if not isinstance(one, str)))  # all are texts, or none is
        self.tokenized_requests += bool(texts)
        room = self._engine.max_model_tokens - max(map(len, prompts))
        max_tokens = body.max_tokens or max(1, min(_COMPLETION_MAX_TOKENS, room))
        return await self._generate(request, body, prompts, max_tokens, CompletionShape(self._identity.model))

    async def _generate(
        self, request: web.Request, body: Request, prompts: tuple[array[int], ...], max_tokens: int, shape: Shape
    ) -> web.StreamResponse:
        stop_ids = body.stop_ids()
        handle = self._engine.submit(
            Generation(
                prompts=prompts,
                sampling=body.sampling(),
                max_tokens=max_tokens,
                min_tokens=body.min_tokens or 0,
                stop=body.stop_strings(),
                stop_ids=stop_ids if body.ignore_eos else stop_ids | self._engine.eos_token_ids,
                salt=body.cache_salt,
            )
        )
        self.open_requests += 1
        self.idle.clear()
        try:
            if body.stream:
                return await answer_stream(request, handle, shape, body.include_usage)
            return await answer_whole(handle, shape)
        finally:  # also when the client left: the handler is cancelled, and the engine stops at its next step
            handle.cancel()
            self.open_requests -= 1
            if not self.open_requests:
                self.idle.set()

    def _check(self, body: Request) -> None:
        if self.draining:
            raise EngineStopped("the replica is shutting down")
        if body.model not in (None, "", self._identity.model):
            raise UnknownModel(f"the model {brief(body.model)} does not exist here; this replica serves {self._identity.model!r}")
        body.refuse_unsupported()

    async def _chat_tokens(self, fields: Mapping[str, object], characters: int) -> array[int]:
        (tokens,) = await self._tokens("messages", characters, lambda: [self._tokenizer.chat(fields).tobytes()])
        return tokens

    async def _text_tokens(self, texts: Sequence[str], special: bool) -> list[array[int]]:
        def encode() -> list[bytes]:
            return [self._tokenizer.text(text, add_special_tokens=special).tobytes() for text in texts]

        return await self._tokens("prompt", sum(map(len, texts)), encode)

    async def _tokens(self, param: str, characters: int, encode: Callable[[], list[bytes]]) -> list[array[int]]:
        """Ids from their int32 bytes; long texts are encoded on another thread (the encoder lets go of the interpreter)."""
        try:
            long = self._tokenizer.estimate_s(characters) > _INLINE_S
            return [array("i", one) for one in (await asyncio.to_thread(encode) if long else encode())]
        except NoTokens as error:
            raise BadRequest(str(error), param) from error
        except RecursionError as error:  # templates write tools and arguments out as JSON
            raise BadRequest(f"{param}: nested too deeply", param) from error

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        card = {
            "id": self._identity.model,
            "object": "model",
            "created": self._identity.started,
            "owned_by": "trunkline",
            "max_model_len": self._engine.max_model_tokens,
        }
        return _json({"object": "list", "data": [card]})

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize."""
        raw = await request.read()
        body, fields = parse(raw, TokenizeRequest)
        if body.messages is not None:
            tokens = await self._chat_tokens(fields, len(raw))
        elif body.prompt is not None:
            (tokens,) = await self._text_tokens([body.prompt], body.add_special_tokens is not False)
        else:
            raise BadRequest("prompt or messages must be given", "prompt")
        return _json({"count": len(tokens), "max_model_len": self._engine.max_model_tokens, "tokens": tokens.tolist()})

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize; special tokens are part of the text here."""
        body, _ = parse(await request.read(), DetokenizeRequest)
        at_most(self._engine.max_model_tokens, body.tokens, "tokens")
        if body.tokens and not (min(body.tokens) >= 0 and max(body.tokens) < self._engine.vocab_size):
            raise BadRequest(f"token ids must be within 0..{self._engine.vocab_size - 1}", "tokens")
        return _json({"prompt": self._tokenizer.decode(body.tokens)})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """POST /reset_prefix_cache; refused, with success false, while any block is in use."""
        return _json({"success": await self._engine.reset_prefix_cache()})

    async def kv_event_sources(self, request: web.Request) -> web.Response:
        """GET /kv_event_sources: where to subscribe, by rank; empty when nothing is published."""
        me = self._identity
        if me.events is None:
            return _json({})
        return _json({"0": {"publisher": "zmq", "endpoint": me.events, "replay_endpoint": me.replay, "topic": me.topic}})

    async def server_info(self, request: web.Request) -> web.Response:
        """GET /server_info: what a gateway has to know of this engine."""
        me, settings = self._identity, self._engine.settings
        return _json(
            {
                "dialect": "trunkline",
                "model": me.model,
                "epoch": me.epoch,
                "block_tokens": settings.block_tokens,
                "num_blocks": settings.num_blocks,
                "max_model_len": self._engine.max_model_tokens,
                "max_batch_tokens": settings.max_batch_tokens,
                "max_running": settings.max_running,
                "kv_events_port": _port(me.events),
                "kv_replay_port": _port(me.replay),
            }
        )

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: 200 while requests are taken."""
        if self.draining or not self._engine.alive:
            raise EngineStopped("the replica is shutting down" if self.draining else "the engine is not running")
        return _json({"status": "ok"})

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics."""
        return web.Response(body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _port(endpoint: str | None) -> int | None:
    tail = (endpoint or "").rpartition(":")[2]
    return int(tail) if tail.isdigit() else None
