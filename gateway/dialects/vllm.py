"""vLLM: completions take ids in place of their prompt; chats take none in any version. Closing the connection stops a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.dialects.base import NO_EDITS, Edits, dp_rank_line, ids_json, is_text_prompt
from radix.match import Int32Array

if TYPE_CHECKING:
    from gateway.request import Intent


class Vllm:
    """Its cached tokens are in `usage` with --enable-prompt-tokens-details. `priority`: lower is earlier."""

    name = "vllm"
    reports_usage_on_request = True
    proves_ids = True

    def edits(self, intent: Intent, tokens: Int32Array | None, name: str, rank: int | None) -> Edits:
        """The ids where the text of a completion's prompt stood."""
        if tokens is None or not len(tokens) or intent.kind.value != "completion" or not is_text_prompt(intent.fields):
            return NO_EDITS
        return Edits(values={"prompt": ids_json(tokens)}, with_tokens=True)

    def rank_line(self, rank: int) -> bytes:
        """Of a front end with several ranks; there an unknown rank is an error."""
        return dp_rank_line(rank)
