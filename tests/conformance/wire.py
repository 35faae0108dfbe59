"""HTTP/1.1 as the suite itself reads it, from plain bytes and strictly; nothing of the gateway is used.

What the gateway sends, to clients and to engines, has to be readable in exactly one way by somebody who forgives nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIELD = rb"%s:[\t\x20-\x7e\x80-\xff]*\r\n" % _TOKEN
_REQUEST_HEAD = re.compile(rb"(?P<method>[A-Z]+) (?P<target>/[\x21-\x7e]*) HTTP/1\.1\r\n(?P<fields>(?:%s)*)" % _FIELD)
_ANSWER_HEAD = re.compile(rb"HTTP/1\.1 (?P<status>[1-5]\d\d) [\t\x20-\x7e\x80-\xff]*\r\n(?P<fields>(?:%s)*)" % _FIELD)
_SIZE = re.compile(rb"[0-9a-f]{1,8}")

Read = Callable[[], bytes]  # more bytes; b"" at the end of the connection


class NotHttp(Exception):
    """The bytes are not one well-formed message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One request or answer. start: (method, target) or (status,). whole: its body ended as its framing says."""

    start: tuple[bytes, ...]
    fields: list[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = b""
    framing: str = "none"
    whole: bool = True

    def values(self, name: bytes) -> list[bytes]:
        """Of all fields of that name (lower case), in order."""
        return [value for key, value in self.fields if key == name]


class Source:
    """Bytes of one connection as they come. taken: how many of them belong to messages that were read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.seen = bytearray()
        self.taken = 0
        self.ended = False

    def more(self) -> bool:
        """Wait for more; False at the end of the connection."""
        data = b"" if self.ended else self._read()
        self.ended = self.ended or not data
        self.seen += data
        return bool(data)

    def until(self, mark: bytes) -> bytes | None:
        """What stands before the next `mark`, which is taken too; None where the connection ends first."""
        while (at := self.seen.find(mark, self.taken)) < 0:
            if not self.more():
                return None
        found = bytes(self.seen[self.taken : at])
        self.taken = at + len(mark)
        return found

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes; fewer where the connection ends first."""
        while len(self.seen) - self.taken < size and self.more():
            pass
        found = bytes(self.seen[self.taken : self.taken + size])
        self.taken += len(found)
        return found

    @property
    def rest(self) -> bytes:
        """What belongs to no message yet."""
        return bytes(self.seen[self.taken :])


def read_request_head(source: Source) -> Message | None:
    """The next request's head, None where the connection ends before it; raises NotHttp."""
    raw = source.until(b"\r\n\r\n")
    if raw is None:
        if source.rest:
            raise NotHttp(f"half a request: {source.rest[:80]!r}")
        return None
    match = _REQUEST_HEAD.fullmatch(raw + b"\r\n")
    if match is None:
        raise NotHttp(f"not a request head: {raw[:200]!r}")
    return Message((match["method"], match["target"]), _fields(match["fields"]), framing="length")


def request_length(head: Message) -> int:
    """Of a request's body; raises NotHttp where the head could be framed in another way."""
    if len(head.values(b"host")) != 1 or head.values(b"transfer-encoding"):
        raise NotHttp(f"not exactly one Host, or a Transfer-Encoding: {head.fields}")
    return _length(head)


def read_request_body(source: Source, head: Message) -> Message:
    """The request with its body; raises NotHttp where it is cut."""
    length = request_length(head)
    body = source.exactly(length)
    if len(body) < length:
        raise NotHttp(f"{len(body)} of {length} body bytes")
    return Message(head.start, head.fields, body, head.framing)


def read_answer(source: Source, *, head_only: bool = False) -> Message:
    """The next answer, 1xx ones too; raises NotHttp where there is not even a head."""
    raw = source.until(b"\r\n\r\n")
    if raw is None:
        raise NotHttp(f"the connection ended without an answer: {source.rest[:80]!r}")
    match = _ANSWER_HEAD.fullmatch(raw + b"\r\n")
    if match is None:
        raise NotHttp(f"not an answer's head: {raw[:200]!r}")
    head = Message((match["status"],), _fields(match["fields"]))
    chunked, lengths = head.values(b"transfer-encoding"), head.values(b"content-length")
    if len(chunked) + len(lengths) > 1:
        raise NotHttp(f"framed twice: {head.fields}")
    status = int(match["status"])
    if status < 200 or status in (204, 304):
        if chunked or (lengths and status != 304):
            raise NotHttp(f"a {status} with framing: {head.fields}")
        return head
    if head_only:
        return head
    if chunked:
        body, whole = _chunks(source)
        return Message(head.start, head.fields, body, "chunked", whole)
    if lengths:
        body = source.exactly(_length(head))
        return Message(head.start, head.fields, body, "length", len(body) == _length(head))
    while source.more():
        pass
    body = source.exactly(len(source.rest))
    return Message(head.start, head.fields, body, "close")


def _chunks(source: Source) -> tuple[bytes, bool]:
    body = bytearray()
    while (line := source.until(b"\r\n")) is not None:
        if not _SIZE.fullmatch(line):
            raise NotHttp(f"not a chunk size: {line[:80]!r}")
        size = int(line, 16)
        piece = source.exactly(size)
        body += piece
        end = source.exactly(2)
        if len(piece) < size or len(end) < 2:
            return bytes(body), False
        if end != b"\r\n":  # also a trailer field, which the gateway never sends
            raise NotHttp(f"behind a chunk stands {end!r}")
        if size == 0:
            return bytes(body), True
    return bytes(body), False


def _length(head: Message) -> int:
    values = head.values(b"content-length")
    if len(values) != 1 or not re.fullmatch(rb"[0-9]{1,15}", values[0]):
        raise NotHttp(f"not one plain Content-Length: {values}")
    return int(values[0])


def _fields(lines: bytes) -> list[tuple[bytes, bytes]]:
    pairs = [line.split(b":", 1) for line in lines.split(b"\r\n") if line]
    return [(name.lower(), value.strip(b" \t")) for name, value in pairs]
