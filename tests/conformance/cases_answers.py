"""Cases of engines' answers: framing, interim heads, encodings, early, long, cut and broken ones."""

from __future__ import annotations

from tests.conformance.case import (
    BODY,
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
from tests.conformance.engine import Act, Do, Drip

_STREAM = b'{"model":"m","messages":[],"stream":true,"stream_options":{}}'
_GZIP = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xabV\xcaOV\xb2*)*M\xad\x05\x00"  # only its bytes matter
_JSON = b"content-type: application/json"
_BROKEN = Reply(502)


def _answered(name: str, *engine: Act, reply: Reply = OK, pooled: bool | None = None, stays: bool = True) -> Case:
    """The engine answers one request like this, and the client gets that."""
    return Case(name=name, send=(post(),), replies=(reply,), seen=ONE, engine=engine, pooled=pooled, stays=stays)


def _streamed(name: str, *engine: Act, reply: Reply, pooled: bool | None = None, stays: bool = True) -> Case:
    """The same for a stream of events."""
    seen = (Seen(body=_STREAM),)
    return Case(name=name, send=(post(body=_STREAM),), replies=(reply,), seen=seen, engine=engine, pooled=pooled, stays=stays)


_ANSWER = event(b"a") + event(b"b") + DONE
_BROKEN_OFF = Reply(200, error_after=event(b"a"), whole=False, framing="chunked")
_EVENTS_HEAD = answer_head(CHUNKED, EVENTS)

FRAMING = [
    _answered("a length", answer(_JSON), reply=Reply(200, ((b"content-length", b"11"),), body=OK_BODY), pooled=True),
    _answered("a length of nothing", answer(body=b""), reply=Reply(200, body=b"", framing="length"), pooled=True),
    _answered("a status of the engine's own", answer(status=b"418 I'm a teapot"), reply=Reply(418, body=OK_BODY), pooled=True),
    _answered("no reason behind the status", answer(status=b"200"), reply=OK, pooled=True),
    _answered("an empty reason", answer(status=b"200 "), reply=OK, pooled=True),
    _answered("chunks", answer_head(CHUNKED, _JSON) + chunk(OK_BODY[:3]) + chunk(OK_BODY[3:]) + END, pooled=True),
    _answered("no chunk at all", answer_head(CHUNKED, _JSON) + END, reply=Reply(200, body=b""), pooled=True),
    _answered(
        "extensions and trailers of an answer are dropped",
        answer_head(CHUNKED, b"Trailer: X-T") + chunk(OK_BODY, b";a=b") + b"0;c\r\nX-T: 1\r\nX-U: 2\r\n\r\n",
        reply=Reply(200, absent=(b"trailer", b"x-t"), body=OK_BODY, framing="chunked"),
        pooled=True,
    ),
    _answered(
        "the end of the connection ends the body",
        answer_head(_JSON) + OK_BODY,
        Do.CLOSE,
        reply=Reply(200, body=OK_BODY, framing="chunked"),
        pooled=False,
    ),
    _answered("a body that comes after its head", answer_head(_JSON), Do.PAUSE, OK_BODY, Do.CLOSE, pooled=False),
    _answered("an HTTP/1.0 answer", answer_head(_JSON, version=b"HTTP/1.0") + OK_BODY, Do.CLOSE, pooled=False),
    _answered("an HTTP/1.0 answer with a length", answer(_JSON).replace(b"HTTP/1.1", b"HTTP/1.0", 1), pooled=False),
    _answered(
        "an answer that closes",
        answer(b"Connection: close"),
        reply=Reply(200, absent=(b"connection",), body=OK_BODY),
        pooled=False,
    ),
    _answered("byte by byte", Drip(answer(_JSON)), pooled=True),
    _answered("chunks byte by byte", Drip(answer_head(CHUNKED) + chunk(OK_BODY) + END), pooled=True),
    _answered(
        "a body that looks like the end of chunks", answer(body=b"0\r\n\r\n"), reply=Reply(200, body=b"0\r\n\r\n"), pooled=True
    ),
    _answered(
        "chunks that look like the end", answer_head(CHUNKED) + chunk(b"0\r\n\r\n") + END, reply=Reply(200, body=b"0\r\n\r\n")
    ),
    *(
        _answered(
            f"{status.decode()} has no body",
            answer_head(status=status),
            reply=Reply(int(status[:3]), framing="none"),
            pooled=True,
        )
        for status in (b"204 No Content", b"304 Not Modified")
    ),
    _answered(
        "204 with a length, and a body behind it",
        answer(status=b"204 No Content"),
        reply=Reply(204, absent=(b"content-length", b"transfer-encoding")),
        pooled=False,
    ),
    _answered(
        "304 with chunks named",
        answer_head(CHUNKED, status=b"304 Not Modified"),
        reply=Reply(304, absent=(b"transfer-encoding",)),
    ),
]

