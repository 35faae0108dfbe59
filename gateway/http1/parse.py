"""Read request heads: llhttp is the parser of record, stricter rules stand around it, and a memo makes both rare.

A head is accepted only if it can be read in exactly one way: whatever two parsers could take differently (two lengths, length
and chunking, blanks before a colon, folded lines, bare line feeds, signs or commas in a length) is 400 and the end of the
connection, so nothing can be hidden behind it (FC-61).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

from gateway.auth import Caller
from gateway.config import Limits
from gateway.errors import Refusal
from gateway.http1.headers import CREDENTIALS, FRAMING, HOP_BY_HOP, Field, connection_options, lines, lines_of
from gateway.routes import Route, errors_at

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SYNTAX = re.compile(
    rb"(?P<method>%s) (?P<target>[\x21-\x7e]+) HTTP/1\.(?P<minor>[01])\r\n(?:%s:[\t\x20-\x7e\x80-\xff]*\r\n)*" % (_TOKEN, _TOKEN)
)
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?(\d{1,10})(?=\r\n)")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z\-._~!$&'()*+;=%]*)(?::[0-9]*)?")  # no comma: a list could pass for one
_BLANK_LINES = re.compile(rb"(?:\r\n)*")
_AUTHORITY = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_MEMO_HEADS = 1024
_MEMO_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What one request head says. Shared by all requests with the same head, hence frozen.

    target: path and query as sent on. forwarded: field lines that go to the engine; forwarded_plain: the same without
    Accept-Encoding, for answers the gateway has to read. credentials: the field lines that carry the client's key.
    """

    method: bytes
    target: bytes = field(repr=False)  # clients put keys into queries and into any field (FC-59)
    keep_alive: bool
    chunked: bool
    expects_continue: bool
    http10: bool
    forwarded: bytes = field(repr=False)
    forwarded_plain: bytes = field(repr=False)
    credentials: bytes = field(repr=False)
    key: bytes | None = field(repr=False)
    has_request_id: bool
    content_type: bytes | None
    session: str | None
    priority: int
    explain: bool = False  # say in the answer what every replica would have cost

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.split(b"?", 1)[0].decode("latin-1")


@dataclass(frozen=True, slots=True)
class Judged:
    """A head that may go on, and where to. caller: whose key it shows; None where no key is asked for."""

    head: RequestHead
    route: Route
    caller: Caller | None = None


class HeadReader:
    """Turns the bytes of a head into a judgement, once per distinct head.

    The memo is keyed by what stands before and behind the digits of the content-length, which are what differs between two
    requests of one client; heads written otherwise are read each time. Hit: about 2 us for a head of 12 fields; miss: 25 us. It
    holds accepted heads only, so a head with two lengths can never hide behind one that was seen with a single one.
    """

    def __init__(self, limits: Limits, judge: Callable[[RequestHead], tuple[Route, Caller | None]]) -> None:
        self._limits = limits
        self._judge = judge
        self._memo: dict[tuple[bytes, bytes], Judged] = {}

    def read(self, raw: bytes) -> tuple[Judged, int]:
        """(judgement, content length; 0 where chunked or absent) of a head without its blank line; raises Refusal."""
        match = _LENGTH.search(raw)
        if match is None:
            return self._read(raw)
        key = raw[: match.start(1)], raw[match.end(1) :]
        judged = self._memo.get(key)
        if judged is not None:
            return judged, int(match[1])
        judged, length = self._read(raw)
        if len(raw) <= _MEMO_HEAD_BYTES:
            if len(self._memo) >= _MEMO_HEADS:
                self._memo.clear()
            self._memo[key] = judged
        return judged, length

    def forget(self) -> None:
        """Drop what is remembered; when keys or routes change."""
        self._memo.clear()

    def _read(self, raw: bytes) -> tuple[Judged, int]:
        head, length = parse_head(raw, self._limits.head_fields)
        try:
            return Judged(head, *self._judge(head)), length
        except Refusal as refusal:  # the framing is fine: the connection goes on where nothing belongs to the refused head
            refusal.shape = errors_at(head.path)
            refusal.close = refusal.close or head.chunked or length > 0 or not head.keep_alive
            raise


