"""Streams of messages, responses and SGLang's own API, through the relay: whole, cut, and with errors in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.apis.table import API
from gateway.errors import Refusal
from gateway.http1.answer import parse_answer
from gateway.request import Kind, Usage
from gateway.stream import Relay
from tests.fakes.engine import DONE, END, chunk
from tests.gateway.test_stream import cuts, unchunked

CUT = Refusal(502, 'cut "here"', kind="engine_error", code="stream_cut")


def named(kind: str, **fields: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}, ensure_ascii=False).encode())


def cumulative(text: str, prompt: int, output: int, cached: int) -> bytes:
    meta = {
        "id": "r",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "cached_tokens": cached,
    }
    return b"data: %s\n\n" % json.dumps({"text": text, "meta_info": meta}, ensure_ascii=False).encode()


@dataclass(frozen=True)
class Case:
    """A whole stream of one API; its last event is the end."""

    kind: Kind
    events: list[bytes]
    usage: Usage


MESSAGES = Case(
    Kind.MESSAGES,
    [
        named(
            "message_start",
            message={"id": "msg_1", "usage": {"input_tokens": 3, "cache_read_input_tokens": 16, "output_tokens": 0}},
        ),
        named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        named("content_block_delta", index=0, delta={"type": "text_delta", "text": 'é "message_stop" 漢'}),
        named("content_block_delta", index=0, delta={"type": "text_delta", "text": '🦜 "usage":{"input_tokens":9} "error"'}),
        named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 7}),
        named("message_stop"),
    ],
    Usage(19, 7, 16),
)
_COUNTS = {"input_tokens": 19, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 7}
RESPONSES = Case(
    Kind.RESPONSES,
    [
        named("response.created", response={"id": "resp_1", "error": None, "usage": None}, sequence_number=0),
        named("response.output_text.delta", delta='é "response.completed" 漢', sequence_number=1),
        named("response.output_text.delta", delta='🦜\n\nevent: response.completed\n\n"error"', sequence_number=2),
        named("response.completed", response={"id": "resp_1", "error": None, "usage": _COUNTS}, sequence_number=3),
    ],
    Usage(19, 7, 16),
)
GENERATE = Case(
    Kind.GENERATE,
    [cumulative("é", 19, 1, 16), cumulative("é漢🦜 [DONE]", 19, 7, 16), DONE],
    Usage(19, 7, 16),
)
CASES = [MESSAGES, RESPONSES, GENERATE]
NAMES = [case.kind.value for case in CASES]


def relay_for(kind: Kind, *, http10: bool = False) -> Relay:
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
    head, length = parse_answer(raw)
    return Relay(head, length, http10=http10, drop_usage=False, api=API[kind])


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize("framing", ["event per chunk", "one chunk", "chunks across events"])
def test_a_stream_arrives_whole_for_a_cut_at_every_byte(case: Case, framing: str) -> None:
    """FC-41: text, end and counts, whatever the reads and the engine's chunks."""
    text = b"".join(case.events)
    pieces = {"event per chunk": case.events, "one chunk": [text]}.get(
        framing, [text[i : i + 11] for i in range(0, len(text), 11)]
    )
    raw = b"".join(map(chunk, pieces)) + END
    for reads in cuts(raw):
        relay = relay_for(case.kind)
        out = b"".join(relay.feed(read) for read in reads)
        assert unchunked(out) == (text, True)
        assert (relay.complete, relay.failed, relay.usage) == (True, False, case.usage)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_stream_that_ends_anywhere_else_is_not_whole(case: Case) -> None:
    """FC-45: text that looks like the end is none; only the events in front of the cut reach the client."""
    text = b"".join(case.events)
    ends = len(text) - 2  # the last line end of the last event may be missing
    for place in range(ends):
        relay = relay_for(case.kind)
        out = relay.feed(chunk(text[:place]) + END) if place else relay.feed(END)
        assert relay.finished
        assert not relay.complete, text[:place]
        whole = [case.events[0]]
        while sum(map(len, whole)) <= place:
            whole = case.events[: len(whole) + 1]
        payload, ended = unchunked(out)
        assert (payload, ended) == (b"".join(whole[:-1]), False)
        assert relay.error_tail(CUT)


def test_a_cut_stream_of_messages_ends_in_their_error_event() -> None:
    """FC-45."""
    relay = relay_for(Kind.MESSAGES)
    relay.feed(chunk(MESSAGES.events[0]))
    event, _ = unchunked(relay.error_tail(CUT))
    name, data = event.split(b"\n")[:2]
    assert name == b"event: error"
    assert json.loads(data[6:]) == {"type": "error", "error": {"type": "api_error", "message": 'cut "here"'}}
    assert event.endswith(b"\n\n")