INTERIM = [
    _answered("100 before the answer", b"HTTP/1.1 100 Continue\r\n\r\n" + answer(), pooled=True),
    _answered(
        "103 with fields, then a pause", answer_head(b"Link: <a>", status=b"103 Early Hints"), Do.PAUSE, answer(), pooled=True
    ),
    _answered("interim answers without end", b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + answer(), reply=_BROKEN, pooled=False),
    _answered(
        "a change of protocols", answer_head(b"Upgrade: h2c", status=b"101 Switching Protocols"), reply=_BROKEN, pooled=False
    ),
]

BEYOND = [
    _answered("bytes behind the length", answer() + b"HTTP/1.1 200 OK\r\n\r\n", pooled=False),
    _answered("a second answer behind the first", answer() + answer(body=b'{"second":1}'), pooled=False),
    _answered("bytes behind the last chunk", answer_head(CHUNKED) + chunk(OK_BODY) + END + b"x", pooled=False),
    Case(
        name="a second answer is not the answer to the next request",
        send=(post(), Await(OK_BODY), get(b"/livez") + post()),
        replies=(OK, Reply(200), OK),
        seen=(Seen(), Seen()),
        engine=(answer() + answer(body=b'{"second":1}'),),
        stays=True,
    ),
]

_LARGE = b'{"messages":[],"user":"%s"}' % (b"x" * 900_000)

EARLY = [
    Case(
        name="an answer before the body was read",
        send=(post(body=_LARGE),),
        replies=(Reply(413, body=b"{}"),),
        seen=None,
        engine=(Do.EARLY, answer(body=b"{}", status=b"413 Content Too Large"), Do.HOLD),
        stays=True,
        pooled=False,
        cuts=False,
    ),
    Case(
        name="a refusal before the body was read, and the end",
        send=(post(body=_LARGE),),
        replies=(Reply(413, body=b"{}"),),
        seen=None,
        engine=(Do.EARLY, answer(b"Connection: close", body=b"{}", status=b"413 Content Too Large"), Do.HOLD),
        stays=True,
        pooled=False,
        cuts=False,
    ),
]

_SHORT = answer_head(b"content-length: 99") + OK_BODY
_CUT = Reply(200, body=OK_BODY, whole=False)


def _broken(name: str, before: bytes, *then: Act, reply: Reply = _CUT, body: bytes = BODY, mark: bytes = OK_BODY) -> Case:
    """The rest happens only once `mark` has reached the client, so that no two reads fall together."""
    send = (post(body=body), Await(mark), Step.RELEASE)
    return Case(name=name, send=send, replies=(reply,), seen=(Seen(body=body),), engine=(before, Do.HOLD, *then), pooled=False)


_STARTED = _EVENTS_HEAD + chunk(event(b"a"))

CUT = [
    _answered("the end before the length is full", _SHORT, Do.CLOSE, reply=_CUT, pooled=False, stays=False),
    _broken("a reset before the length is full", _SHORT, Do.RESET),
    _broken("the end before the last chunk", answer_head(CHUNKED) + chunk(OK_BODY), Do.CLOSE),
    _broken("a reset in mid-chunk", answer_head(CHUNKED) + b"63\r\n" + OK_BODY, Do.RESET),
    _broken("a reset of a body that ends with the connection", answer_head() + OK_BODY, Do.RESET),
    _broken("a wrong chunk size in mid-answer", answer_head(CHUNKED) + chunk(OK_BODY), b"xyz\r\n"),
    _broken(
        "a chunk longer than its size", answer_head(CHUNKED) + chunk(OK_BODY), b"1\r\nabc\r\n", reply=Reply(200, whole=False)
    ),
    _broken("a stream that is reset", _STARTED, Do.RESET, reply=_BROKEN_OFF, body=_STREAM, mark=b'"a"'),
    _broken("a stream that ends without its last chunk", _STARTED, Do.CLOSE, reply=_BROKEN_OFF, body=_STREAM, mark=b'"a"'),
    _broken("a stream that ends without its terminator", _STARTED, END, reply=_BROKEN_OFF, body=_STREAM, mark=b'"a"'),
    _broken(
        "half an event, and a reset",
        _EVENTS_HEAD + chunk(event(b"a") + b"data: {"),
        Do.RESET,
        reply=_BROKEN_OFF,
        body=_STREAM,
        mark=b'"a"',
    ),
    _broken(
        "a stream whose engine resets behind the terminator",
        _EVENTS_HEAD + chunk(_ANSWER),
        Do.RESET,
        reply=Reply(200, body=_ANSWER, whole=False),
        body=_STREAM,
        mark=DONE,
    ),
]

