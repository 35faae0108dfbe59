"""The header fields and body the gateway writes itself: the request as it goes to an engine, and what it adds to answers."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.body import with_members
from gateway.config import Settings
from gateway.explain.header import candidates_line
from gateway.fleet import Replica
from gateway.http1.parse import RequestHead
from gateway.http1.pool import Pool
from gateway.request import Intent, Prompt, Ticket

_ASK_USAGE = b'"stream_options":{"include_usage":true}'


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request, ready to send. asked_usage: the gateway asks for counts the client did not ask for (FC-42)."""

    head: bytes
    body: list[bytes | memoryview]
    asked_usage: bool


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
    dialect = replica.dialect
    members = dialect.members(intent, prompt.tokens)
    asked_usage = (
        settings.meter_streams and intent.stream and dialect.reports_usage_on_request and "stream_options" not in intent.fields
    )
    if asked_usage:
        members = (_ASK_USAGE, *members)
    pieces = with_members(body, members, intent.fields)
    if replica.api_key:
        credentials = b"authorization: Bearer %s\r\n" % replica.api_key.encode()
    else:  # the client's key opens the gateway, not the engines (FC-60)
        credentials = head.credentials if settings.pass_authorization else b""
    lines = (
        b"%s %s%s HTTP/1.1\r\n" % (head.method, pool.base_path, head.target),
        pool.host_line,
        # The field vLLM and SGLang look at, and take the first of (FC-21); with one rank there is nothing to say.
        b"x-data-parallel-rank: %d\r\n" % rank if len(replica.holders) > 1 else b"",
        # An answer that has to be read must not come compressed.
        head.forwarded_plain if asked_usage else head.forwarded,
        credentials,
        b"" if head.has_request_id else b"x-request-id: %s\r\n" % request_id.encode(),
        b"content-length: %d\r\n\r\n" % sum(map(len, pieces)),
    )
    return Outgoing(b"".join(lines), pieces, asked_usage)


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
