"""Cases of connections: how long they last, what waits behind what, clients that stop half-way, fields of one hop."""

from __future__ import annotations

from tests.conformance.case import (
    BODY,
    CHAT,
    CHUNKED,
    DONE,
    END,
    EVENTS,
    OK,
    OK_BODY,
    ONE,
    Await,
    Case,
    Reply,
    Seen,
    Step,
    answer,
    answer_head,
    chunk,
    event,
    get,
    head,
    post,
)
from tests.conformance.engine import Do

_LENGTH = b"Content-Length: %d" % len(BODY)
_OLD = b"POST %s HTTP/1.0" % CHAT
_CLOSES = Reply(200, ((b"connection", b"close"),), body=OK_BODY)
_NUMBERED = [b'{"model":"m","messages":[],"user":"%d"}' % number for number in range(20)]
_STREAM = b'{"model":"m","messages":[],"stream":true,"stream_options":{}}'
_HELD_STREAM = (answer_head(CHUNKED, EVENTS) + chunk(event(b"a")), Do.HOLD, chunk(DONE) + END)

LASTING = [
    Case(
        name="connections last in HTTP/1.1",
        send=(post() + post(b"Connection: keep-alive"),),
        replies=(Reply(200, absent=(b"connection",)),) * 2,
        seen=(Seen(absent=(b"connection",)), Seen(absent=(b"connection",))),
        stays=True,
        pooled=True,
    ),
    *(
        Case(name=f"Connection: {value.decode()}", send=(post(b"Connection: " + value) + post(),), replies=(_CLOSES,), seen=ONE)
        for value in (b"close", b"Close", b"keep-alive, close", b",,close , X-A")
    ),
    Case(
        name="close in the second Connection field",
        send=(post(b"Connection: keep-alive", b"Connection: close") + post(),),
        replies=(_CLOSES,),
        seen=ONE,
    ),
    Case(name="HTTP/1.0 closes", send=(head(_LENGTH, first=_OLD) + BODY,), replies=(_CLOSES,), seen=ONE),
    Case(
        name="HTTP/1.0 closes, whatever it asks for",
        send=(head(b"Connection: keep-alive", _LENGTH, first=_OLD) + BODY,),
        replies=(_CLOSES,),
        seen=ONE,
    ),
    Case(
        name="a stream for HTTP/1.0 ends with the connection",
        send=(head(b"Content-Length: %d" % len(_STREAM), first=_OLD) + _STREAM,),
        replies=(Reply(200, ((b"connection", b"close"),), (b"transfer-encoding",), event(b"a") + DONE, framing="close"),),
        seen=(Seen(body=_STREAM),),
        engine=(answer_head(CHUNKED, EVENTS) + chunk(event(b"a")) + chunk(DONE) + END,),
    ),
    Case(name="closing holds for the gateway's own answers", send=(get(b"/livez", b"Connection: close"),), replies=(Reply(200),)),
    Case(
        name="a connection that says nothing is closed after a while",
        send=(get(b"/livez"),),
        replies=(Reply(200),),
        guarded=True,
        cuts=False,
    ),
]

PIPELINES = [
    Case(
        name="twenty at once, answered in order",
        send=(b"".join(post(body=body) for body in _NUMBERED),),
        replies=(OK,) * 20,
        seen=tuple(Seen(body=body) for body in _NUMBERED),
        stays=True,
    ),
    Case(
        name="one behind a running stream",
        send=(post(body=_STREAM) + get(b"/livez"), Await(b'"a"'), Step.RELEASE),
        replies=(Reply(200, body=event(b"a") + DONE, framing="chunked"), Reply(200)),
        seen=(Seen(body=_STREAM),),
        engine=_HELD_STREAM,
        stays=True,
    ),
    Case(
        name="one behind a refusal that leaves the framing whole",
        send=(get(CHAT) + post() + get(CHAT) + post(),),
        replies=(Reply(405, ((b"allow", b"POST"),)), OK, Reply(405), OK),
        seen=(Seen(), Seen()),
        stays=True,
    ),
    Case(
        name="one behind a refusal with a body",
        send=(post(first=b"PUT %s HTTP/1.1" % CHAT) + post(),),
        replies=(Reply(405),),
    ),
    Case(
        name="a malformed one behind a good one",
        send=(post() + b"POST %s HTTP/1.1\r\nHost: g\r\nA : b\r\n\r\n" % CHAT + post(),),
        replies=(OK, Reply(400)),
        seen=ONE,
    ),
    Case(
        name="a line end too many between two",
        send=(post() + b"\r\n" + post() + b"\r\n\r\n" + post(),),
        replies=(OK, OK, OK),
        seen=(Seen(), Seen(), Seen()),
        stays=True,
    ),
]

