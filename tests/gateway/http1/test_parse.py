"""Request heads: what is accepted, what is refused, what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.config import Limits
from gateway.errors import Refusal
from gateway.http1.parse import HeadReader, RequestHead, parse_head
from gateway.routes import Route, Routes


def head(*lines: bytes, first: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    return b"".join(line + b"\r\n" for line in (first, *lines))


def read(*lines: bytes, first: bytes = b"POST /v1/chat/completions HTTP/1.1") -> tuple[RequestHead, int]:
    return parse_head(head(*lines, first=first), 64)


def status_of(raw: bytes) -> int:
    with pytest.raises(Refusal) as caught:
        parse_head(raw, 64)
    assert caught.value.close
    return caught.value.status


SMUGGLING = {
    "length and chunked": [b"Host: x", b"Content-Length: 5", b"Transfer-Encoding: chunked"],
    "two lengths": [b"Host: x", b"Content-Length: 5", b"Content-Length: 6"],
    "two equal lengths": [b"Host: x", b"Content-Length: 5", b"Content-Length: 5"],
    "list of lengths": [b"Host: x", b"Content-Length: 5, 5"],
    "signed length": [b"Host: x", b"Content-Length: +5"],
    "negative length": [b"Host: x", b"Content-Length: -5"],
    "hex length": [b"Host: x", b"Content-Length: 0x5"],
    "underscore in length": [b"Host: x", b"Content-Length: 1_0"],
    "empty length": [b"Host: x", b"Content-Length:"],
    "blank before colon": [b"Host: x", b"Content-Length : 5"],
    "folded line": [b"Host: x", b"A: b", b" c"],
    "bare line feed": [b"Host: x", b"A: b\nContent-Length: 5"],
    "bare carriage return": [b"Host: x", b"A: b\rContent-Length: 5"],
    "nul in a value": [b"Host: x", b"A: b\x00c"],
    "chunked twice": [b"Host: x", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
    "chunked in a list": [b"Host: x", b"Transfer-Encoding: chunked, chunked"],
    "other coding": [b"Host: x", b"Transfer-Encoding: gzip, chunked"],
    "unknown coding": [b"Host: x", b"Transfer-Encoding: xchunked"],
    "quoted coding": [b"Host: x", b'Transfer-Encoding: "chunked"'],
    "no host": [b"A: b"],
    "two hosts": [b"Host: x", b"Host: y"],
    "no colon": [b"Host: x", b"Content-Length 5"],
    "empty name": [b"Host: x", b": 5"],
}


@pytest.mark.parametrize("lines", SMUGGLING.values(), ids=SMUGGLING.keys())
def test_a_head_that_can_be_read_in_two_ways_is_refused(lines: list[bytes]) -> None:
    """FC-61: no head is accepted that another parser could frame differently."""
    assert status_of(head(*lines)) == 400


@pytest.mark.parametrize(
    "first",
    [
        b"POST  /a HTTP/1.1",
        b"POST /a  HTTP/1.1",
        b"POST /a HTTP/1.2",
        b"POST /a HTTP/2.0",
        b"POST /a",
        b"POST /a b HTTP/1.1",
        b"POST a HTTP/1.1",
        b"POST * HTTP/1.1",
        b"POST gateway:80 HTTP/1.1",
        b" POST /a HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01",
    ],
)
def test_a_wrong_first_line_is_refused(first: bytes) -> None:
    assert status_of(head(b"Host: x", first=first)) == 400


@pytest.mark.parametrize("method", [b"CONNECT", b"TRACE", b"post", b"BREW", b"PRI"])
def test_an_unknown_method_is_not_implemented(method: bytes) -> None:
    assert status_of(head(b"Host: x", first=method + b" /a HTTP/1.1")) == 501


def test_too_many_fields_are_refused() -> None:
    with pytest.raises(Refusal) as caught:
        parse_head(head(b"Host: x", *(b"A: b" for _ in range(64))), 64)
    assert caught.value.status == 431


def test_an_unknown_expectation_is_refused() -> None:
    """FC-38: only 100-continue can be met."""
    assert status_of(head(b"Host: x", b"Content-Length: 1", b"Expect: 200-ok")) == 417
    assert read(b"Host: x", b"Content-Length: 1", b"Expect: 100-Continue")[0].expects_continue


def test_repeated_fields_pass_in_order_and_hop_by_hop_ones_do_not() -> None:
    """FC-35, FC-36: what belongs to the connection, or is named in Connection, stays here."""
    parsed, length = read(
        b"Host: x",
        b"X-Tag: 1",
        b"Connection: keep-alive, X-Secret",
        b"X-Secret: s",
        b"Keep-Alive: timeout=5",
        b"TE: trailers",
        b"Trailer: X-T",
        b"Upgrade: websocket",
        b"Proxy-Authorization: Basic eA==",
        b"Proxy-Connection: keep-alive",
        b"Expect: 100-continue",
        b"X-Tag: 2",
        b"Content-Length: 7",
        b"Accept-Encoding: gzip",
        b"X-Empty:",
    )
    assert length == 7
    assert parsed.forwarded == b"X-Tag: 1\r\nX-Tag: 2\r\nAccept-Encoding: gzip\r\nX-Empty: \r\n"
    assert parsed.forwarded_plain == b"X-Tag: 1\r\nX-Tag: 2\r\nX-Empty: \r\n"


def test_an_offer_to_upgrade_is_declined_silently() -> None:
    parsed, length = read(
        b"Host: x", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: a", b"Content-Length: 3"
    )
    assert (parsed.forwarded, length, parsed.keep_alive) == (b"", 3, True)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b"Authorization: Bearer sk-1", b"sk-1"),
        (b"authorization: bearer   sk-1", b"sk-1"),
        (b"X-Api-Key: sk-2", b"sk-2"),
        (b"api-key: sk-3", b"sk-3"),
        (b"Authorization: Basic sk-1", None),
        (b"Authorization: Bearer", None),
        (b"A: b", None),
    ],
)
def test_keys_are_found_and_not_forwarded(line: bytes, key: bytes | None) -> None:
    """FC-60: none of the fields that carry a key is among those that travel on."""
    parsed, _ = read(b"Host: x", line)
    assert parsed.key == key
    assert b"sk-" not in parsed.forwarded
    assert "sk-" not in repr(parsed)


def test_absolute_targets_lose_their_authority() -> None:
    assert read(b"Host: x", first=b"POST http://other/v1/models?a=1 HTTP/1.1")[0].target == b"/v1/models?a=1"
    assert read(b"Host: x", first=b"POST HTTP://other HTTP/1.1")[0].target == b"/"
    assert read(b"Host: x", first=b"POST /v1/models?a=1 HTTP/1.1")[0].path == "/v1/models"


def test_http_1_0_closes_and_needs_no_host() -> None:
    parsed, _ = read(b"Connection: keep-alive", first=b"POST /a HTTP/1.0")
    assert parsed.http10
    assert not parsed.keep_alive
    assert status_of(head(b"Transfer-Encoding: chunked", first=b"POST /a HTTP/1.0")) == 400


def test_session_and_priority_are_read() -> None:
    parsed, _ = read(b"Host: x", b"X-Trunkline-Session: s 1", b"X-Trunkline-Priority: -3")
    assert (parsed.session, parsed.priority) == ("s 1", -3)
    assert status_of(head(b"Host: x", b"X-Trunkline-Priority: high")) == 400


class Judge:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, parsed: RequestHead) -> tuple[Route, None]:
        self.calls += 1
        return Routes().of(parsed.method, parsed.path), None


def test_heads_that_differ_in_length_only_are_read_once() -> None:
    judge = Judge()
    reader = HeadReader(Limits(), judge)
    results = [reader.read(head(b"Host: x", b"Content-Length: %d" % size, b"A: b")) for size in (1, 22, 333)]
    assert [length for _, length in results] == [1, 22, 333]
    assert judge.calls == 1
    assert results[0][0] is results[2][0]


def test_a_second_length_is_never_hidden_by_the_memo() -> None:
    """FC-61: the memo's key leaves one length out; a head with two must not hit an entry made with one."""
    reader = HeadReader(Limits(), Judge())
    reader.read(head(b"Host: x", b"Content-Length: 5"))
    for lines in ([b"Content-Length: 5", b"Content-Length: 5"], [b"Content-Length: 5", b"Content-Length: 50"]):
        for _ in range(2):  # neither the first time nor once it could have been remembered
            with pytest.raises(Refusal):
                reader.read(head(b"Host: x", *lines))
    with pytest.raises(Refusal):
        reader.read(head(b"Host: x", b"Content-Length: 5", b"Transfer-Encoding: chunked"))


