"""Follow one event queue and report what it says; the view of nobody is changed by it, but the queue is emptied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from events.decode.announced import Message
from events.decode.polled import PolledReader
from events.endpoints import queue_url
from events.errors import DecodeError, PollError
from events.http_queue import EventQueue
from events.tail import Note

_PAUSE_S = 0.1
_FAILING_PAUSE_S = 1.0


class PolledTail:
    """Follows until cancelled or `count` messages came, one for each rank of an answer."""

    def __init__(self, endpoint: str, tell: Callable[[Message | Note], None], *, count: int | None = None) -> None:
        """Raises EndpointError when the endpoint cannot be one."""
        self._url = queue_url(endpoint)
        self._tell = tell
        self._left = count
        self._reader = PolledReader()
        self._complaint = ""  # the newest; said once while it stays the same

    async def run(self) -> None:
        """Ask until enough came."""
        self._tell(Note("polling empties the engine's queue: whoever else reads it misses what is shown here"))
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            queue = EventQueue(session, self._url)
            while self._left is None or self._left > 0:
                try:
                    messages = self._reader.read(await queue.take())
                except (PollError, DecodeError) as error:
                    self._complain(str(error))
                    await asyncio.sleep(_FAILING_PAUSE_S)
                    continue
                self._complaint = ""
                for message in messages:
                    self._heard(message)
                if not messages:
                    await asyncio.sleep(_PAUSE_S)

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            self._tell(Note(text))

    def _heard(self, message: Message) -> None:
        if self._left is not None:
            if not self._left:
                return
            self._left -= 1
        self._tell(message)
