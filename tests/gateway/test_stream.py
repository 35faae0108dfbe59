"""An answer's body from the engine's framing into the client's."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.http1.answer import parse_answer
from gateway.http1.chunked import ChunkDecoder, FramingError
from gateway.request import Usage
from gateway.stream import Relay
from tests.fakes.engine import DONE, END, chunk, event, usage_event

EVENTS = [event("é"), event("漢"), event("🦜"), usage_event(7, 3, 4), DONE]
TEXT = b"".join(EVENTS)


def relay_for(*lines: bytes, http10: bool = False, drop_usage: bool = False, kind: bytes = b"text/event-stream") -> Relay:
    head, length = parse_answer(b"".join(line + b"\r\n" for line in (b"HTTP/1.1 200 OK", b"Content-Type: " + kind, *lines)))
    return Relay(head, length, http10=http10, drop_usage=drop_usage)


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """(payload, ended), by another decoder than the one under test is built on: size lines only."""
    payload = b""
    while data:
        line, _, data = data.partition(b"\r\n")
        size = int(line, 16)
        if size == 0:
            return payload, data == b"\r\n"
        payload, data = payload + data[:size], data[size + 2 :]
    return payload, False


def cuts(data: bytes) -> list[list[bytes]]:
    return [[data[:place], data[place:]] for place in range(len(data))] + [[data[i : i + 1] for i in range(len(data))]]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(
    "raw",
    [
        b"".join(map(chunk, EVENTS)) + END,
        chunk(TEXT) + END,
        b"".join(chunk(TEXT[i : i + 7]) for i in range(0, len(TEXT), 7)) + END,
    ],
    ids=["event per chunk", "one chunk", "chunks across events"],
)
def test_a_chunked_stream_arrives_whole_for_a_cut_at_every_byte(raw: bytes, drop: bool) -> None:
    """FC-41, FC-42: the client's text equals the engine's, less the one event the gateway asked for."""
    wanted = TEXT.replace(EVENTS[3], b"") if drop else TEXT
    for pieces in cuts(raw):
        relay = relay_for(b"Transfer-Encoding: chunked", drop_usage=drop)
        out = b"".join(relay.feed(piece) for piece in pieces)
        assert unchunked(out) == (wanted, True)
        assert (relay.complete, relay.extra, relay.usage) == (True, False, Usage(7, 3, 4))


@given(st.lists(st.integers(0, 2000)), st.integers(1, 60))
def test_every_write_is_whole_chunks_of_whole_events(places: list[int], step: int) -> None:
    """FC-45: an error event can follow any of them."""
    raw = b"".join(chunk(TEXT[i : i + step]) for i in range(0, len(TEXT), step))
    edges = [0, *sorted(place % len(raw) for place in places), len(raw)]
    relay = relay_for(b"Transfer-Encoding: chunked")
    for start, end in itertools.pairwise(edges):
        decoder = ChunkDecoder()
        payload = b"".join(decoder.feed(relay.feed(raw[start:end])))
        assert decoder.at_start
        assert not payload or payload.endswith(b"\n\n")


def test_whole_chunks_go_on_as_they_came() -> None:
    relay = relay_for(b"Transfer-Encoding: chunked")
    read = chunk(event("a")) + chunk(event("b"))
    assert relay.feed(read) is read
    assert relay.chunks == 2
    tail = chunk(event("c"))
    assert relay.feed(read + tail[:20]) == read
    assert relay.feed(tail[20:]) == tail


def test_chunks_before_the_one_that_is_taken_out_go_on_as_they_came() -> None:
    relay = relay_for(b"Transfer-Encoding: chunked", drop_usage=True)
    first = chunk(event("a")) + chunk(event("b"))
    assert relay.feed(first + chunk(EVENTS[3]) + chunk(DONE) + END) == first + chunk(DONE) + END
    assert (relay.complete, relay.usage) == (True, Usage(7, 3, 4))


def test_a_counted_body_is_trimmed_to_its_length() -> None:
    """Bytes behind the end would reach the client as the start of its next answer."""
    relay = relay_for(b"Content-Length: 5", kind=b"application/json")
    assert relay.framing == b"content-length: 5\r\n"
    assert relay.feed(b"he") == b"he"
    assert relay.feed(b"lloHTTP/1.1 200 OK") == b"llo"
    assert relay.complete
    assert relay.extra


def test_bytes_behind_a_chunked_end_do_not_pass() -> None:
    relay = relay_for(b"Transfer-Encoding: chunked", kind=b"application/json")
    assert relay.feed(chunk(b"{}") + END + b"HTTP/1.1 200 OK") == chunk(b"{}") + END
    assert relay.extra


def test_a_body_that_ends_with_its_connection_gets_chunks() -> None:
    relay = relay_for(kind=b"application/json")
    assert relay.framing == b"transfer-encoding: chunked\r\n"
    out = relay.feed(b'{"usage":{"prompt_tokens":3}}')
    assert unchunked(out + relay.end_of_input()) == (b'{"usage":{"prompt_tokens":3}}', True)
    assert relay.usage == Usage(3, 0)


def test_an_old_client_gets_no_chunks() -> None:
    relay = relay_for(b"Transfer-Encoding: chunked", http10=True, drop_usage=True)
    assert relay.ends_by_close
    assert relay.framing == b""
    assert relay.feed(b"".join(map(chunk, EVENTS)) + END) == TEXT.replace(EVENTS[3], b"")
    assert relay.complete


def test_a_stream_of_known_length_gets_chunks_because_one_may_be_taken_out() -> None:
    relay = relay_for(b"Content-Length: %d" % len(TEXT), drop_usage=True)
    assert unchunked(relay.feed(TEXT)) == (TEXT.replace(EVENTS[3], b""), True)


@pytest.mark.parametrize("line", [b"Transfer-Encoding: chunked", b"A: b"])
def test_a_stream_without_its_terminator_gets_no_end(line: bytes) -> None:
    """FC-45: HTTP's own end is withheld, and one error event follows."""
    relay = relay_for(line)
    out = relay.feed(chunk(event("a")) + END if b"chunked" in line else event("a"))
    out += relay.end_of_input()
    assert relay.finished
    assert not relay.complete
    out += relay.error_tail(Refusal(502, "gone"))
    payload, ended = unchunked(out)
    assert payload.startswith(event("a") + b'data: {"error":')
    assert payload.count(b'"error"') == 1
    assert not ended


