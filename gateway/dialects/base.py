"""What a dialect answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from radix.match import Int32Array

if TYPE_CHECKING:
    from gateway.request import Intent


class Dialect(Protocol):
    """One engine's way: how tokens travel, what it can be asked. Stateless."""

    name: str
    takes_tokens: bool  # ids go into the request, so that the engine does not tokenize again
    reports_usage_on_request: bool  # it knows `stream_options.include_usage`

    def members(self, intent: Intent, tokens: Int32Array | None) -> tuple[bytes, ...]:
        """JSON members (`"key":value`) to put in front of the client's own, which stay as they came (FC-40)."""
        ...
