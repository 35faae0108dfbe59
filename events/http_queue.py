"""TensorRT-LLM's event queue over HTTP: an answer tells what happened since the last one, and whoever asks empties the queue."""

from __future__ import annotations

import ssl

import aiohttp

from events.decode.polled import MAX_ANSWER_BYTES
from events.errors import LostAnswer, PollError

_PIECE_BYTES = 256 * 1024
_METHODS = ("POST", "GET")  # all versions know the first, newer ones both


class EventQueue:
    """Asks one engine. timeout_s: for a whole answer; engines may wait two seconds for something to tell."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        timeout_s: float = 10.0,
        limit_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """tls: instead of the system's trust, for https. server_name: what the certificate must name, None for the URL's host."""
        self.url = url
        self._session = session
        # A compressed answer is a small one that becomes a large one.
        self._headers = {"accept-encoding": "identity"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._limit_bytes = limit_bytes
        self._tls = tls if tls is not None else True
        self._server_name = server_name
        self._method = 0

    async def take(self) -> bytes:
        """One answer; raises PollError, and LostAnswer once it had begun."""
        method = _METHODS[self._method]
        try:
            async with self._session.request(
                method,
                self.url,
                headers=self._headers,
                timeout=self._timeout,
                allow_redirects=False,
                ssl=self._tls,
                server_hostname=self._server_name,
            ) as answer:
                if answer.status != 200:
                    if answer.status in (404, 405):
                        self._method = 1 - self._method
                    raise PollError(f"{method} {self.url} answered {answer.status}")
                return await self._body(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PollError(f"{method} {self.url}: {type(error).__name__} {error}") from error

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        try:
            while piece := await answer.content.read(_PIECE_BYTES):
                body += piece
                if len(body) > self._limit_bytes:
                    raise LostAnswer(f"{self.url} answered more than {self._limit_bytes} bytes")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise LostAnswer(f"{self.url} broke off after {len(body)} bytes: {type(error).__name__} {error}") from error
        return bytes(body)
