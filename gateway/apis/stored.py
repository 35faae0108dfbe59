"""Responses that engines keep: which replica has which.

A response lives in the engine that made it. Its id is read from the answer as it passes; later requests that name it go to that
replica. What is forgotten here, or was made through another gateway, is looked for: one replica after the other is asked, until
one does not answer 404.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from gateway.stream import Relay

_ID = re.compile(rb'"id"\s*:\s*"([!#-\[\]-~]{1,200})"')  # the first member of that name in the answer, or in its first event
_SEARCHED_BYTES = 4096
_KEPT = 65_536
# /v1/responses/ID, and what can be asked of it
PATH = re.compile(r"/v1/responses/(?P<id>(?!\.\.?(?:/|$))[A-Za-z0-9._:-]{1,200})(?P<of>/cancel|/input_items)?")


class StoredResponses:
    """Response id -> name of the replica that has it, for the last ones made."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._names: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def remember(self, response_id: str, replica: str) -> None:
        """This replica has it."""
        self._names[response_id] = replica
        self._names.move_to_end(response_id)
        if len(self._names) > self._most:
            self._names.popitem(last=False)

    def of(self, response_id: str) -> str | None:
        """Who has it, as far as is known."""
        return self._names.get(response_id)

    def forget_replica(self, replica: str) -> None:
        """It has left the fleet, and what it kept is gone."""
        for response_id in [key for key, name in self._names.items() if name == replica]:
            del self._names[response_id]


class NamingRelay(Relay):
    """Relays an answer and finds its id, which stands in its first bytes."""

    __slots__ = ("_front", "_tell")

    def __init__(self, *arguments: Any, tell: Callable[[str], None], **options: Any) -> None:
        """tell: gets the id, once. All else is that of `Relay`."""
        super().__init__(*arguments, **options)
        self._tell = tell
        self._front: bytes | None = b""

    def feed(self, data: bytes) -> bytes:
        """What to write to the client for one read from the engine."""
        out = super().feed(data)
        if self._front is not None:
            self._search(self._front + out)
        return out

    def _search(self, front: bytes) -> None:
        found = _ID.search(front)
        self._front = None if found is not None or len(front) > _SEARCHED_BYTES else front
        if found is not None:
            self._tell(found[1].decode())
