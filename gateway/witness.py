"""Who is told of every request when it is placed and when it ends: a recording, a log, or nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.choose.types import Receipt
from gateway.request import Intent, Prompt
from radix.namespace import Namespace


class Witness(Protocol):
    """Called on the loop, between a request and its engine: what takes time goes elsewhere."""

    def placed(self, request_id: str, intent: Intent, prompt: Prompt, namespace: Namespace) -> None:
        """A request was given to a replica for the first time."""

    def closed(self, receipt: Receipt) -> None:
        """It ended, however it did."""


class Witnesses:
    """Tells each of several; none is the usual case."""

    def __init__(self, each: Sequence[Witness] = ()) -> None:
        self._each = each

    def placed(self, request_id: str, intent: Intent, prompt: Prompt, namespace: Namespace) -> None:
        """See `Witness`."""
        for one in self._each:
            one.placed(request_id, intent, prompt, namespace)

    def closed(self, receipt: Receipt) -> None:
        """See `Witness`."""
        for one in self._each:
            one.closed(receipt)


NOBODY = Witnesses()
