"""SGLang: completions, plain chats and /generate take ids; a closed connection is noticed after 2 to 4 s, an abort call at once.

The call names a request by its `rid`, and stops every request whose rid begins with it: ours end in a mark, so that none is the
start of another. Batches and several answers to one prompt are renamed inside the engine, so these are only closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from gateway.dialects.base import Abort, Edits, dp_rank_line, ids_json, is_plain_chat, is_text_prompt
from radix.match import Int32Array

if TYPE_CHECKING:
    from gateway.request import Intent

_ABORT_PATH = b"/abort_request"
_LEAST_GIVEN = 32  # characters: a shorter name of a client's own could be the start of somebody else's
_GENERATING = ("chat", "completion", "generate")  # values of Kind
_OTHER_INPUTS = ("input_ids", "input_embeds", "image_data", "video_data", "audio_data")


class Sglang:
    """Its cached tokens are in `usage` with --enable-cache-report, in /generate's `meta_info` always.

    `priority`: higher is earlier, unless it was started with --schedule-low-priority-values-first.
    """

    name = "sglang"
    reports_usage_on_request = True
    proves_ids = True

    def edits(self, intent: Intent, tokens: Int32Array | None, name: str, rank: int | None) -> Edits:
        """The ids where they are taken, and a name to stop the request by."""
        kind, fields = intent.kind.value, intent.fields
        if kind not in _GENERATING:
            return Edits()
        front: list[bytes] = []
        values: dict[str, bytes] = {}
        ids = _ids(kind, fields, tokens)
        if kind == "generate" and rank is not None and fields.get("routed_dp_rank") is None:
            _put(fields, "routed_dp_rank", b"%d" % rank, front, values)  # this route reads no header
        if ids is not None and kind == "completion":
            values["prompt"] = ids
        elif ids is not None:
            _put(fields, "input_ids", ids, front, values)
            if kind == "generate":
                values["text"] = b"null"  # it would win
        abort = _abort(intent, name, front, values)
        return Edits(front=tuple(front), values=values, with_tokens=ids is not None, abort=abort)

    def rank_line(self, rank: int) -> bytes:
        """Read by the OpenAI routes, where it wins over the body."""
        return dp_rank_line(rank)


def _ids(kind: str, fields: Mapping[str, Any], tokens: Int32Array | None) -> bytes | None:
    if tokens is None or not len(tokens) or any(fields.get(name) is not None for name in _OTHER_INPUTS):
        return None
    if kind == "completion":
        takes = is_text_prompt(fields)
    else:
        takes = is_plain_chat(fields) if kind == "chat" else isinstance(fields.get("text"), str)
    return ids_json(tokens) if takes else None


def _abort(intent: Intent, name: str, front: list[bytes], values: dict[str, bytes]) -> Abort | None:
    """How to stop it, naming it where the client did not; None where only closing the connection does."""
    fields = intent.fields
    sampling = fields.get("sampling_params")
    answers = sampling.get("n") if isinstance(sampling, dict) else fields.get("n")
    texts = fields.get("text") if intent.kind.value == "generate" else None
    if intent.is_batch or answers not in (None, 1) or isinstance(texts, list) or isinstance(sampling, list):
        return None
    given = fields.get("rid")
    if given is None:
        _put(fields, "rid", b'"%s"' % name.encode(), front, values)
        return Abort(_ABORT_PATH, b'{"rid":"%s"}' % name.encode(), name, given=False)
    if not isinstance(given, str) or len(given) < _LEAST_GIVEN:
        return None
    return Abort(_ABORT_PATH, orjson.dumps({"rid": given}), given, given=True)


def _put(fields: Mapping[str, Any], name: str, value: bytes, front: list[bytes], values: dict[str, bytes]) -> None:
    """In place of a null, or in front."""
    if name in fields:
        values[name] = value
    else:
        front.append(b'"%s":%s' % (name.encode(), value))
