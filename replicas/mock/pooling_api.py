"""Embeddings and ranks of texts: figures that follow from the tokens, computed in no time."""

from __future__ import annotations

import base64
import uuid
from array import array
from hashlib import blake2b

import msgspec
import numpy as np
from aiohttp import web

from replicas.api import parse, token_ids
from replicas.errors import BadRequest, brief
from replicas.mock.engine import MockEngine
from replicas.mock.openai_api import as_json, text_tokens

_DIMENSIONS = 16


class _Embed(msgspec.Struct, frozen=True, kw_only=True):
    input: str | list[object]
    model: str | None = None
    encoding_format: str | None = None


class _Rerank(msgspec.Struct, frozen=True, kw_only=True):
    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = None


class PoolingRoutes:
    """Handlers over one engine."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine

    async def embeddings(self, request: web.Request) -> web.Response:
        """POST /v1/embeddings: of a text, of ids, or of a list of either."""
        body, _ = parse(await request.read(), _Embed)
        self._engine.adapter_of(body.model)
        prompts = self._prompts(body.input)
        data: list[dict[str, object]] = []
        for index, prompt in enumerate(prompts):
            vector = _vector(prompt)
            coded: object = base64.b64encode(vector.tobytes()).decode() if body.encoding_format == "base64" else vector.tolist()
            data.append({"object": "embedding", "index": index, "embedding": coded})
        tokens = sum(map(len, prompts))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return as_json({"object": "list", "data": data, "model": body.model or self._engine.settings.model, "usage": usage})

    async def rerank(self, request: web.Request) -> web.Response:
        """POST /v1/rerank: documents by how near their vectors are to that of the query."""
        body, _ = parse(await request.read(), _Rerank)
        self._engine.adapter_of(body.model)
        query, *documents = (text_tokens(self._engine, text, True) for text in (body.query, *body.documents))
        scores = [float(_vector(document) @ _vector(query)) for document in documents]
        rows = [
            {"index": index, "document": {"text": body.documents[index]}, "relevance_score": scores[index]}
            for index in sorted(range(len(scores)), key=lambda index: -scores[index])
        ]
        tokens = len(query) + sum(map(len, documents))
        return as_json(
            {
                "id": f"rerank-{uuid.uuid4().hex}",
                "model": body.model or self._engine.settings.model,
                "usage": {"total_tokens": tokens},
                "results": rows[: body.top_n],
            }
        )

    def _prompts(self, given: str | list[object]) -> list[array[int]]:
        if isinstance(given, str):
            return [text_tokens(self._engine, given, True)]
        if given and isinstance(given[0], int):
            return [token_ids(given, "input")]
        if not given:
            raise BadRequest("input must not be empty", "input")
        return [self._prompt(one) for one in given]

    def _prompt(self, given: object) -> array[int]:
        if isinstance(given, str):
            return text_tokens(self._engine, given, True)
        if not isinstance(given, list):
            raise BadRequest(f"input holds {brief(given)}, which is neither a text nor ids", "input")
        return token_ids(given, "input")


def _vector(prompt: array[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """float32 [16] of length 1."""
    digest = blake2b(prompt.tobytes(), digest_size=2 * _DIMENSIONS).digest()
    vector = np.frombuffer(digest, np.int16).astype(np.float32)
    return vector / np.float32(np.linalg.norm(vector))