def framed(text: bytes, step: int, framing: str) -> tuple[list[bytes], bytes]:
    """(header lines, body) of a stream in pieces of `step` bytes, where chunks show pieces."""
    if framing == "chunked":
        return [b"Transfer-Encoding: chunked"], b"".join(chunk(text[i : i + step]) for i in range(0, len(text), step)) + END
    return ([b"Content-Length: %d" % len(text)] if framing == "length" else []), text


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("half", [b'data: {"id":', b'data: {"id":1}\n', b": ", b"data: [DONE"])
def test_half_an_event_before_the_end_is_not_glued_to_the_error_event(framing: str, half: bytes) -> None:
    """FC-45: only whole events, then the error event, for every cut of the reads."""
    lines, raw = framed(event("a") + half, 50, framing)
    for pieces in cuts(raw):
        relay = relay_for(*lines)
        out = b"".join(relay.feed(piece) for piece in pieces) + relay.end_of_input()
        assert (relay.finished, relay.complete) == (True, False)
        tail = relay.error_tail(Refusal(502, "gone"))
        payload, ended = unchunked(out + tail)
        assert (payload, ended) == (event("a") + unchunked(tail)[0], False)
        assert unchunked(tail)[0].startswith(b'data: {"error":')


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("behind", [b"", b"\n", b": ping\n\n", b": ping", b"event: x\ndata: {}\n\n"])
def test_a_stream_is_whole_whatever_follows_its_terminator(framing: str, line_end: bytes, behind: bytes) -> None:
    """FC-41, FC-45: for a cut at every byte."""
    text = (event("é") + DONE + behind).replace(b"\n", line_end)
    lines, raw = framed(text, 20, framing)
    for pieces in cuts(raw):
        relay = relay_for(*lines)
        out = b"".join(relay.feed(piece) for piece in pieces) + relay.end_of_input()
        assert unchunked(out) == (text, True)
        assert relay.complete


def test_a_whole_chunk_behind_the_terminator_goes_on() -> None:
    """FC-45: the terminator does not have to be in the last read."""
    relay = relay_for(b"Transfer-Encoding: chunked", drop_usage=True)
    out = b"".join(map(relay.feed, (chunk(event("a")), chunk(DONE), chunk(b": ping\n\n"), chunk(EVENTS[3]), END)))
    assert unchunked(out) == (event("a") + DONE + b": ping\n\n", True)
    assert relay.usage == Usage(7, 3, 4)


def test_an_engines_refusal_in_the_shape_of_a_stream_passes_as_it_is() -> None:
    """FC-44: it needs no terminator, and keeps its length."""
    head, length = parse_answer(b"HTTP/1.1 500 Oops\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n")
    relay = Relay(head, length, http10=False, drop_usage=True)
    assert relay.framing == b"content-length: 9\r\n"
    assert relay.feed(b"data: bro") == b"data: bro"
    assert relay.complete


def test_a_cut_in_the_middle_of_a_chunk_leaves_room_for_the_error_event() -> None:
    """FC-45: what was begun and not ended never reached the client."""
    relay = relay_for(b"Transfer-Encoding: chunked")
    out = relay.feed(chunk(event("a")) + chunk(event("b"))[:-9]) + relay.error_tail(Refusal(502, "gone"))
    payload, _ = unchunked(out)
    assert payload.startswith(event("a") + b'data: {"error":')


def test_the_engines_own_error_event_is_the_only_one() -> None:
    """FC-45: one error event, not two."""
    relay = relay_for(b"Transfer-Encoding: chunked")
    relay.feed(chunk(b'data: {"error":{"message":"boom"}}\n\n'))
    assert relay.failed
    assert relay.error_tail(Refusal(502, "gone")) == b""


def test_compressed_streams_pass_untouched() -> None:
    """FC-37: header and bytes agree; nothing is looked for in them."""
    relay = relay_for(b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", drop_usage=True)
    assert unchunked(relay.feed(chunk(b"\x1f\x8b not events") + END)) == (b"\x1f\x8b not events", True)


def test_broken_framing_is_noticed() -> None:
    relay = relay_for(b"Transfer-Encoding: chunked")
    relay.feed(chunk(event("a")))
    with pytest.raises(FramingError):
        relay.feed(b"+9\r\n")