def parse_head(raw: bytes, max_fields: int) -> tuple[RequestHead, int]:
    """(head, content length) of a head without its blank line; raises Refusal 400, 417, 431 or 501."""
    syntax = _SYNTAX.fullmatch(raw)
    if syntax is None:
        raise Refusal(400, "the request head is not valid HTTP/1.1", close=True)
    method = syntax["method"]
    if method not in _METHODS:
        raise Refusal(501, "this method is not implemented", close=True)
    fields = _fields(raw)
    if len(fields) > max_fields:
        raise Refusal(431, f"more than {max_fields} header fields", close=True)
    http10 = syntax["minor"] == b"0"
    length = _framing(fields, http10)
    options = connection_options(fields)
    values = {name.lower(): value for name, value in fields}
    expects = _expects_continue([value for name, value in fields if name.lower() == b"expect"], http10)
    private = HOP_BY_HOP | FRAMING | CREDENTIALS | options
    head = RequestHead(
        method=method,
        target=_origin_form(syntax["target"]),
        keep_alive=not http10 and b"close" not in options,
        chunked=length is None,
        expects_continue=expects,
        http10=http10,
        forwarded=lines(fields, private),
        forwarded_plain=lines(fields, private | {b"accept-encoding"}),
        credentials=lines_of(fields, CREDENTIALS - options),
        key=_key(values),
        has_request_id=b"x-request-id" in values and b"x-request-id" not in options,
        content_type=values.get(b"content-type"),
        session=values[b"x-trunkline-session"].decode("latin-1") if b"x-trunkline-session" in values else None,
        priority=_priority(values.get(b"x-trunkline-priority")),
        explain=values.get(b"x-trunkline-explain") == b"1",
    )
    return head, length or 0


def past_blank_lines(data: bytes, start: int) -> int:
    """Where the empty lines end that stand at `start`: some clients end a body with one too many."""
    match = _BLANK_LINES.match(data, start)
    assert match is not None  # it matches nothing as well
    return match.end()


class _Collector:
    """Receives llhttp's callbacks."""

    def __init__(self) -> None:
        self.fields: list[Field] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value.strip(b" \t")))


def _fields(raw: bytes) -> list[Field]:
    collector = _Collector()
    try:
        httptools.HttpRequestParser(collector).feed_data(raw + b"\r\n")
    except httptools.HttpParserUpgrade:
        pass  # an offer to change protocols is declined by answering in this one
    except httptools.HttpParserError:
        raise Refusal(400, "the request head is not valid HTTP/1.1", close=True) from None
    return collector.fields


def _framing(fields: list[Field], http10: bool) -> int | None:
    """The announced length, 0 without one, None for a chunked body; raises Refusal where it can be read in two ways."""
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    codings = [value for name, value in fields if name.lower() == b"transfer-encoding"]
    hosts = [value for name, value in fields if name.lower() == b"host"]
    if len(lengths) + len(codings) > 1:
        raise Refusal(400, "the body is framed in more than one way", close=True)
    if len(hosts) != 1 and not (http10 and not hosts):
        raise Refusal(400, "there must be exactly one Host field", close=True)
    if not all(map(_HOST.fullmatch, hosts)):
        raise Refusal(400, "the Host field is not a host and port", close=True)
    if codings:
        if http10 or codings[0].lower() != b"chunked":
            raise Refusal(400, "Transfer-Encoding must be 'chunked' and nothing else", close=True)
        return None
    if lengths:
        if not lengths[0].isdigit() or len(lengths[0]) > 15:
            raise Refusal(400, "Content-Length is not a number", close=True)
        return int(lengths[0])
    return 0


def _expects_continue(values: list[bytes], http10: bool) -> bool:
    if http10:
        return False
    if any(value.lower() != b"100-continue" for value in values):
        raise Refusal(417, "this expectation can not be met", close=True)
    return bool(values)


def _origin_form(target: bytes) -> bytes:
    """The target as an origin server takes it; the authority of an absolute form is dropped."""
    if target.startswith(b"/"):
        return target
    match = _AUTHORITY.match(target)
    if match is None:
        raise Refusal(400, "the request target must be a path", close=True)
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _key(values: dict[bytes, bytes]) -> bytes | None:
    """The client's key: a bearer token, or the value of x-api-key or api-key."""
    scheme, _, token = values.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip()
    return values.get(b"x-api-key") or values.get(b"api-key") or None


def _priority(value: bytes | None) -> int:
    if value is None:
        return 0
    if not re.fullmatch(rb"-?\d{1,9}", value):
        raise Refusal(400, "x-trunkline-priority must be a whole number", param="x-trunkline-priority", close=True)
    return int(value)