BROKEN = [
    _answered(f"an answer with {what}", raw, reply=_BROKEN, pooled=False)
    for what, raw in {
        "two lengths": answer(b"content-length: 11"),
        "two different lengths": answer(b"content-length: 2"),
        "length and chunks": answer(CHUNKED),
        "an unknown coding": answer_head(b"transfer-encoding: gzip, chunked") + chunk(OK_BODY) + END,
        "a signed length": answer_head(b"content-length: +11") + OK_BODY,
        "a list of lengths": answer_head(b"content-length: 11, 11") + OK_BODY,
        "a folded line": answer(b"X-A: b\r\n c"),
        "a bare line feed": answer(b"X-A: b\nX-B: c"),
        "a NUL": answer(b"X-A: b\x00"),
        "a blank before a colon": answer(b"X-A : b"),
        "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "version 2": answer().replace(b"HTTP/1.1", b"HTTP/2.0", 1),
        "a status of two digits": answer(status=b"20 OK"),
        "a status that is none": answer(status=b"999 Odd"),
        "a head that never ends": answer(b"X-A: " + b"a" * 70_000),
    }.items()
]

STREAMS = [
    _streamed(
        "a stream of events",
        _EVENTS_HEAD + chunk(event(b"a")) + chunk(event(b"b")) + chunk(DONE) + END,
        reply=Reply(200, body=_ANSWER),
        pooled=True,
    ),
    _streamed("many events in one chunk", _EVENTS_HEAD + chunk(_ANSWER) + END, reply=Reply(200, body=_ANSWER), pooled=True),
    _streamed("a stream byte by byte", Drip(_EVENTS_HEAD + chunk(_ANSWER) + END), reply=Reply(200, body=_ANSWER), pooled=True),
    _streamed(
        "chunks that cut events and letters",
        _EVENTS_HEAD + b"".join(chunk(bytes([byte])) for byte in event(b"\xf0\x9f\x9a\x82") + DONE) + END,
        reply=Reply(200, body=event(b"\xf0\x9f\x9a\x82") + DONE),
    ),
    _streamed(
        "a stream that ends with the connection",
        answer_head(EVENTS) + _ANSWER,
        Do.CLOSE,
        reply=Reply(200, body=_ANSWER, framing="chunked"),
        pooled=False,
    ),
    _streamed(
        "a stream with a length",
        answer_head(EVENTS, b"content-length: %d" % len(_ANSWER)) + _ANSWER,
        reply=Reply(200, body=_ANSWER, framing="chunked"),
    ),
    _streamed(
        "a stream whose engine closes behind the terminator",
        _EVENTS_HEAD + chunk(_ANSWER),
        Do.PAUSE,
        Do.CLOSE,
        reply=Reply(200, body=_ANSWER),
        pooled=False,
    ),
    _streamed(
        "an error instead of a stream",
        answer(_JSON, body=b'{"error":{}}', status=b"400 Bad Request"),
        reply=Reply(400, ((b"content-type", b"application/json"),), body=b'{"error":{}}'),
        pooled=True,
    ),
    Case(
        name="events are not held back",
        send=(post(body=_STREAM), Await(b'"a"'), Step.RELEASE),
        replies=(Reply(200, body=_ANSWER),),
        seen=(Seen(body=_STREAM),),
        engine=(_EVENTS_HEAD + chunk(event(b"a")), Do.HOLD, chunk(event(b"b") + DONE) + END),
        stays=True,
    ),
]

