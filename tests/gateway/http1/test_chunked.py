"""Chunked framing in any cuts, and what is no framing at all."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http1.chunked import ChunkDecoder, FramingError, chunk_size, frame, leading_events


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(st.binary(min_size=1, max_size=40)), st.lists(st.integers(0, 500)), st.binary(max_size=20), st.booleans())
def test_any_chunks_in_any_cuts_give_the_payload(payloads: list[bytes], places: list[int], behind: bytes, upper: bool) -> None:
    """FC-41: what is decoded does not depend on where reads end."""
    size = b"%X;name=value" if upper else b"%x"
    body = b"".join(size % len(payload) + b"\r\n" + payload + b"\r\n" for payload in payloads) + b"0\r\nX-T: 1\r\n\r\n"
    decoder = ChunkDecoder()
    decoded = rest = b""
    rest_began = False
    for piece in cut(body + behind, places):
        if rest_began:
            rest += piece
            continue
        decoded += b"".join(decoder.feed(piece))
        rest_began, rest = decoder.finished, decoder.rest
    assert rest_began
    assert decoded == b"".join(payloads)
    assert rest == behind
    assert decoder.announced == len(decoded)


@pytest.mark.parametrize(
    "body",
    [
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"1_0\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 6\r\nhello\r\n",
        b"\r\nhello\r\n",
        b"g\r\nhello\r\n",
        b"123456789\r\n",
        b"5\r\nhello!\r\n",
        b"5\r\nhelloX\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"5" + b" " * 2000,
        b"0\r\n" + b"a: b\r\n" * 4000,
    ],
)
def test_malformed_framing_is_refused(body: bytes) -> None:
    """FC-61: sizes are bare hexadecimal digits, chunks are as long as they say, trailers end."""
    decoder = ChunkDecoder()
    with pytest.raises(FramingError):
        decoder.feed(body)
    decoder = ChunkDecoder()
    with pytest.raises(FramingError):
        _feed_bytewise(decoder, body)


def _feed_bytewise(decoder: ChunkDecoder, body: bytes) -> None:
    for position in range(len(body)):
        decoder.feed(body[position : position + 1])


def test_the_announced_size_is_known_before_the_bytes_come() -> None:
    decoder = ChunkDecoder()
    decoder.feed(b"ffffff\r\n")
    assert decoder.announced == 0xFFFFFF


def leading(data: bytes) -> tuple[int, int]:
    return leading_events(data, len(data))


def test_leading_events_stop_at_anything_that_is_not_whole() -> None:
    one, two = frame(b"data: a\n\n"), frame(b"data: b\r\n\r\n")
    assert leading(one) == (1, len(one))
    assert leading(one + two) == (2, len(one + two))
    assert leading(one + two[:-1]) == (1, len(one))
    assert leading(one + frame(b"data: c\n")) == (1, len(one))
    assert leading(one + b"0\r\n\r\n") == (1, len(one))
    assert leading(one + b"zz\r\n\r\n") == (1, len(one))
    assert leading(b"") == (0, 0)
    assert leading_events(one + two, len(one + two) - 1) == (1, len(one))
    assert leading(frame(b"\n\n")) == (1, len(frame(b"\n\n")))


def test_a_header_block_that_ends_like_a_last_chunk_is_not_one() -> None:
    payload = b"data: 0\r\n\r\n"  # ends in the very bytes of a last chunk
    decoder = ChunkDecoder()
    assert b"".join(decoder.feed(frame(payload)[:-2])) == payload
    assert not decoder.finished


def test_sizes_are_read_strictly() -> None:
    assert [chunk_size(line) for line in (b"1f", b"1F \t", b"a;x=y", b"0")] == [31, 31, 10, 0]
    assert chunk_size(b"") == chunk_size(b"0x1") == chunk_size(b"1\n") == -1
