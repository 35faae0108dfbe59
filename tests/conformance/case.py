"""One case: what a client sends, what must come back, and what the engine may have seen. And the words cases are written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tests.conformance.engine import Act

CHAT = b"/v1/chat/completions"
BODY = b'{"model":"m","messages":[],"user":"x"}'
OK_BODY = b'{"ok":true}'


class Step(Enum):
    """What a client does between its bytes."""

    HALF_CLOSE = auto()  # FIN, still reading
    RELEASE = auto()  # let the engine go on, once it holds
    HELD = auto()  # wait until the engine holds
    SLOW = auto()  # from here on one byte at a time, with pauses


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until these bytes have come back."""

    data: bytes


Send = bytes | Step | Await


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer the client must get. absent: names of fields that must not be there. head_only: it answers a HEAD.

    body: None where it does not matter. error_after: the body is these bytes and one error event (FC-45). framing: length,
    chunked, close or none.
    """

    status: int
    fields: tuple[tuple[bytes, bytes], ...] = ()
    absent: tuple[bytes, ...] = ()
    body: bytes | None = None
    error_after: bytes | None = None
    framing: str | None = None
    whole: bool = True
    head_only: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One request the engine must have got. fields: in this order among those of their names; present: with any value."""

    target: bytes = CHAT
    body: bytes = BODY
    fields: tuple[tuple[bytes, bytes], ...] = ()
    absent: tuple[bytes, ...] = ()
    present: tuple[bytes, ...] = ()


ONE = (Seen(),)
NOTHING: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """name: what it is about. stays: the client's connection serves another request afterwards; else it is closed.

    seen: None where the engine may have seen the request or not. engine: what it answers with; later: to all requests but the
    first. pooled: the engine's connection serves the next request (False: it must not; None: either). leaves: the gateway leaves
    the engine in mid-answer. cuts: also sent cut up. guarded: to the gateway with keys and short limits.
    """

    name: str
    send: tuple[Send, ...]
    replies: tuple[Reply, ...]
    stays: bool = False
    seen: tuple[Seen, ...] | None = NOTHING
    engine: tuple[Act, ...] = ()
    later: tuple[Act, ...] | None = None
    pooled: bool | None = None
    leaves: bool = False
    cuts: bool = True
    guarded: bool = False


def head(*lines: bytes, first: bytes = b"POST %s HTTP/1.1" % CHAT) -> bytes:
    """A head of these lines, with its blank line."""
    return b"\r\n".join((first, *lines, b"", b""))


def post(*lines: bytes, body: bytes = BODY, first: bytes = b"POST %s HTTP/1.1" % CHAT) -> bytes:
    """A whole request with one Host, a Content-Length and these lines."""
    return head(b"Host: g", *lines, b"Content-Length: %d" % len(body), first=first) + body


def get(path: bytes, *lines: bytes, method: bytes = b"GET") -> bytes:
    """A whole request without a body."""
    return head(b"Host: g", *lines, first=b"%s %s HTTP/1.1" % (method, path))


def chunked(framed: bytes, *lines: bytes) -> bytes:
    """A request whose body is framed like this."""
    return head(b"Host: g", b"Transfer-Encoding: chunked", *lines) + framed


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """One chunk."""
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def answer(*lines: bytes, body: bytes = OK_BODY, status: bytes = b"200 OK") -> bytes:
    """A whole answer of an engine, with a length."""
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"content-length: %d" % len(body), b"", body))


def answer_head(*lines: bytes, status: bytes = b"200 OK", version: bytes = b"HTTP/1.1") -> bytes:
    """An answer's head of these lines, with its blank line."""
    return b"\r\n".join((b"%s %s" % (version, status), *lines, b"", b""))


END = b"0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked"
EVENTS = b"content-type: text/event-stream"
DONE = b"data: [DONE]\n\n"
OK = Reply(200, body=OK_BODY)


def event(text: bytes) -> bytes:
    """One chat chunk."""
    return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % text


def refused(
    name: str,
    *send: Send,
    status: int = 400,
    seen: tuple[Seen, ...] = NOTHING,
    replies: tuple[Reply, ...] = (),
    cuts: bool = True,
) -> Case:
    """A case whose last request is answered with an error of the gateway, which closes; another request stands behind it."""
    return Case(name=name, send=(*send, post()), replies=(*replies, Reply(status)), seen=seen, cuts=cuts)


def served(name: str, *send: Send, seen: tuple[Seen, ...] = ONE, reply: Reply = OK) -> Case:
    """A case whose one request is served, and whose connection stays."""
    return Case(name=name, send=send, replies=(reply,), seen=seen, stays=True)