_ASKS_GZIP = b"Accept-Encoding: gzip"
_GZIPPED = ((b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding"))

ENCODINGS = [
    Case(
        name="gzip that was asked for passes as it is",
        send=(post(_ASKS_GZIP),),
        replies=(Reply(200, _GZIPPED, body=_GZIP),),
        seen=(Seen(fields=((b"accept-encoding", b"gzip"),)),),
        engine=(answer(b"Content-Encoding: gzip", b"Vary: Accept-Encoding", body=_GZIP),),
        stays=True,
    ),
    Case(
        name="nobody is asked for an encoding the client did not ask for",
        send=(post(),),
        replies=(Reply(200, absent=(b"content-encoding",), body=OK_BODY),),
        seen=(Seen(absent=(b"accept-encoding",)),),
        stays=True,
    ),
    *(
        _answered(
            f"an answer in {coding.decode()} that was not asked for",
            answer(b"Content-Encoding: " + coding, body=_GZIP),
            reply=Reply(200, ((b"content-encoding", coding),), body=_GZIP),
        )
        for coding in (b"br", b"gzip, gzip")
    ),
    Case(
        name="a compressed stream is not held back",
        send=(post(_ASKS_GZIP, body=_STREAM), Await(_GZIP), Step.RELEASE),
        replies=(Reply(200, ((b"content-encoding", b"gzip"),), body=_GZIP + _GZIP),),
        seen=(Seen(body=_STREAM, fields=((b"accept-encoding", b"gzip"),)),),
        engine=(answer_head(CHUNKED, EVENTS, b"Content-Encoding: gzip") + chunk(_GZIP), Do.HOLD, chunk(_GZIP) + END),
        stays=True,
    ),
]

HEAD_REQUESTS = [
    Case(
        name="HEAD gets the length of GET, and no body",
        send=(get(b"/livez", method=b"HEAD") + get(b"/livez"),),
        replies=(Reply(200, ((b"content-length", b"15"),), head_only=True), Reply(200, ((b"content-length", b"15"),))),
        stays=True,
    ),
    Case(
        name="HEAD that is refused gets no body either",
        send=(head(b"Host: g", first=b"HEAD /v1/chat/completions HTTP/1.1") + get(b"/livez"),),
        replies=(Reply(405, ((b"allow", b"POST"),), head_only=True), Reply(200)),
        stays=True,
    ),
    Case(
        name="HEAD that is malformed gets no body either",
        send=(b"HEAD /livez HTTP/1.1\r\nHost: g\r\nA : b\r\n\r\n",),
        replies=(Reply(400, head_only=True),),
    ),
]

# These teach the gateway that idle connections are closed early, so they come last.
IDLE = [
    Case(
        name="a kept connection that dies is replaced, a new one is not",
        send=(post(), Await(OK_BODY), post()),
        replies=(OK, _BROKEN),
        seen=(Seen(), Seen(), Seen()),
        engine=(answer(),),
        later=(Do.CLOSE,),
        stays=True,
    ),
    Case(
        name="a kept connection that is reset is replaced, a new one is not",
        send=(post(), Await(OK_BODY), post()),
        replies=(OK, _BROKEN),
        seen=(Seen(), Seen(), Seen()),
        engine=(answer(),),
        later=(Do.RESET,),
        stays=True,
    ),
    Case(
        name="a new connection that dies is the engine's failure",
        send=(post(), Await(OK_BODY), post()),
        replies=(OK, _BROKEN),
        seen=(Seen(), Seen()),
        engine=(answer(b"Connection: close"),),
        later=(Do.CLOSE,),
        stays=True,
    ),
    Case(
        name="bytes on an idle connection end it",
        send=(post(),),
        replies=(OK,),
        seen=ONE,
        engine=(answer(), Do.PAUSE, answer(body=b'{"second":1}'), Do.HOLD),
        leaves=True,
        stays=True,
        pooled=False,
    ),
    Case(
        name="an engine that closes an idle connection",
        send=(post(), Await(OK_BODY), post(), Await(OK_BODY)),
        replies=(OK, OK),
        seen=(Seen(), Seen()),
        engine=(answer(), Do.CLOSE),
        stays=True,
        pooled=False,
    ),
    Case(
        name="an engine that resets an idle connection",
        send=(post(), Await(OK_BODY), post()),
        replies=(OK, OK),
        seen=(Seen(), Seen()),
        engine=(answer(), Do.RESET),
        stays=True,
        pooled=False,
    ),
]

CASES = [*FRAMING, *INTERIM, *BEYOND, *EARLY, *CUT, *BROKEN, *STREAMS, *ENCODINGS, *HEAD_REQUESTS, *IDLE]
