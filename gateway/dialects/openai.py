"""Any OpenAI-compatible engine: the body goes as it came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.dialects.base import NO_EDITS, Edits, dp_rank_line
from radix.match import Int32Array

if TYPE_CHECKING:
    from gateway.request import Intent


class OpenAI:
    """No tokens. Counts of a stream are asked for the way the API provides."""

    name = "openai"
    reports_usage_on_request = True
    proves_ids = False

    def edits(self, intent: Intent, tokens: Int32Array | None, name: str, rank: int | None) -> Edits:
        """None."""
        return NO_EDITS

    def rank_line(self, rank: int) -> bytes:
        """As engines in general have it; who does not know it passes over it."""
        return dp_rank_line(rank)
