"""Ask one engine over HTTP: bounded answers, no redirects, its own key only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import orjson

from gateway.fleet import Replica

_ANSWER_BYTES = 4 << 20
_TOTAL_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An answer read whole. skew_s: by which the engine's `Date` is ahead of ours, None without one; to within skew_error_s."""

    status: int
    body: bytes
    skew_s: float | None = None
    skew_error_s: float = 0.0

    def json(self) -> Any:
        """The body as JSON, None where it is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


class EngineClient:
    """Asks one replica. Every call raises aiohttp.ClientError, TimeoutError or ValueError."""

    def __init__(self, session: aiohttp.ClientSession, replica: Replica) -> None:
        self._session = session
        self._replica = replica

    async def get(self, path: str) -> EngineAnswer:
        """GET."""
        return await self._ask("GET", path, None, {})

    async def post(self, path: str, fields: dict[str, Any], headers: dict[str, str] | None = None) -> EngineAnswer:
        """POST of JSON."""
        return await self._ask("POST", path, orjson.dumps(fields), {"content-type": "application/json", **(headers or {})})

    async def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> EngineAnswer:
        replica = self._replica
        if replica.api_key:
            headers["authorization"] = f"Bearer {replica.api_key}"
        limit = aiohttp.ClientTimeout(total=_TOTAL_S)
        url = replica.address.url + path
        began = time.time()
        async with self._session.request(
            method, url, data=body, headers=headers, timeout=limit, allow_redirects=False
        ) as response:
            arrived = time.time()
            content = bytearray()
            async for piece in response.content.iter_any():
                content += piece
                if len(content) > _ANSWER_BYTES:
                    raise ValueError(f"{path} answered more than {_ANSWER_BYTES} bytes")
            skew_s = _ahead(response.headers.get("date"), (began + arrived) / 2)
            # A Date has whole seconds: half of one either way, and where between question and answer it was made.
            return EngineAnswer(response.status, bytes(content), skew_s, 0.5 + (arrived - began) / 2)


def _ahead(date: str | None, now: float) -> float | None:
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() + 0.5 - now
    except ValueError:
        return None
