"""The header fields and body the gateway writes itself: the request as it goes to an engine, and what it adds to answers."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.apis.table import API
from gateway.config import Settings
from gateway.dialects import Abort, Edits
from gateway.explain.header import candidates_line
from gateway.fleet import Replica
from gateway.http1.parse import RequestHead
from gateway.http1.pool import Pool
from gateway.members import Piece, TooDeep, edited
from gateway.request import Intent, Prompt, Ticket

_ASK_USAGE = b'"stream_options":{"include_usage":true}'


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request, ready to send. asked_usage: the gateway asks for counts the client did not ask for (FC-42).

    with_tokens: ids go along, and the engine does not tokenize. abort: how to stop it beside closing its connection.
    """

    head: bytes
    body: list[Piece]
    asked_usage: bool
    with_tokens: bool = False
    abort: Abort | None = None


def outgoing(
    settings: Settings,
    replica: Replica,
    pool: Pool,
    head: RequestHead,
    body: bytes,
    intent: Intent,
    prompt: Prompt,
    request_id: str,
    rank: int = 0,
) -> Outgoing:
    """The client's request in the replica's dialect, for one of its ranks."""
    dialect, api = replica.dialect, API[intent.kind]
    ranks = len(replica.holders)
    name, chosen = pool.aborts.name_for(request_id), rank if ranks > 1 else None
    edits = dialect.edits(intent, prompt.tokens if api.takes_ids else None, name, chosen)
    if edits.with_tokens and dialect.proves_ids and not replica.ids.take():
        edits = dialect.edits(intent, None, name, chosen)
    meters = settings.meter_streams and api.asks_usage
    asked_usage = meters and intent.stream and dialect.reports_usage_on_request and "stream_options" not in intent.fields
    ask = (_ASK_USAGE,) if asked_usage else ()
    try:
        pieces = edited(body, intent.fields, front=(*ask, *edits.front), values=edits.values, without=edits.without)
    except TooDeep:  # it is for the engine to take or refuse such a body as it came
        edits = Edits()
        pieces = edited(body, intent.fields, front=ask)
    if replica.api_key:
        credentials = b"authorization: Bearer %s\r\n" % replica.api_key.encode()
    else:  # the client's key opens the gateway, not the engines (FC-60)
        credentials = head.credentials if settings.pass_authorization else b""
    lines = (
        b"%s %s%s HTTP/1.1\r\n" % (head.method, pool.base_path, head.target),
        pool.host_line,
        # In front of what the client may have said of it: engines take the first (FC-21). With one rank there is nothing to say.
        dialect.rank_line(rank) if ranks > 1 else b"",
        # An answer that has to be read must not come compressed.
        head.forwarded_plain if asked_usage else head.forwarded,
        credentials,
        b"" if head.has_request_id else b"x-request-id: %s\r\n" % request_id.encode(),
        b"content-length: %d\r\n\r\n" % sum(map(len, pieces)),
    )
    intent.sent_ids = edits.with_tokens
    return Outgoing(b"".join(lines), pieces, asked_usage, edits.with_tokens, edits.abort)


def own_fields(request_id: str, ticket: Ticket | None, prompt: Prompt | None, *, explain: bool = False) -> bytes:
    """The x-trunkline-* lines of an answer: where it came from, why, and what was expected; explain: and the alternatives."""
    lines = f"x-trunkline-request-id: {request_id}\r\n"
    if ticket is not None:
        decision = ticket.decision
        lines += (
            f"x-trunkline-replica: {ticket.replica.name}\r\nx-trunkline-rank: {ticket.rank}\r\n"
            f"x-trunkline-policy: {ticket.policy}\r\nx-trunkline-reason: {decision.reason}\r\n"
            f"x-trunkline-predicted-cached-tokens: {decision.credit_tokens}\r\n"
        )
        if explain:
            lines += f"x-trunkline-explain: {candidates_line(ticket)}\r\n"
    if prompt is not None and prompt.tokens is not None:
        lines += f"x-trunkline-prompt-tokens: {len(prompt.tokens)}\r\n"
    return lines.encode("latin-1", "replace")
