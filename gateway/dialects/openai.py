"""Any OpenAI-compatible engine: the body goes as it came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radix.match import Int32Array

if TYPE_CHECKING:
    from gateway.request import Intent


class OpenAI:
    """No tokens. Counts of a stream are asked for the way the API provides."""

    name = "openai"
    takes_tokens = False
    reports_usage_on_request = True

    def members(self, intent: Intent, tokens: Int32Array | None) -> tuple[bytes, ...]:
        """None."""
        return ()
