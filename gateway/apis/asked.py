"""What a request asks, in every API: its intent, and the body as it goes to an engine.

The bytes are changed in two places at most: the value of `model` where the client used an alias, and one argument of vLLM that
would spoil the view of its cache (FC-40).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from gateway.apis.passing import find_model
from gateway.apis.stored import PATH, StoredResponses
from gateway.body import Parse, look, with_model, without_report_mode
from gateway.http1.parse import RequestHead
from gateway.request import Intent, Kind

_PREVIOUS = "previous_response_id"


class Asked:
    """Reads requests. aliases: name -> the name engines know. One per data plane."""

    def __init__(self, aliases: Mapping[str, str], parse: Parse, stored: StoredResponses) -> None:
        self._aliases = aliases
        self._parse = parse
        self._stored = stored

    def read(self, kind: Kind, head: RequestHead, body: bytes) -> tuple[Intent, bytes]:
        """(intent, body to send); raises Refusal 400 naming the field."""
        span = None
        if kind is Kind.PASS_THROUGH:
            found = find_model(head.content_type, head.target, body)
            fields, span = dict(found.fields or {}), found.span
            streams = fields.get("stream") is True
            intent = Intent(kind, fields, found.model, streams, session=head.session, priority=head.priority)
        elif kind is Kind.STORED:
            intent = self._of_stored(head)
        else:
            intent = look(body, kind, session=head.session, priority=head.priority, parse=self._parse)
            if kind is Kind.RESPONSES:
                self._follow(intent, intent.fields.get(_PREVIOUS))
        if self._aliases and intent.model is not None:
            body = self._rename(intent, body, span)
        return intent, without_report_mode(body, intent.fields)

    def _of_stored(self, head: RequestHead) -> Intent:
        match = PATH.fullmatch(head.path)
        assert match is not None
        query = parse_qsl(head.target.partition(b"?")[2].decode("latin-1"))
        intent = Intent(Kind.STORED, {}, stream=("stream", "true") in query, session=head.session, priority=head.priority)
        self._follow(intent, match["id"])
        return intent

    def _follow(self, intent: Intent, response_id: object) -> None:
        """Send it to the replica that keeps the response it names, or have it looked for."""
        if isinstance(response_id, str):
            intent.pin = self._stored.of(response_id)
            intent.seeks = intent.pin is None

    def _rename(self, intent: Intent, body: bytes, span: tuple[int, int] | None) -> bytes:
        target = self._aliases.get(intent.model or "")
        if target is None:
            return body
        intent.model = target
        if span is not None:
            return b"%s%s%s" % (body[: span[0]], target.encode(), body[span[1] :])
        return with_model(body, target) if "model" in intent.fields else body
