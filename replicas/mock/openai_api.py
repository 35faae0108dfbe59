"""The OpenAI routes, with the extra fields vLLM, SGLang and our own replicas take: ids, ranks, salts, adapters, request ids."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import web

from gateway.errors import NoTokens
from replicas.answer import answer_stream, answer_whole
from replicas.api import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest, parse, token_ids
from replicas.errors import BadRequest, brief
from replicas.generation import Generation
from replicas.mock.engine import MockEngine
from replicas.mock.faulty_http import arm
from replicas.mock.pool import namespace_of
from replicas.openai_shapes import ChatShape, CompletionShape, FinishReason
from replicas.sampling import Sampling

_SAMPLING = Sampling()  # answers follow from the prompt: nothing is drawn
_RANK_HEADER = "X-Data-Parallel-Rank"


class Chat(ChatRequest, frozen=True, kw_only=True):
    """Body of /v1/chat/completions; `input_ids` is SGLang's name for ids."""

    input_ids: list[int] | None = None
    rid: str | None = None
    request_id: str | None = None
    routed_dp_rank: int | None = None


class Completion(CompletionRequest, frozen=True, kw_only=True):
    """Body of /v1/completions."""

    rid: str | None = None
    request_id: str | None = None
    routed_dp_rank: int | None = None


class OpenAIRoutes:
    """Handlers over one engine. They raise ReplicaErrors; a middleware answers them."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body, fields = parse(await request.read(), Chat)
        given = body.prompt_token_ids if body.prompt_token_ids is not None else body.input_ids
        prompt = token_ids(given, "prompt_token_ids") if given is not None else chat_tokens(self._engine, fields)
        return await self._answer(request, body, (prompt,), body.max_completion_tokens or body.max_tokens)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions; a prompt is text, ids, or a list of either."""
        body, _ = parse(await request.read(), Completion)
        special = body.add_special_tokens is not False
        prompts = [text_tokens(self._engine, one, special) if isinstance(one, str) else one for one in body.prompts()]
        return await self._answer(request, body, prompts, body.max_tokens)

    async def _answer(
        self, request: web.Request, body: Chat | Completion, prompts: Sequence[array[int]], max_tokens: int | None
    ) -> web.StreamResponse:
        engine = self._engine
        if body.n not in (None, 1):
            raise BadRequest(f"n={body.n} is not supported by this engine", "n")
        adapter = engine.adapter_of(body.model)
        limit, reason = length_of(engine, max_tokens, body.min_tokens or 0, body.ignore_eos is True)
        model = adapter or engine.settings.model
        request_id = body.rid or body.request_id or str(request.headers.get("X-Request-Id", ""))
        generation = Generation(
            prompts=tuple(prompts),
            sampling=_SAMPLING,
            max_tokens=limit,
            salt=namespace_of(adapter, checked_salt(body.cache_salt)),
        )
        handle = engine.submit(generation, model, reason, rank=rank_of(request, body.routed_dp_rank), request_id=request_id)
        arm(engine, request, handle)
        shape_of = ChatShape if isinstance(body, Chat) else CompletionShape
        shape = shape_of(model, request_id or None, tells_cached=engine.settings.tells_cached)
        try:
            if body.stream:
                return await answer_stream(request, handle, shape, body.include_usage)
            return await answer_whole(handle, shape)
        finally:  # also when the client left: the handler is cancelled, and the blocks are free at once
            engine.ended(handle)

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize."""
        body, fields = parse(await request.read(), TokenizeRequest)
        if body.messages is not None:
            tokens = chat_tokens(self._engine, fields)
        elif body.prompt is not None:
            tokens = text_tokens(self._engine, body.prompt, body.add_special_tokens is not False)
        else:
            raise BadRequest("prompt or messages must be given", "prompt")
        length = self._engine.settings.context_tokens
        return as_json({"count": len(tokens), "max_model_len": length, "tokens": tokens.tolist()})

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize."""
        body, _ = parse(await request.read(), DetokenizeRequest)
        return as_json({"prompt": self._engine.codec.decode(token_ids(body.tokens, "tokens").tolist())})


def length_of(engine: MockEngine, max_tokens: int | None, min_tokens: int, ignore_eos: bool) -> tuple[int, FinishReason]:
    """How many tokens an answer gets, and how it ends: at its natural length unless the client sets another one."""
    natural = max(engine.settings.answer_tokens, min_tokens)
    if max_tokens is not None and (ignore_eos or max_tokens < natural):
        return max_tokens, "length"
    return natural, "stop"


def rank_of(request: web.Request, in_body: int | None) -> int | None:
    """The rank a request asks for, in a header or its body; a header that is no number says nothing, as in vLLM."""
    header = request.headers.get(_RANK_HEADER, "")
    return int(header) if header.isascii() and header.isdigit() and len(header) < 10 else in_body


def checked_salt(salt: str | None) -> str | None:
    """A cache salt; raises BadRequest for one no engine takes."""
    if salt is not None and "\0" in salt:
        raise BadRequest(f"cache_salt {brief(salt)} must not contain NUL", "cache_salt")
    return salt


def chat_tokens(engine: MockEngine, fields: Mapping[str, object]) -> array[int]:
    """Ids of a chat body; raises BadRequest."""
    try:
        return array("i", engine.codec.chat(fields).tobytes())
    except NoTokens as error:
        raise BadRequest(str(error), "messages") from error


def text_tokens(engine: MockEngine, text: str, special: bool) -> array[int]:
    """Ids of a text; raises BadRequest."""
    try:
        return array("i", engine.codec.text(text, add_special_tokens=special).tobytes())
    except NoTokens as error:
        raise BadRequest(str(error), "prompt") from error


def as_json(value: object) -> web.Response:
    """An answer of JSON."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
