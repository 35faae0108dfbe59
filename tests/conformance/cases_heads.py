"""Cases of request heads: the first line, Host, names and values of fields, sizes."""

from __future__ import annotations

from tests.conformance.case import BODY, CHAT, ONE, Case, Reply, Seen, get, head, post, refused, served

_LENGTH = b"Content-Length: %d" % len(BODY)
_HEAD_BYTES = 16 * 1024


def _line(first: bytes) -> bytes:
    return head(b"Host: g", _LENGTH, first=first) + BODY


def _field(line: bytes) -> bytes:
    return post(line)


def _filled(size: int) -> bytes:
    """A request whose head is `size` bytes long, without its blank line."""
    without = len(post(b"X-Fill: ")) - len(BODY) - 4
    return post(b"X-Fill: " + b"f" * (size - without))


FIRST_LINE = [
    served("a plain request", post()),
    *(
        refused(f"the method {method.decode()} is not implemented", _line(b"%s %s HTTP/1.1" % (method, CHAT)), status=501)
        for method in (b"post", b"BREW", b"TRACE")
    ),
    refused("a method with a character no method has", _line(b"P@ST %s HTTP/1.1" % CHAT)),
    refused("CONNECT with an authority", head(b"Host: g:80", first=b"CONNECT g:80 HTTP/1.1"), status=501),
    refused("two blanks behind the method", _line(b"POST  %s HTTP/1.1" % CHAT)),
    refused("two blanks before the version", _line(b"POST %s  HTTP/1.1" % CHAT)),
    refused("a blank behind the version", _line(b"POST %s HTTP/1.1 " % CHAT)),
    refused("a blank before the method", _line(b" POST %s HTTP/1.1" % CHAT)),
    refused("tabs between the parts", _line(b"POST\t%s\tHTTP/1.1" % CHAT)),
    refused("a blank in the target", _line(b"POST %s HTTP/1.1 x HTTP/1.1" % CHAT)),
    refused("no version", _line(b"POST %s" % CHAT)),
    *(
        refused(f"the version {version.decode()}", _line(b"POST %s %s" % (CHAT, version)))
        for version in (b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.10", b"http/1.1", b"HTTP/1.1x", b"HTTP/11", b"ICAP/1.1")
    ),
    refused("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    refused("a bare line feed behind the first line", b"POST %s HTTP/1.1\nHost: g\r\n%s\r\n\r\n%s" % (CHAT, _LENGTH, BODY)),
    refused("a bare carriage return behind the first line", b"POST %s HTTP/1.1\rHost: g\r\n%s\r\n\r\n" % (CHAT, _LENGTH)),
    refused("bare line feeds only", b"POST %s HTTP/1.1\nHost: g\n%s\n\n%s\r\n\r\n" % (CHAT, _LENGTH, BODY)),
    served("an empty line before the first line", b"\r\n" + post()),
    served("several empty lines before the first line", b"\r\n\r\n\r\n" + post()),
    refused("a bare line feed before the first line", b"\n" + post()),
    served("an absolute target loses its authority", _line(b"POST http://other:81%s HTTP/1.1" % CHAT)),
    served("an absolute target in capitals, with a user", _line(b"POST HTTP://u:p@other%s HTTP/1.1" % CHAT)),
    served("a query goes on", _line(b"POST %s?a=1&b=%%20 HTTP/1.1" % CHAT), seen=(Seen(CHAT + b"?a=1&b=%20"),)),
    refused("a target of another scheme", _line(b"POST ftp://other%s HTTP/1.1" % CHAT)),
    refused("a target that is no path", _line(b"POST v1/chat/completions HTTP/1.1")),
    refused("a target of one star", head(b"Host: g", first=b"OPTIONS * HTTP/1.1")),
    refused("a target of an authority only", _line(b"POST g:80 HTTP/1.1")),
    refused("a control character in the target", _line(b"POST %s?\x01 HTTP/1.1" % CHAT)),
    refused("a NUL in the target", _line(b"POST %s?\x00 HTTP/1.1" % CHAT)),
    refused("a DEL in the target", _line(b"POST %s?\x7f HTTP/1.1" % CHAT)),
    refused("bytes above ASCII in the target", _line(b"POST %s?\xc3\xa9 HTTP/1.1" % CHAT)),
    refused("a target longer than a head may be", _line(b"POST %s?%s HTTP/1.1" % (CHAT, b"a" * _HEAD_BYTES)), status=431),
]

HOST = [
    refused("no Host", head(_LENGTH) + BODY),
    refused("two equal Hosts", post(b"Host: g")),
    refused("two Hosts", post(b"Host: h")),
    refused("two Hosts, written differently", post(b"HOST: h")),
    served("an empty Host", head(b"Host:", _LENGTH) + BODY),
    served("a Host with a port, which is not the engine's", head(b"Host: g:8080", _LENGTH) + BODY),
    served("a Host in IPv6", head(b"Host: [::1]:8080", _LENGTH) + BODY),
    *(
        refused(f"Host: {value.decode()}", head(b"Host: " + value, _LENGTH) + BODY)
        for value in (b"a b", b"a, b", b"http://a/", b"a/b", b"u@a", b"a:80x", b"[::1", b"a:80:81", b"a#b", b"a?b")
    ),
]

FIELDS = [
    refused("a blank before the colon", _field(b"X-A : b")),
    refused("a tab before the colon", _field(b"X-A\t: b")),
    refused("a blank before the colon of the length", head(b"Host: g", b"Content-Length : %d" % len(BODY)) + BODY),
    refused("a folded line", _field(b"X-A: b\r\n c")),
    refused("a line folded by a tab", _field(b"X-A: b\r\n\tc")),
    refused("a folded Transfer-Encoding", post(b"Transfer-Encoding:\r\n chunked")),
    refused("a line folded behind the first line", head(b" Host: g", b"Host: g", _LENGTH) + BODY),
    refused("no name", _field(b": b")),
    refused("no colon", _field(b"X-A")),
    refused("a blank in a name", _field(b"X A: b")),
    *(
        refused(f"a name with {char!r}", _field(b"X" + char + b"A: b"))
        for char in (b"(", b'"', b"@", b"[", b"/", b"\\", b",", b"\x00", b"\x7f", b"\xc3\xa9", b"\r", b"\n", b"\x0b")
    ),
    *(
        refused(f"a value with {char!r}", _field(b"X-A: b" + char + b"c"))
        for char in (b"\x00", b"\r", b"\n", b"\r\r\n", b"\x01", b"\x0b", b"\x7f")
    ),
    refused("a field smuggled behind a bare line feed", _field(b"X-A: b\nTransfer-Encoding: chunked")),
    refused("a field smuggled behind a bare carriage return", _field(b"X-A: b\rContent-Length: 1")),
    served(
        "a value of bytes above ASCII, tabs and blanks around it",
        _field(b"X-A: \t\xc3\xa9\xff b\tc \t"),
        seen=(Seen(fields=((b"x-a", b"\xc3\xa9\xff b\tc"),)),),
    ),
    served("an empty value", _field(b"X-A:"), seen=(Seen(fields=((b"x-a", b""),)),)),
    served("a colon and quotes in a value", _field(b'X-A: ":b:"'), seen=(Seen(fields=((b"x-a", b'":b:"'),)),)),
    served(
        "a name with every odd character it may have",
        _field(b"X!#$%&'*+-.^_`|~: b"),
        seen=(Seen(fields=((b"x!#$%&'*+-.^_`|~", b"b"),)),),
    ),
    served(
        "an underscore makes another field",
        _field(b"Transfer_Encoding: chunked"),
        seen=(Seen(fields=((b"transfer_encoding", b"chunked"), (b"content-length", b"%d" % len(BODY)))),),
    ),
]

SIZES = [
    served("as many fields as there may be", post(*(b"X-%d: a" % number for number in range(62)))),
    refused("one field too many", post(*(b"X-%d: a" % number for number in range(63))), status=431),
    refused("very many fields", post(*(b"A: a" for _ in range(3000))), status=431),
    Case(
        name="a head as long as it may be",
        send=(_filled(_HEAD_BYTES),),
        replies=(Reply(200),),
        seen=ONE,
        stays=True,
    ),
    Case(name="a head one byte too long", send=(_filled(_HEAD_BYTES + 1),), replies=(Reply(431),)),
    Case(name="a head that never ends", send=(b"POST %s HTTP/1.1\r\nX-A: " % CHAT + b"a" * 40_000,), replies=(Reply(431),)),
    Case(name="a head of one endless name", send=(b"POST %s HTTP/1.1\r\n" % CHAT + b"a" * 40_000,), replies=(Reply(431),)),
    Case(
        name="GET has no body unless it says so",
        send=(get(b"/livez") + get(b"/v1/models"),),
        replies=(Reply(200), Reply(200)),
        stays=True,
    ),
    Case(
        name="GET with a body",
        send=(head(b"Host: g", b"Content-Length: 2", first=b"GET /livez HTTP/1.1") + b"{}" + get(b"/livez"),),
        replies=(Reply(200), Reply(200)),
        stays=True,
    ),
]

CASES = [*FIRST_LINE, *HOST, *FIELDS, *SIZES]
