"""Cases of request bodies: lengths, codings, chunks, trailers, expectations."""

from __future__ import annotations

from tests.conformance.case import (
    BODY,
    CHAT,
    END,
    NOTHING,
    OK,
    ONE,
    Await,
    Case,
    Reply,
    Seen,
    Step,
    chunk,
    chunked,
    get,
    head,
    post,
    refused,
    served,
)

_LENGTH = b"Content-Length: %d" % len(BODY)
_BODY_BYTES = 1_000_000  # as the suite's gateway is told
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SMUGGLED = post(body=b'{"smuggled":true}')
_CHUNKED_BODY = chunk(BODY) + END


def _lengths(*values: bytes) -> bytes:
    return head(b"Host: g", *(b"Content-Length: " + value for value in values)) + BODY


def _coding(value: bytes) -> bytes:
    return head(b"Host: g", b"Transfer-Encoding: " + value) + _CHUNKED_BODY


def _size_line(line: bytes) -> bytes:
    """A chunked body whose first size line is this, for a chunk of the whole body."""
    return chunked(line + b"\r\n" + BODY + b"\r\n" + END)


LENGTHS = [
    *(
        refused(f"Content-Length: {value.decode('latin-1')!r}", _lengths(value))
        for value in (
            *(b"+38", b"-38", b"3 8", b"38,38", b"38, 38", b"38;x", b"0x26", b"3_8", b"38.0", b"3e1", b"", b"a", b'"38"'),
            *(b"\xb2", b"38\x0b", b"9999999999999999", b"18446744073709551654"),
        )
    ),
    refused("two equal lengths", _lengths(b"38", b"38")),
    refused("two lengths", _lengths(b"38", b"3")),
    refused("two lengths, the other first", _lengths(b"0", b"38")),
    served("a length with zeros in front", _lengths(b"00000000038")),
    served("a length with blanks around it", _lengths(b" \t38 \t")),
    Case(name="a length above the limit", send=(_lengths(b"999999999999999"),), replies=(Reply(413),)),
    Case(name="a length one byte above the limit", send=(_lengths(b"1000001"),), replies=(Reply(413),)),
    refused("a body longer than its length", head(b"Host: g", _LENGTH) + BODY + b"GARBAGE\r\n", seen=ONE, replies=(OK,)),
    Case(
        name="a body shorter than its length, and the end",
        send=(head(b"Host: g", b"Content-Length: 99") + BODY, Step.HALF_CLOSE),
        replies=(),
    ),
    Case(
        name="no length and no coding is no body",
        send=(head(b"Host: g") + get(b"/livez"),),
        replies=(Reply(400), Reply(200)),
        stays=True,
    ),
    Case(
        name="a body that is not JSON leaves the connection",
        send=(post(body=b"\xff{") + post(),),
        replies=(Reply(400), OK),
        seen=ONE,
        stays=True,
    ),
]

