"""What a client is told when a request fails before the head of its answer is out: an error body of the API, whatever it was."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from replicas.errors import BadRequest, EngineStopped, ReplicaError, UnknownModel, brief
from replicas.openai_shapes import error_body

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors_in_api_shape(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error of a handler into an answer; those in the middle of a stream are the stream's to tell."""
    try:
        _refuse_encoded(request)
        return await handler(request)
    except web.HTTPException as error:  # no such route, wrong method, body too large
        refusal = _answer(error.status, error.text or error.reason)
        refusal.headers.update({name: error.headers[name] for name in ("Allow",) if name in error.headers})
        return refusal
    except RequestPayloadError as error:
        return _answer(400, f"the body cannot be read: {error}")
    except ReplicaError as error:
        return _refusal(error)
    except ConnectionError:
        raise  # the client is gone, and nobody is there to be told
    except Exception:
        log.exception("request failed method=%s path=%s", request.method, request.path)
        return _answer(500, "the replica failed on this request; its log says why")


def _refuse_encoded(request: web.Request) -> None:
    """Bodies are taken as they are, so that none can be larger than it looks."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise BadRequest(f"Content-Encoding {brief(encoding)} is not supported; send the body as plain JSON")


def _refusal(error: ReplicaError) -> web.Response:
    if isinstance(error, BadRequest):
        return _answer(400, str(error), error.param)
    if isinstance(error, UnknownModel):
        return _answer(404, str(error), "model", "model_not_found")
    if isinstance(error, EngineStopped):
        refusal = _answer(503, str(error))
        refusal.headers["Retry-After"] = "1"
        refusal.force_close()
        return refusal
    return _answer(500, str(error))


def _answer(status: int, message: str, param: str | None = None, code: str | None = None) -> web.Response:
    return web.Response(status=status, body=error_body(status, message, param, code), content_type="application/json")
