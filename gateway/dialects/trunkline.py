"""Our own replicas: both chat and completions take `prompt_token_ids` and then do not tokenize again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.dialects.base import NO_EDITS, Edits, dp_rank_line, ids_json
from radix.match import Int32Array

if TYPE_CHECKING:
    from gateway.request import Intent

_WITH_IDS = ("chat", "completion")  # values of Kind


class Trunkline:
    """Puts the token ids in front of the client's own members."""

    name = "trunkline"
    reports_usage_on_request = True
    proves_ids = False

    def edits(self, intent: Intent, tokens: Int32Array | None, name: str, rank: int | None) -> Edits:
        """`"prompt_token_ids":[...]` in front; nothing where there are no tokens or the client sent its own."""
        if tokens is None or "prompt_token_ids" in intent.fields or intent.kind.value not in _WITH_IDS:
            return NO_EDITS
        if isinstance(intent.fields.get("prompt"), list):  # ids already, or several prompts and `tokens` only their common start
            return NO_EDITS
        return Edits(front=(b'"prompt_token_ids":' + ids_json(tokens),), with_tokens=True)

    def rank_line(self, rank: int) -> bytes:
        """As vLLM's."""
        return dp_rank_line(rank)