LEAVING = [
    Case(
        name="half-closed before an answer counts as gone",
        send=(post(), Step.HELD, Step.HALF_CLOSE),
        replies=(),
        seen=ONE,
        engine=(Do.HOLD, answer()),
        leaves=True,
        pooled=False,
    ),
    Case(
        name="half-closed in mid-stream counts as gone",
        send=(post(body=_STREAM), Await(b'"a"'), Step.HALF_CLOSE),
        replies=(Reply(200, body=event(b"a"), whole=False),),
        seen=(Seen(body=_STREAM),),
        engine=_HELD_STREAM,
        leaves=True,
        pooled=False,
    ),
    Case(name="half-closed in a head", send=(post()[:30], Step.HALF_CLOSE), replies=()),
    Case(name="half-closed between requests", send=(get(b"/livez"), Await(b"ok"), Step.HALF_CLOSE), replies=(Reply(200),)),
]

SLOW = [
    Case(name="a head that stops", send=(b"POST %s HTTP/1.1\r\nHo" % CHAT,), replies=(Reply(408),), guarded=True, cuts=False),
    Case(
        name="a head byte by byte (slow loris)",
        send=(b"POST %s HTTP/1.1\r\nX: " % CHAT, Step.SLOW, b"a" * 200),
        replies=(Reply(408),),
        guarded=True,
        cuts=False,
    ),
    Case(
        name="the greeting of TLS",
        send=(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",),
        replies=(Reply(408),),
        guarded=True,
        cuts=False,
    ),
    Case(
        name="a body that stops",
        send=(post(b"Authorization: Bearer good")[:-3],),
        replies=(Reply(408),),
        guarded=True,
        cuts=False,
    ),
    Case(
        name="a body byte by byte",
        send=(post(b"Authorization: Bearer good", body=b"x" * 400)[:-300], Step.SLOW, b"x" * 200),
        replies=(Reply(408),),
        guarded=True,
        cuts=False,
    ),
]

_ENGINE_HOPS = (
    *(b"Connection: keep-alive, X-Secret", b"X-Secret: s", b"Keep-Alive: timeout=5", b"TE: trailers", b"Trailer: X-T"),
    *(b"Upgrade: h2c", b"Proxy-Authenticate: Basic", b"Proxy-Connection: keep-alive", b"x-trunkline-replica: liar"),
)
_HOPS = (b"x-secret", b"keep-alive", b"te", b"trailer", b"upgrade", b"proxy-authenticate", b"proxy-connection", b"connection")

FIELDS_OF_ONE_HOP = [
    Case(
        name="what belongs to one hop stays there, on the way in",
        send=(
            post(
                *(
                    b"Connection: keep-alive, X-Secret",
                    b"x-secret: s",
                    b"Keep-Alive: timeout=5",
                    b"TE: trailers",
                    b"Trailer: X-T",
                ),
                *(b"Upgrade: websocket", b"Proxy-Authorization: Basic eA==", b"Proxy-Connection: close", b"X-Kept: 1"),
            ),
        ),
        replies=(OK,),
        seen=(Seen(fields=((b"x-kept", b"1"),), absent=(*_HOPS, b"proxy-authorization")),),
        stays=True,
    ),
    Case(
        name="what belongs to one hop stays there, on the way out",
        send=(post(),),
        replies=(Reply(200, ((b"x-kept", b"1"), (b"x-trunkline-replica", b"r1")), _HOPS, OK_BODY),),
        seen=ONE,
        engine=(answer(*_ENGINE_HOPS, b"X-Kept: 1"),),
        stays=True,
    ),
    Case(
        name="Connection can not take away what frames the request",
        send=(
            post(b"Connection: host, content-length, content-type, X-Request-Id", b"X-Request-Id: mine", b"Content-Type: a/b"),
        ),
        replies=(OK,),
        seen=(
            Seen(fields=((b"content-length", b"%d" % len(BODY)),), absent=(b"content-type",), present=(b"host", b"x-request-id")),
        ),
        stays=True,
    ),
    Case(
        name="repeated fields stay separate and in order",
        send=(post(b"X-Tag: 1", b"X-Other: o", b"x-tag: 2"),),
        replies=(
            Reply(
                200,
                (
                    *((b"set-cookie", b"a=1"), (b"warning", b"1"), (b"set-cookie", b"b=2, c"), (b"x-trace", b"1")),
                    *((b"warning", b"2"), (b"x-trace", b"2")),
                ),
            ),
        ),
        seen=(Seen(fields=((b"x-tag", b"1"), (b"x-other", b"o"), (b"x-tag", b"2"))),),
        engine=(
            answer(
                *(b"Set-Cookie: a=1", b"Warning: 1", b"Set-Cookie: b=2, c", b"X-Trace: 1", b"Warning: 2", b"X-Trace: 2"),
            ),
        ),
        stays=True,
    ),
    Case(
        name="an offer to upgrade is declined by answering",
        send=(post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"),),
        replies=(OK,),
        seen=(Seen(absent=(b"upgrade", b"http2-settings", b"connection")),),
        stays=True,
    ),
]

CASES = [*LASTING, *PIPELINES, *LEAVING, *SLOW, *FIELDS_OF_ONE_HOP]
