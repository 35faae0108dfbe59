"""Send one request's outputs to its client, as a stream or in one piece."""

from __future__ import annotations

import logging

from aiohttp import web

from replicas.errors import ReplicaError
from replicas.generation import Output, RequestHandle
from replicas.openai_shapes import DONE, Choice, FinishReason, Shape, Usage, error_event

log = logging.getLogger(__name__)

CACHED_TOKENS_HEADER = "x-trunkline-cached-tokens"


async def answer_whole(handle: RequestHandle, shape: Shape) -> web.Response:
    """Wait for all of it; raises the engine's error."""
    count = len(handle.generation.prompts)
    texts: list[list[str]] = [[] for _ in range(count)]
    reasons: list[FinishReason] = ["length"] * count
    async for output in handle:
        texts[output.index].append(output.text)
        reasons[output.index] = output.finish_reason or "length"
    choices = [Choice("".join(pieces), reason) for pieces, reason in zip(texts, reasons, strict=True)]
    return web.Response(
        body=shape.whole(choices, usage_of(handle)),
        content_type="application/json",
        headers={CACHED_TOKENS_HEADER: str(handle.cached_tokens)},
    )


async def answer_stream(request: web.Request, handle: RequestHandle, shape: Shape, include_usage: bool) -> web.StreamResponse:
    """Send server-sent events, each in one write. The head waits for the first token, so that a refusal still has its status.

    A client that left ends it quietly; the caller cancels the handle.
    """
    first = await anext(handle)
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    if len(handle.generation.prompts) == 1:  # with several, the others are not known yet
        headers[CACHED_TOKENS_HEADER] = str(handle.cached_tokens)
    response = web.StreamResponse(headers=headers)
    try:
        await response.prepare(request)
        try:
            await _send(response, shape, first)
            async for output in handle:
                await _send(response, shape, output)
        except ReplicaError as error:
            await break_off(request, response, str(error))
        except ConnectionError:
            raise
        except Exception:  # the head is out: no status can say it any more
            log.exception("stream failed")
            await break_off(request, response, "the replica failed on this request; its log says why")
        else:
            if include_usage:
                await response.write(shape.usage(usage_of(handle)))
            await response.write(DONE)
    except ConnectionError:
        pass  # the client is gone; aiohttp cancels handlers on a lost connection, but a write can notice first
    return response


def usage_of(handle: RequestHandle) -> Usage:
    """The token counts so far."""
    return Usage(handle.prompt_tokens, handle.completion_tokens, handle.cached_tokens)


async def _send(response: web.StreamResponse, shape: Shape, output: Output) -> None:
    if output.generated == 1 and (opening := shape.opening(output.index)) is not None:
        await response.write(opening)
    if output.text:
        await response.write(shape.delta(output.index, output.text))
    if output.finish_reason is not None:
        await response.write(shape.closing(output.index, output.finish_reason))


async def break_off(request: web.Request, response: web.StreamResponse, message: str) -> None:
    """Say what happened in a stream, then close without the end marker, so that nobody takes the text for complete."""
    await response.write(error_event(500, message))
    if request.transport is not None:
        request.transport.close()
