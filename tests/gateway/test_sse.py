"""Whole events, the one that is taken out, and the one that tells of a failure."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.request import Usage
from gateway.sse import EventReader
from tests.fakes.engine import DONE, event, usage_event

TEXT = event("é 漢 🦜") + b": ping\n\n" + event("b") + usage_event(7, 2, 4) + DONE


def fed(reader: EventReader, pieces: list[bytes]) -> bytes:
    return b"".join(reader.feed(piece) for piece in pieces) + reader.flush()


LINE_ENDS = [b"\n", b"\r\n", b"\r"]


@pytest.mark.parametrize("line_end", LINE_ENDS)
@pytest.mark.parametrize("drop", [False, True])
def test_events_are_the_same_for_a_cut_at_every_byte(line_end: bytes, drop: bool) -> None:
    """FC-41, FC-42: all bytes pass, or all but the usage event, wherever reads end."""
    text = TEXT.replace(b"\n", line_end)
    wanted = text.replace(usage_event(7, 2, 4).replace(b"\n", line_end), b"") if drop else text
    for place in range(len(text)):
        reader = EventReader(drop_usage=drop)
        assert fed(reader, [text[:place], text[place:]]) == wanted
        assert reader.usage == Usage(7, 2, 4)
        assert reader.complete
    reader = EventReader(drop_usage=drop)
    assert fed(reader, [text[place : place + 1] for place in range(len(text))]) == wanted


@given(st.lists(st.integers(0, len(TEXT))))
def test_only_whole_events_come_out(places: list[int]) -> None:
    """FC-45: at no point is half an event with the client."""
    edges = [0, *sorted(places), len(TEXT)]
    reader = EventReader(drop_usage=False)
    for start, end in itertools.pairwise(edges):
        out = reader.feed(TEXT[start:end])
        assert not out or out.endswith(b"\n\n")


@given(
    st.sampled_from(LINE_ENDS),
    st.booleans(),
    st.sampled_from([b"", b"\n", b": ping\n\n", b": ping", b"event: end\ndata: {}\n\n", usage_event(7, 2, 4)]),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(st.integers(0, len(TEXT) + 60)),
)
def test_nothing_depends_on_cuts_line_ends_or_what_follows(
    line_end: bytes, drop: bool, behind: bytes, mark: bytes, places: list[int]
) -> None:
    """FC-41, FC-42, FC-45: a whole stream stays one, whatever comes behind its terminator and wherever reads end."""
    text = (mark + TEXT + behind).replace(b"\n", line_end)
    counts = usage_event(7, 2, 4).replace(b"\n", line_end)
    reader = EventReader(drop_usage=drop)
    edges = [0, *sorted(places), len(text)]
    assert fed(reader, [text[start:end] for start, end in itertools.pairwise(edges)]) == (
        text.replace(counts, b"") if drop else text
    )
    assert (reader.complete, reader.failed, reader.usage) == (True, False, Usage(7, 2, 4))


@pytest.mark.parametrize(
    "text",
    [
        b"data:[DONE]\n\n",
        b"data: [DONE]\n\n",
        b"data:  [DONE] \n\n",
        b"\n\ndata: [DONE]\n\n",
        b"\xef\xbb\xbfdata: [DONE]\n\n",
        b"id: 1\nevent: done\ndata: [DONE]\n\n",
        b"data: [DONE]\n",
        b"data: [DONE]",
    ],
)
@pytest.mark.parametrize("line_end", LINE_ENDS)
def test_the_terminator_is_known_in_every_shape_and_cut(text: bytes, line_end: bytes) -> None:
    """FC-45: engines write it differently."""
    text = text.replace(b"\n", line_end)
    for place in range(len(text)):
        reader = EventReader(drop_usage=False)
        assert fed(reader, [text[:place], text[place:]]) == text
        assert reader.complete


@pytest.mark.parametrize(
    "text",
    [b"data: [DONE\n\n", b": [DONE]\n\n", b"data: x[DONE]\n\n", b"data: a\ndata: [DONE]\n\n", b'data: {"a":"[DONE]"}\n\n'],
)
def test_what_only_looks_like_the_terminator_is_none(text: bytes) -> None:
    reader = EventReader(drop_usage=False)
    assert fed(reader, [text]) == text
    assert not reader.complete


@pytest.mark.parametrize(
    "rest", [b"data: {", b"data: [DON", b'data: {"a":1}', b'data: {"a":1}\n', b'data: {"error":{"mess', b": c"]
)
def test_half_an_event_at_the_end_is_dropped(rest: bytes) -> None:
    """FC-45: an error event behind it would be glued to it."""
    reader = EventReader(drop_usage=False)
    assert fed(reader, [event("a"), rest]) == event("a")
    assert not reader.complete


def test_an_event_that_ends_in_a_lone_cr_is_whole_at_the_end() -> None:
    reader = EventReader(drop_usage=False)
    assert reader.feed(b"data: 1\r\n\r") == b""  # the CR may be half a CRLF
    assert reader.flush() == b"data: 1\r\n\r"


def test_an_error_event_without_its_blank_line_passes() -> None:
    """FC-45: the engine's own error, whole."""
    reader = EventReader(drop_usage=False)
    text = event("a") + b'data: {"error":{"message":"boom"}}\n'
    assert fed(reader, [text]) == text
    assert reader.failed