CODINGS = [
    refused("length and chunked", head(b"Host: g", _LENGTH, b"Transfer-Encoding: chunked") + _CHUNKED_BODY),
    refused(
        "chunked and length", head(b"Host: g", b"Transfer-Encoding: chunked", b"Content-Length: 4") + b"0\r\n\r\n" + _SMUGGLED
    ),
    refused("chunked and no length at all", head(b"Host: g", b"Transfer-Encoding: chunked", b"Content-Length: 0") + END),
    *(
        refused(f"Transfer-Encoding: {value.decode('latin-1')!r}", _coding(value))
        for value in (
            *(b"chunked, chunked", b"chunked,", b", chunked", b"chunked;q=1", b"identity", b"gzip, chunked", b"chunked, gzip"),
            *(b"xchunked", b"chunkedx", b'"chunked"', b"\x0bchunked", b"chunked\x0c", b"chun ked", b"", b"deflate"),
        )
    ),
    refused("chunked twice", head(b"Host: g", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + _CHUNKED_BODY),
    refused("chunked and identity", head(b"Host: g", b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity") + END),
    refused("a blank before the colon of the coding", head(b"Host: g", b"Transfer-Encoding : chunked") + _CHUNKED_BODY),
    refused(
        "chunked in HTTP/1.0",
        head(b"Host: g", b"Transfer-Encoding: chunked", first=b"POST %s HTTP/1.0" % CHAT) + _CHUNKED_BODY,
    ),
    served("chunked in other letters, blanks around it", _coding(b"\t ChunKed ")),
    refused(
        "a tab behind chunked", _coding(b"chunked\t")
    ),  # allowed by the book; the parser of record is stricter, which is safe
]

CHUNKS = [
    served("one chunk, sent on with a length", chunked(_CHUNKED_BODY), seen=(Seen(absent=(b"transfer-encoding", b"trailer")),)),
    served("chunks of one byte", chunked(b"".join(chunk(bytes([byte])) for byte in BODY) + END)),
    served("hexadecimal in both cases", chunked(b"A\r\n" + BODY[:10] + b"\r\n1c\r\n" + BODY[10:] + b"\r\n" + END)),
    served("zeros in front of a size", _size_line(b"00000026")),
    served("zeros as the last size", chunked(chunk(BODY) + b"0000\r\n\r\n")),
    served("an extension is dropped", _size_line(b'26;name=value;other="a;b"')),
    served("blanks behind a size", _size_line(b"26 \t")),
    served("a blank before an extension", _size_line(b"26 ;a=b")),
    served("an extension of the last chunk", chunked(chunk(BODY) + b"0;a=b\r\n\r\n")),
    served(
        "trailer fields are dropped",
        chunked(chunk(BODY) + b"0\r\nX-Trailer: 1\r\nContent-Length: 9\r\nTransfer-Encoding: x\r\n\r\n", b"Trailer: X-Trailer"),
        seen=(Seen(absent=(b"x-trailer", b"trailer", b"transfer-encoding")),),
    ),
    *(
        refused(f"chunk size {line.decode('latin-1')!r}", _size_line(line))
        for line in (
            *(b"+26", b"-26", b"0x26", b"2 6", b"", b"g", b"2_6", b" 26", b"26,", b"000000026", b"26\x0b", b"26;a\nb"),
            *(b"26;\x00", b"26;a\rb", b"\xb26", b"26.0", b"'26'"),
        )
    ),
    refused("a request's chunk longer than its size", chunked(b"3\r\n" + BODY + b"\r\n" + END)),
    refused("a chunk shorter than its size", chunked(b"28\r\n" + BODY + b"\r\n" + END)),
    refused("a line feed alone behind a size", chunked(b"26\n" + BODY + b"\r\n" + END)),
    refused("a line feed alone behind a chunk", chunked(b"26\r\n" + BODY + b"\n" + END)),
    refused("an extension without end", chunked(b"26;" + b"a" * 1100 + b"\r\n")),
    refused("a trailer line without end", chunked(chunk(BODY) + b"0\r\nX: " + b"a" * 1100 + b"\r\n\r\n")),
    refused("a trailer of too many lines", chunked(chunk(BODY) + b"0\r\n" + b"X-T: 1\r\n" * 2100 + b"\r\n")),
    refused("chunks that are mostly framing", chunked(b"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 3000), cuts=False),
    refused("a chunk above the limit", chunked(b"f4241\r\n"), status=413),
    refused("the largest size", chunked(b"ffffffff\r\n"), status=413),
    refused(
        "chunks that are above the limit together",
        chunked(chunk(b"x" * 400_000) * 2 + b"%x\r\n" % (_BODY_BYTES - 800_000 + 1)),
        status=413,
        cuts=False,
    ),
    Case(name="no last chunk, and the end", send=(chunked(chunk(BODY)), Step.HALF_CLOSE), replies=()),
    Case(
        name="a last chunk without its blank line, and the end",
        send=(chunked(chunk(BODY) + b"0\r\n"), Step.HALF_CLOSE),
        replies=(),
    ),
    Case(
        name="a request behind a chunked body",
        send=(chunked(_CHUNKED_BODY) + post(),),
        replies=(OK, OK),
        seen=(Seen(), Seen()),
        stays=True,
    ),
    refused("what is left of a chunked body is the next request", chunked(_CHUNKED_BODY) + b"0\r\n\r\n", seen=ONE, replies=(OK,)),
]

_EXPECTING = head(b"Host: g", b"Expect: 100-continue", _LENGTH)
_GOOD, _BAD = b"Authorization: Bearer good", b"Authorization: Bearer bad"

EXPECT = [
    served("100, then the body", _EXPECTING, Await(_CONTINUE), BODY, seen=(Seen(absent=(b"expect",)),)),
    served("100-Continue in other letters", _EXPECTING.replace(b"100-c", b"100-C"), Await(_CONTINUE), BODY),
    served("100 for a chunked body", chunked(b"", b"Expect: 100-continue"), Await(_CONTINUE), _CHUNKED_BODY),
    Case(name="an unknown expectation", send=(head(b"Host: g", b"Expect: 200-ok", _LENGTH),), replies=(Reply(417),)),
    Case(
        name="an unknown expectation beside a known one",
        send=(head(b"Host: g", b"Expect: 200-ok", b"Expect: 100-continue", _LENGTH),),
        replies=(Reply(417),),
    ),
    Case(
        name="no 100 where the announced body is too large",
        send=(head(b"Host: g", b"Expect: 100-continue", b"Content-Length: 1000001"),),
        replies=(Reply(413),),
    ),
    Case(
        name="no 100 where the method is wrong",
        send=(head(b"Host: g", b"Expect: 100-continue", _LENGTH, first=b"PUT %s HTTP/1.1" % CHAT),),
        replies=(Reply(405, ((b"allow", b"POST"),)),),
    ),
    Case(
        name="no 100 where the key is wrong",
        send=(head(b"Host: g", _BAD, b"Expect: 100-continue", _LENGTH),),
        replies=(Reply(401, ((b"www-authenticate", b"Bearer"),)),),
        guarded=True,
    ),
    Case(
        name="100 where the key is right",
        send=(head(b"Host: g", _GOOD, b"Expect: 100-continue", _LENGTH), Await(_CONTINUE), BODY),
        replies=(OK,),
        seen=(Seen(absent=(b"expect", b"authorization")),),
        stays=True,
        guarded=True,
    ),
    Case(
        name="HTTP/1.0 knows no expectations",
        send=(head(b"Expect: 100-continue", _LENGTH, first=b"POST %s HTTP/1.0" % CHAT) + BODY,),
        replies=(OK,),
        seen=(Seen(absent=(b"expect",)),),
    ),
    Case(
        name="a refused body that comes anyway is thrown away",
        send=(head(b"Host: g", b"Expect: 100-continue", b"Content-Length: 1000001") + b"x" * 200_000,),
        replies=(Reply(413),),
        seen=NOTHING,
        cuts=False,
    ),
]

CASES = [*LENGTHS, *CODINGS, *CHUNKS, *EXPECT]
