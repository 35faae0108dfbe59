"""Which replica keeps which response: remembered as it passes, bounded, forgotten with its replica."""

from __future__ import annotations

import pytest

from gateway.apis.stored import PATH, NamingRelay, StoredResponses
from gateway.apis.table import API
from gateway.http1.answer import parse_answer
from gateway.request import Kind
from tests.fakes.engine import END, chunk


def test_the_last_responses_are_remembered() -> None:
    stored = StoredResponses(most=2)
    for response_id, replica in (("1", "a"), ("2", "b"), ("1", "a"), ("3", "a")):
        stored.remember(response_id, replica)
    assert [stored.of(response_id) for response_id in "123"] == ["a", None, "a"]
    assert len(stored) == 2
    stored.forget_replica("a")
    assert len(stored) == 0


def relay(told: list[str], *fields: bytes, kind: bytes = b"application/json") -> NamingRelay:
    lines = (b"HTTP/1.1 200 OK", b"Content-Type: " + kind, *fields)
    head, length = parse_answer(b"".join(line + b"\r\n" for line in lines))
    return NamingRelay(head, length, http10=False, drop_usage=False, api=API[Kind.RESPONSES], tell=told.append)


def test_the_id_of_an_answer_is_told_once_for_a_cut_at_every_byte() -> None:
    """FC-41."""
    body = b'{"id" : "resp_1","object":"response","output":[{"id":"msg_2"}]}'
    for place in range(len(body) + 1):
        told: list[str] = []
        it = relay(told, b"Content-Length: %d" % len(body))
        assert it.feed(body[:place]) + it.feed(body[place:]) == body
        assert told == ["resp_1"]


def test_the_id_of_a_stream_is_told_with_its_first_event() -> None:
    told: list[str] = []
    it = relay(told, b"Transfer-Encoding: chunked", kind=b"text/event-stream")
    it.feed(chunk(b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'))
    assert told == ["resp_1"]
    it.feed(chunk(b'event: x\ndata: {"item":{"id":"msg_1"}}\n\n') + END)
    assert told == ["resp_1"]


@pytest.mark.parametrize(
    "front", [b'{"a":"\\"id\\":\\"no\\"",', b'{"id":"' + b"x" * 201 + b'",', b'{"id":"a b",', b'{"id":7,', b""]
)
def test_what_is_no_id_is_none(front: bytes) -> None:
    told: list[str] = []
    body = front + b'"x":"' + b"y" * 5000 + b'","id":"too late"}'
    it = relay(told, b"Content-Length: %d" % len(body))
    for at in range(0, len(body), 1000):
        it.feed(body[at : at + 1000])
    assert told == []


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/v1/responses/resp_1", ("resp_1", None)),
        ("/v1/responses/resp_1/cancel", ("resp_1", "/cancel")),
        ("/v1/responses/a.b:c-d/input_items", ("a.b:c-d", "/input_items")),
    ],
)
def test_paths_of_one_response(path: str, parts: tuple[str, str | None]) -> None:
    match = PATH.fullmatch(path)
    assert match is not None
    assert (match["id"], match["of"]) == parts


@pytest.mark.parametrize(
    "path", ["", "/", "/.", "/..", "/../cancel", "/x/y", "/x/cancel/", "/a%2fb", "/x/../../flush_cache", "/" + "x" * 201]
)
def test_other_paths_are_none(path: str) -> None:
    assert PATH.fullmatch("/v1/responses" + path) is None
