"""Token counts found in bytes that come in any cuts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request import Usage
from gateway.usage import UsageScanner, usage_in

BODY = (
    b'{"id":"c","choices":[{"message":{"content":"say \\"usage\\": {\\"prompt_tokens\\": 9}"},"logprobs":[{"token":"usage"}]}],'
    b'"usage": {"prompt_tokens": 31, "total_tokens": 40, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 16}},'
    b'"tail": null}'
)
FOUND = Usage(31, 9, 16)


def scan(pieces: list[bytes]) -> Usage | None:
    scanner = UsageScanner()
    for piece in pieces:
        scanner.feed(piece)
    return scanner.found


def test_counts_are_found_for_a_cut_at_every_byte() -> None:
    """FC-41: nothing depends on where a read ends."""
    assert scan([BODY]) == FOUND
    for place in range(len(BODY)):
        assert scan([BODY[:place], BODY[place:]]) == FOUND
    assert scan([BODY[place : place + 1] for place in range(len(BODY))]) == FOUND


@given(st.lists(st.integers(0, len(BODY))))
def test_counts_are_found_for_any_cuts(places: list[int]) -> None:
    """FC-41: and not on how many there are."""
    edges = [0, *sorted(places), len(BODY)]
    assert scan([BODY[a:b] for a, b in itertools.pairwise(edges)]) == FOUND


@pytest.mark.parametrize(
    "text",
    [
        b'{"usage":null}',
        b'{"usage":{"prompt_tokens":-1}}',
        b'{"usage":{"prompt_tokens":"3"}}',
        b'{"usage":{"prompt_tokens":true,"completion_tokens":1}}',
        b'{"usage":{}}',
        b'{"content":"\\"usage\\":{\\"prompt_tokens\\":3}"}',
        b'{"token":"usage"}',
        b'{"usage":{"prompt_tokens":1,}}',
    ],
)
def test_what_is_not_counts_is_not_taken_for_them(text: bytes) -> None:
    assert usage_in(text) is None


def test_the_last_counts_win_and_details_are_optional() -> None:
    first, last = (
        b'{"usage":{"prompt_tokens":5}}',
        b'{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":null}}',
    )
    assert usage_in(first) == Usage(5, 0, None)
    assert usage_in(first + last) == Usage(5, 2, None)
    assert scan([first, last]) == Usage(5, 2, None)


def test_what_is_held_is_bounded() -> None:
    scanner = UsageScanner()
    scanner.feed(b'{"usage":{')
    for _ in range(100):
        scanner.feed(b" " * 1000)
    assert len(scanner._held) < 6000
