"""TensorRT-LLM (trtllm-serve): ids in completions and plain chats; a field it does not know is an error there, not passed over.

What only other engines know is therefore taken out, so that one client can speak to a mixed fleet. It addresses no rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.dialects.base import NO_EDITS, Edits, ids_json, is_plain_chat, is_text_prompt
from radix.match import Int32Array

if TYPE_CHECKING:
    from gateway.request import Intent

# Hints and names that only other engines know, and without which the request is answered the same. What would change the answer
# (`lora_path`, `allowed_token_ids`, ...) stays, and is refused.
_FOREIGN = (
    # vLLM
    "include_reasoning",
    "request_id",
    "session_id",
    "stream_interval",
    "vllm_xargs",
    # SGLang
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "extra_key",
    "return_cached_tokens_details",
    "rid",
    "routed_dp_rank",
    "separate_reasoning",
    "stream_reasoning",
    # the OpenAI API
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
)
_FOREIGN_TO_COMPLETIONS = (*_FOREIGN, "cache_salt")  # chats know it
_KINDS = ("chat", "completion")  # values of Kind


class TrtLlm:
    """Its cached tokens are in `usage`. `priority` is a number from 0 to 1, and higher is earlier."""

    name = "trtllm"
    reports_usage_on_request = True
    proves_ids = True

    def edits(self, intent: Intent, tokens: Int32Array | None, name: str, rank: int | None) -> Edits:
        """The ids, and less of what is foreign."""
        kind, fields = intent.kind.value, intent.fields
        if kind not in _KINDS:
            return NO_EDITS
        foreign = _FOREIGN if kind == "chat" else _FOREIGN_TO_COMPLETIONS
        without = tuple(field for field in foreign if field in fields)
        if "priority" in fields and not _is_priority(fields["priority"]):
            without = (*without, "priority")
        if tokens is None or not len(tokens):
            return Edits(without=without)
        if kind == "chat":
            if not is_plain_chat(fields) or "prompt_token_ids" in fields:
                return Edits(without=without)
            return Edits(front=(b'"prompt_token_ids":' + ids_json(tokens),), without=without, with_tokens=True)
        if not is_text_prompt(fields):
            return Edits(without=without)
        return Edits(values={"prompt": ids_json(tokens)}, without=without, with_tokens=True)

    def rank_line(self, rank: int) -> bytes:
        """None: it places requests on its ranks itself."""
        return b""


def _is_priority(value: Any) -> bool:
    """One of its own; the whole numbers of vLLM and SGLang would be refused."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1)
