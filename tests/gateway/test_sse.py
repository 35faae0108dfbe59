"""Whole events, the one that is taken out, and the one that tells of a failure."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.request import Usage
from gateway.sse import EventReader, error_event
from tests.fakes.engine import DONE, event, usage_event

TEXT = event("é 漢 🦜") + b": ping\n\n" + event("b") + usage_event(7, 2, 4) + DONE


def fed(reader: EventReader, pieces: list[bytes]) -> bytes:
    return b"".join(reader.feed(piece) for piece in pieces) + reader.flush()


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
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


def test_an_error_event_is_well_formed() -> None:
    text = error_event(Refusal(502, 'engine "gone"\nfor good', kind="engine_error"))
    assert text.startswith(b"data: ")
    assert text.endswith(b"\n\n")
    assert text.count(b"\n") == 2
    assert json.loads(text[6:])["error"]["message"] == 'engine "gone"\nfor good'