@pytest.mark.parametrize(("sent", "number"), [(0, 0), (1, 1), (3, 3)])
def test_a_cut_stream_of_responses_ends_in_their_error_event(sent: int, number: int) -> None:
    """FC-45: its number is the next one."""
    relay = relay_for(Kind.RESPONSES)
    for event in RESPONSES.events[:sent]:
        relay.feed(chunk(event))
    told, _ = unchunked(relay.error_tail(CUT))
    assert told.startswith(b"event: error\ndata: ")
    wanted = {"type": "error", "code": "stream_cut", "message": 'cut "here"', "param": None, "sequence_number": number}
    assert json.loads(told.split(b"\n")[1][6:]) == wanted


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Kind.MESSAGES, named("error", error={"type": "overloaded_error", "message": "x"})),
        (Kind.MESSAGES, b'data: {"error":{"message":"x"}}\n\n'),
        (Kind.RESPONSES, named("error", code="x", message="x")),
        (Kind.RESPONSES, named("response.failed", response={"error": {"code": "x"}})),
        (Kind.RESPONSES, b'data: {"type":"response.failed","response":{}}\n\n'),
        (Kind.RESPONSES, b'data: {"error":{"message":"x"}}\n\n'),
        (Kind.GENERATE, b'data: {"error":{"message":"x"}}\n\n'),
    ],
)
def test_an_engines_own_error_event_is_the_only_one(kind: Kind, error: bytes) -> None:
    """FC-45: the engine has told it, so nothing is added, and the stream may end here."""
    relay = relay_for(kind)
    out = relay.feed(chunk(error) + END)
    assert unchunked(out) == (error, True)
    assert (relay.complete, relay.failed, relay.error_tail(CUT)) == (True, True, b"")


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete"])
@pytest.mark.parametrize("line", [True, False], ids=["named", "by its data only"])
def test_both_ends_of_responses_are_ends(kind: str, line: bool) -> None:
    event = named(kind, response={"usage": _COUNTS})
    relay = relay_for(Kind.RESPONSES)
    relay.feed(chunk(event if line else event.partition(b"\n")[2]) + END)
    assert (relay.complete, relay.usage) == (True, Usage(19, 7, 16))


def test_a_last_event_too_long_to_be_held_is_the_end_once_it_is_whole() -> None:
    """FC-41, FC-45: a long answer stands whole in it; its counts may be cut as well."""
    last = named("response.completed", response={"output": "x" * 600_000, "usage": _COUNTS}, sequence_number=9)
    at = last.index(b'"usage"') + 30
    for reads in ([last], [last[:400_000], last[400_000:]], [last[:400_000], last[400_000:at], last[at:]]):
        relay = relay_for(Kind.RESPONSES)
        for read in reads[:-1]:
            relay.feed(chunk(read))
            assert not relay.complete
        relay.feed(chunk(reads[-1]))
        relay.feed(END)
        assert (relay.complete, relay.usage) == (True, Usage(19, 7, 16))
    torn = relay_for(Kind.RESPONSES)
    torn.feed(chunk(last[:400_000]) + END)
    assert not torn.complete


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ([{"input_tokens": 5, "output_tokens": 1}], Usage(5, 1, None)),
        (
            [{"input_tokens": 5, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 2, "output_tokens": 1}],
            Usage(23, 1, 16),
        ),
        ([{"input_tokens": 5, "output_tokens": 0}, {"output_tokens": 4}], Usage(5, 4, None)),
        (
            [{"input_tokens": 21, "output_tokens": 0}, {"input_tokens": 5, "cache_read_input_tokens": 16, "output_tokens": 4}],
            Usage(21, 4, 16),
        ),
        ([{"input_tokens": 5, "output_tokens": 0}, {"input_tokens": None, "output_tokens": 4}], Usage(5, 4, None)),
        ([{"output_tokens": 4}], None),
        ([{"input_tokens": "5", "output_tokens": 4}], None),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_counts_of_messages_come_in_parts(counts: list[dict[str, Any]], usage: Usage | None, together: bool) -> None:
    """Tokens read from a cache are not among `input_tokens`; the last counts may be those of the output alone."""
    relay = relay_for(Kind.MESSAGES)
    events = [named("message_delta", usage=one) for one in counts]
    for piece in [b"".join(map(chunk, events))] if together else map(chunk, events):
        relay.feed(piece)
    assert relay.usage == usage


WHOLE = [
    (
        Kind.MESSAGES,
        {
            "id": "m",
            "content": [{"type": "tool_use", "input": {"usage": 1}}],
            "usage": {"input_tokens": 3, "output_tokens": 7, "cache_read_input_tokens": 16},
        },
    ),
    (Kind.RESPONSES, {"id": "r", "error": None, "usage": _COUNTS}),
    (Kind.STORED, {"id": "r", "usage": _COUNTS}),
    (
        Kind.GENERATE,
        {"text": '"cached_tokens": 99,', "meta_info": {"prompt_tokens": 19, "completion_tokens": 7, "cached_tokens": 16}},
    ),
    (Kind.TOKENS, {"usage": {"prompt_tokens": 19, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}}),
]


@pytest.mark.parametrize(("kind", "answer"), WHOLE, ids=[kind.value for kind, _ in WHOLE])
def test_counts_of_whole_answers_are_found_for_a_cut_at_every_byte(kind: Kind, answer: object) -> None:
    """FC-41."""
    body = json.dumps(answer).encode()
    head, length = parse_answer(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(body))
    for reads in cuts(body):
        relay = Relay(head, length, http10=False, drop_usage=False, api=API[kind])
        assert b"".join(map(relay.feed, reads)) == body
        assert (relay.complete, relay.usage) == (True, Usage(19, 7, 16))


def test_a_stream_nobody_knows_passes_unread() -> None:
    """Its end is that of its framing; nothing is added where it is cut."""
    relay = relay_for(Kind.PASS_THROUGH)
    raw = chunk(b"data: half") + chunk(b" an event")
    assert unchunked(relay.feed(raw) + relay.feed(END)) == (b"data: half an event", True)
    assert relay.complete
    cut = relay_for(Kind.PASS_THROUGH)
    cut.feed(raw)
    assert (cut.complete, cut.error_tail(CUT)) == (False, b"")
