"""Members put in front of a JSON body, replaced and taken out; everything else stays to the byte."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.members import TooDeep, edited, with_members


@pytest.mark.parametrize("raw", [b'{"a": 1e2, "b":\xc3\xa9}'.replace(b"\xc3\xa9", b'"\xc3\xa9"'), b" {}", b"{ }", b'\n{"a":{}}'])
def test_members_go_in_front_and_nothing_else_changes(raw: bytes) -> None:
    """FC-40: behind the added members stand the client's own bytes."""
    fields = orjson.loads(raw)
    whole = b"".join(with_members(raw, [b'"x":1', b'"y":[2]'], fields))
    assert orjson.loads(whole) == {"x": 1, "y": [2], **fields}
    assert whole.endswith(raw[raw.index(b"{") + 1 :])
    assert with_members(raw, [], fields) == [raw]


def joined(raw: bytes, **edits: Any) -> bytes:
    return b"".join(edited(raw, orjson.loads(raw), **edits))


def test_a_value_is_exchanged_where_it_stands() -> None:
    """FC-40: numbers, order, spaces and escapes around it stay as they came."""
    before, after = (
        b' { "n" : 1.00000000000000000001,\n\t"prompt" : ',
        b' , "seed":123456789012345678901234567890, "x":{"prompt":1}} ',
    )
    raw, want = before + b'"a \\"prompt\\": \\u00e9"' + after, before + b"[1,2]" + after
    assert joined(raw, values={"prompt": b"[1,2]", "absent": b"0"}) == want
    assert joined(raw, values={"prompt": b"[1,2]"}, front=(b'"a":1',)) == want.replace(b"{", b'{"a":1,', 1)


def test_the_last_of_equal_names_is_exchanged() -> None:
    assert joined(b'{"a":1,"b":2,"\\u0061":3}', values={"a": b"4"}) == b'{"a":1,"b":2,"\\u0061":4}'


@pytest.mark.parametrize(
    ("raw", "gone", "want"),
    [
        (b'{"a":1, "b":2 , "c":3}', ("a",), b'{ "b":2 , "c":3}'),
        (b'{"a":1, "b":2 , "c":3}', ("b",), b'{"a":1, "c":3}'),
        (b'{"a":1, "b":2 , "c":3}', ("c",), b'{"a":1, "b":2 }'),
        (b'{"a":1, "b":2 , "c":3}', ("a", "b"), b'{ "c":3}'),
        (b'{"a":1, "b":2 , "c":3}', ("b", "c"), b'{"a":1}'),
        (b'{"a":1, "b":2 , "c":3}', ("a", "c"), b'{ "b":2 }'),
        (b'{"a":1, "b":2 , "c":3 }', ("c", "a", "b", "d"), b"{ }"),
        (b'{"a":",\\"}", "b":[{"a":1},2]}', ("a",), b'{ "b":[{"a":1},2]}'),
    ],
)
def test_members_are_taken_out_with_one_comma_each(raw: bytes, gone: tuple[str, ...], want: bytes) -> None:
    """FC-40."""
    assert joined(raw, without=gone) == want


def test_members_in_front_of_nothing_have_no_comma_behind_them() -> None:
    assert joined(b'{"a":1}', without=("a",), front=(b'"x":1',)) == b'{"x":1}'


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=7),
    exchanged=st.sets(st.integers(0, 6)),
    gone=st.sets(st.integers(0, 6)),
    ascii_only=st.booleans(),
    spaces=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r ")]),
    front=st.booleans(),
)
def test_any_edit_of_any_object_is_what_it_says(
    fields: dict[str, Any], exchanged: set[int], gone: set[int], ascii_only: bool, spaces: tuple[str, str], front: bool
) -> None:
    """FC-40."""
    raw = json.dumps(fields, ensure_ascii=ascii_only, separators=spaces).encode("utf-8", "surrogatepass")
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:  # a lone surrogate, which no client gets past the first look
        return
    names = list(fields)
    values = {names[number]: b'["new"]' for number in exchanged if number < len(names)}
    without = [names[number] for number in gone if number < len(names)]
    want = {name: ["new"] if name in values else value for name, value in fields.items() if name not in without}
    got = joined(raw, values=values, without=without, front=(b'"front":0',) if front else ())
    assert list(orjson.loads(got).items()) == [*([("front", 0)] if front else []), *want.items()]


def test_a_long_value_is_not_copied_for_the_edit_of_another() -> None:
    raw = b'{"prompt":"x","user":"' + b"y" * 100_000 + b'"}'
    pieces = edited(raw, orjson.loads(raw), values={"prompt": b"[1]"})
    longest = max(pieces, key=len)
    assert isinstance(longest, memoryview)
    assert longest.obj is raw


def test_a_body_too_deep_says_so() -> None:
    raw = b'{"prompt":"a","x":' + b"[" * 1010 + b"]" * 1010 + b"}"
    with pytest.raises(TooDeep):
        joined(raw, values={"prompt": b"[1]"})