_LENGTHS = [b"Content-Length: 11", b"content-length:7", b"CONTENT-LENGTH: 11", b"Content-Length:  5", b"Content-Length:\t5"]
_LINES = [*_LENGTHS, b"Content-Length: ", b"Host: a", b"X-N: 1", b"X-N: 13", b"X-N: ", b"Transfer-Encoding: chunked"]


@given(st.lists(st.lists(st.sampled_from(_LINES), max_size=3), min_size=2, max_size=8))
@example([[b"X-N: 1", b"Content-Length: 11"], [b"X-N: 11"]])
@example([[b"Content-Length: 11"], [b"Content-Length: "]])
def test_a_warm_memo_reads_as_a_cold_one(heads: list[list[bytes]]) -> None:
    """FC-61: no head is read otherwise because of those before it."""
    warm = HeadReader(Limits(), Judge())
    for fields in heads:
        raw = head(b"Host: x", *fields)
        assert _read(warm, raw) == _read(HeadReader(Limits(), Judge()), raw)


def _read(reader: HeadReader, raw: bytes) -> object:
    try:
        return reader.read(raw)
    except Refusal as refusal:
        return refusal.status, refusal.message


def test_refusals_are_not_remembered_and_the_memo_can_be_dropped() -> None:
    judge = Judge()
    reader = HeadReader(Limits(), judge)
    for _ in range(2):
        with pytest.raises(Refusal):
            reader.read(head(b"Host: x", b"Content-Length: 5", first=b"POST /nowhere HTTP/1.1"))
    assert judge.calls == 2
    reader.read(head(b"Host: x", b"Content-Length: 5"))
    reader.forget()
    reader.read(head(b"Host: x", b"Content-Length: 5"))
    assert judge.calls == 4


def test_the_memo_is_bounded() -> None:
    judge = Judge()
    reader = HeadReader(Limits(), judge)
    for number in range(3000):
        reader.read(head(b"Host: x", b"Content-Length: 5", b"X-Trace: %d" % number))
    assert len(reader._memo) <= 1024
