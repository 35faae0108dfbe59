"""Ask a running gateway's control plane, for commands; complaints name the URL and say whose fault it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from gateway.errors import GatewayError

CONTROL_URL = "http://127.0.0.1:8081"
_TOTAL_S = 120.0


class Unanswered(GatewayError):
    """The control plane cannot be asked, or refused. wrong_use: because of what was asked."""

    def __init__(self, message: str, *, wrong_use: bool = False) -> None:
        super().__init__(message)
        self.wrong_use = wrong_use


async def ask(
    url: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    session: aiohttp.ClientSession | None = None,
) -> bytes:
    """What the control plane at `url` answers to a GET, or to a POST of `body`; raises Unanswered."""
    where = url.rstrip("/") + path
    if session is None:
        async with aiohttp.ClientSession() as own:
            return await ask(url, path, body=body, headers=headers, session=own)
    try:
        limit = aiohttp.ClientTimeout(total=_TOTAL_S)
        method = "GET" if body is None else "POST"
        async with session.request(method, where, data=body, headers=headers, allow_redirects=False, timeout=limit) as answer:
            content = await answer.read()
            if answer.status != 200:
                raise Unanswered(f"{where}: {message_of(content) or f'status {answer.status}'}", wrong_use=answer.status < 500)
            return content
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise Unanswered(f"cannot ask {where}: {str(error) or type(error).__name__}") from error


async def ask_json(url: str, path: str, **how: Any) -> Any:
    """The same, as JSON."""
    content = await ask(url, path, **how)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Unanswered(f"{url}{path} did not answer with JSON: is this a gateway's control plane?") from error


def message_of(body: bytes) -> str:
    """What an error's body says; nothing where it says nothing."""
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