@pytest.mark.parametrize("front", [b"", b'"choices":null,', b'"choices":[],'])
def test_counts_without_choices_are_taken_out_in_every_shape(front: bytes) -> None:
    """FC-42: also where they come behind the terminator."""
    counts = b'data: {%s"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n' % front
    for text in (event("a") + counts + DONE, event("a") + DONE + counts):
        reader = EventReader(drop_usage=True)
        assert fed(reader, [text[:30], text[30:]]) == event("a") + DONE
        assert reader.usage == Usage(3, 2)


def test_an_error_event_with_counts_stays() -> None:
    """FC-45: it is not the answer to the gateway's question."""
    text = b'data: {"error":{"message":"x"},"usage":{"prompt_tokens":3}}\n\n'
    reader = EventReader(drop_usage=True)
    assert fed(reader, [text]) == text


def test_line_ends_of_the_event_before_stay_when_one_is_taken_out() -> None:
    """FC-41: a CRLF that is cut behind a CR leaves its LF in front of the next event."""
    counts = usage_event(7, 2, 4)
    reader = EventReader(drop_usage=True)
    assert fed(reader, [b"data: 1\r\r", b"\n" + counts + DONE]) == b"data: 1\r\r\n" + DONE


def test_only_the_usage_only_event_is_taken_out() -> None:
    """FC-42: counts beside choices, null counts and choices without counts stay."""
    kept = [
        b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n',
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: "usage"\n\n',
        b'event: "usage"\ndata: not json\n\n',
    ]
    reader = EventReader(drop_usage=True)
    assert fed(reader, [b"".join(kept), usage_event(3, 2, 1), DONE]) == b"".join(kept) + DONE
    assert reader.usage == Usage(3, 2, 1)


def test_a_stream_without_its_terminator_is_not_complete() -> None:
    """FC-45: nor is one whose text only speaks of it."""
    reader = EventReader(drop_usage=False)
    fed(reader, [event("data: [DONE]")])
    assert not reader.complete
    fed(reader, [b"data: [DONE]"])  # the last event may lack its blank line
    assert reader.complete


def test_an_error_event_of_the_engine_is_noticed() -> None:
    """FC-45: the engine has said itself that it failed."""
    reader = EventReader(drop_usage=False)
    fed(reader, [event("a"), b'data: {"error":{"message":"out of memory"}}\n\n'])
    assert reader.failed
    assert reader.complete
    reader = EventReader(drop_usage=False)
    fed(reader, [b'data: {"choices":[{"delta":{"content":"error"}}],"error":null}\n\n'])
    assert not reader.failed


def test_what_is_held_is_bounded() -> None:
    reader = EventReader(drop_usage=False)
    assert reader.feed(b"data: " + b"x" * 300_000) != b""
    assert reader.torn
    assert not reader.aligned
    reader.feed(b"x\n\n")
    assert reader.aligned


@pytest.mark.parametrize("line_end", LINE_ENDS)
@pytest.mark.parametrize("back", range(5))
def test_a_long_event_passes_in_pieces(line_end: bytes, back: int) -> None:
    """Without delay once it is too long to be held, whole, and the one behind it is still taken out."""
    long = b"data: " + b"x" * 300_000 + line_end * 2
    place = len(long) - back  # a read ends before, in and behind its blank line
    text = long + usage_event(7, 2, 4).replace(b"\n", line_end) + DONE.replace(b"\n", line_end)
    reader = EventReader(drop_usage=True)
    assert reader.feed(text[:290_000]) == text[:290_000]
    assert reader.feed(text[290_000:290_001]) == b"x"
    out = reader.feed(text[290_001:place]) + reader.feed(text[place : len(long)])
    assert reader.aligned
    out += fed(reader, [text[len(long) :]])
    assert text[:290_001] + out == long + DONE.replace(b"\n", line_end)
    assert (reader.complete, reader.torn, reader.usage) == (True, False, Usage(7, 2, 4))


def test_an_error_event_is_well_formed() -> None:
    text = EventReader(drop_usage=False).error_event(Refusal(502, 'engine "gone"\nfor good', kind="engine_error"))
    assert text.startswith(b"data: ")
    assert text.endswith(b"\n\n")
    assert text.count(b"\n") == 2
    assert json.loads(text[6:])["error"]["message"] == 'engine "gone"\nfor good'
