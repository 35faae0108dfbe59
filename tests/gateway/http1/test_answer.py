"""Heads of engines' answers, and the gateway's own answers."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.http1.answer import AnswerReader, Body, parse_answer, refusal_answer
from gateway.http1.chunked import FramingError


def head(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"".join(line + b"\r\n" for line in (first, *lines))


def test_repeated_fields_pass_in_order_and_hop_by_hop_ones_do_not() -> None:
    """FC-35, FC-36, for answers."""
    parsed, length = parse_answer(
        head(
            b"Set-Cookie: a=1",
            b"Warning: 1",
            b"Set-Cookie: b=2",
            b"Connection: keep-alive, X-Secret",
            b"X-Secret: s",
            b"Keep-Alive: timeout=5",
            b"Warning: 2",
            b"Content-Length: 9",
        )
    )
    assert parsed.forwarded == b"Set-Cookie: a=1\r\nWarning: 1\r\nSet-Cookie: b=2\r\nWarning: 2\r\n"
    assert (parsed.body, length, parsed.keep_alive) == (Body.LENGTH, 9, True)


@pytest.mark.parametrize(
    ("first", "lines", "body", "keep"),
    [
        (b"HTTP/1.1 200 OK", [b"Transfer-Encoding: chunked"], Body.CHUNKED, True),
        (b"HTTP/1.1 200 OK", [], Body.CLOSE, False),
        (b"HTTP/1.0 200 OK", [b"Content-Length: 1"], Body.LENGTH, False),
        (b"HTTP/1.1 200", [b"Content-Length: 1", b"Connection: close"], Body.LENGTH, False),
        (b"HTTP/1.1 204 No Content", [], Body.NONE, True),
        (b"HTTP/1.1 304 Not Modified", [b"Content-Length: 99"], Body.NONE, True),
    ],
)
def test_the_end_of_a_body_is_told_by_its_head(first: bytes, lines: list[bytes], body: Body, keep: bool) -> None:
    parsed, _ = parse_answer(head(*lines, first=first))
    assert (parsed.body, parsed.keep_alive) == (body, keep)


@pytest.mark.parametrize(
    "raw",
    [
        head(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        head(b"Content-Length: 5", b"Content-Length: 5"),
        head(b"Content-Length: +5"),
        head(b"Transfer-Encoding: gzip"),
        head(b"Content-Length : 5"),
        head(b"A: b\nContent-Length: 5"),
        head(first=b"HTTP/2 200 OK"),
        head(first=b"HTTP/1.1 99 No"),
        head(first=b"ICY 200 OK"),
    ],
)
def test_an_answer_that_can_be_read_in_two_ways_is_refused(raw: bytes) -> None:
    with pytest.raises(FramingError):
        parse_answer(raw)


def test_only_uncompressed_streams_are_looked_into() -> None:
    """FC-37: a compressed stream passes as it is."""
    kind, chunked = b"Content-Type: text/event-stream; charset=utf-8", b"Transfer-Encoding: chunked"
    assert parse_answer(head(kind, chunked))[0].plain_events
    assert not parse_answer(head(kind, chunked, b"Content-Encoding: gzip"))[0].plain_events
    assert not parse_answer(head(b"Content-Type: application/json", chunked))[0].plain_events


def test_the_memo_keeps_framings_apart() -> None:
    reader = AnswerReader()
    with_length = head(b"A: b", b"Content-Length: 5")
    assert reader.read(with_length)[1] == 5
    assert reader.read(head(b"A: b", b"Content-Length: 77"))[1] == 77
    assert reader.read(head(b"A: b"))[0].body is Body.CLOSE
    assert reader.read(with_length)[0].body is Body.LENGTH
    with pytest.raises(FramingError):
        reader.read(head(b"A: b", b"Content-Length: 5", b"Content-Length: 6"))


_LENGTHS = [b"Content-Length: 11", b"content-length:7", b"CONTENT-LENGTH: 11", b"Content-Length:  5", b"Content-Length:\t5"]
_LINES = [*_LENGTHS, b"Content-Length: 11 ", b"Content-Length: ", b"X-N: 1", b"X-N: 13", b"X-N: ", b"Transfer-Encoding: chunked"]
_FIRST = [b"HTTP/1.1 200 OK", b"HTTP/1.1 304 Not Modified", b"HTTP/1.0 200 OK"]


@given(st.lists(st.tuples(st.sampled_from(_FIRST), st.lists(st.sampled_from(_LINES), max_size=3)), min_size=2, max_size=8))
@example([(_FIRST[0], [b"CONTENT-LENGTH: 11"])] * 2)
@example([(_FIRST[0], [b"X-N: 1", b"Content-Length: 11"]), (_FIRST[0], [b"X-N: 11"])])
@example([(_FIRST[0], [b"Content-Length: 11"]), (_FIRST[0], [b"Content-Length: "])])
@example([(_FIRST[0], [b"X-N: ", b"Content-Length: 25"]), (_FIRST[0], [b"X-N: 5"])])
def test_a_warm_memo_reads_as_a_cold_one(heads: list[tuple[bytes, list[bytes]]]) -> None:
    """A head read wrongly would leave its connection out of step: the next client would get the rest of this answer."""
    warm = AnswerReader()
    for first, fields in heads:
        raw = head(*fields, first=first)
        assert _read(warm, raw) == _read(AnswerReader(), raw)


def _read(reader: AnswerReader, raw: bytes) -> object:
    try:
        return reader.read(raw)
    except FramingError as error:
        return str(error)


def test_refusals_have_the_shape_of_the_api() -> None:
    raw = refusal_answer(Refusal(503, "full", kind="overloaded", retry_after_s=0.2), close=True)
    first, _, rest = raw.partition(b"\r\n")
    assert first == b"HTTP/1.1 503 Service Unavailable"
    assert b"retry-after: 1\r\n" in rest
    assert b"connection: close\r\n" in rest
    assert rest.endswith(b'{"error":{"message":"full","type":"overloaded","param":null,"code":null}}')
    assert refusal_answer(Refusal(404, "no"), close=False, head_only=True).endswith(b"\r\n\r\n")
