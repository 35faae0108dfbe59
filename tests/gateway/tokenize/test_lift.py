"""Long texts of bodies that are not parsed again: what comes out is what a whole parse gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokenize.lift import LiftedStrings

BUDGET = 1024 * 1024
LONG = 'All work and no play: "quoted", back\\slash, é, 你好, 🎉,\n tab\t. ' * 60
OTHER = LONG[:-30] + "another end"


def body(*contents: Any, **fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content} for content in contents], **fields})


class Parser:
    """Counts the bytes that the real parser saw."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, raw: bytes) -> Any:
        self.sizes.append(len(raw))
        return orjson.loads(raw)


def learned(*bodies: bytes, budget_bytes: int = BUDGET) -> LiftedStrings:
    strings = LiftedStrings(budget_bytes)
    for raw in bodies:
        assert strings.parse(raw) == orjson.loads(raw)
    return strings


@pytest.mark.parametrize(
    "raw",
    [
        body(LONG, "hi"),
        body("hi", LONG, OTHER, LONG),
        body([{"type": "text", "text": LONG}, {"type": "text", "text": "hi"}]),
        json.dumps({"messages": [{"role": "user", "content": LONG}]}).encode(),  # ASCII with \\u escapes, a blank behind colons
        json.dumps({"messages": [{"content": LONG}], "x": 1}, ensure_ascii=False, indent=2).encode(),
    ],
)
def test_a_known_text_is_not_parsed_again(raw: bytes) -> None:
    strings, parser = learned(raw), Parser()
    value = strings.parse(raw, parser)
    assert value == orjson.loads(raw)
    assert len(parser.sizes) == 1 and parser.sizes[0] < 1_500
    assert (strings.hits, strings.misses) == (1, 1)


def test_the_same_text_is_the_same_object() -> None:
    """So that its hash is computed once, and comparing it costs nothing."""
    strings = learned(body(LONG))
    first, second = (strings.parse(body(LONG, str(number)))["messages"][0]["content"] for number in range(2))
    assert first is second


def test_a_growing_chat_learns_its_new_turn() -> None:
    strings, parser = learned(body(LONG), body(LONG, OTHER)), Parser()
    assert strings.parse(body(LONG, OTHER, "hi"), parser)["messages"][1]["content"] == OTHER
    assert parser.sizes[0] < 1_000


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[{"content":%s}],"messages":[{"content":"b"}]}',  # of two equal keys the last counts
        b'{"messages":[{"content":%s,"content":"b"}]}',
        b'{"messages":[{"content":"b","content":%s}]}',
        b'{"messages":[{"content":{"content":%s}}]}',
        b'{"messages":[{"content":"b"}],"tools":[{"function":{"default":%s,"content":%s}}]}',
        b'{"content":%s,"messages":[{"content":%s}]}',
        b'{"prompt":%s}',
        b'[{"content":%s}]',
        b'{"messages":{"content":%s}}',
        b'{"messages":[{"content":[{"type":"text","text":%s},%s,{"content":%s}]}]}',
        b'{"messages":[[{"content":%s}]]}',
        b'{"messages":[{"x\\"content":%s}]}',
        b'{"messages":[{"content"  :  %s}]}',
        b'{"messages":[{"content":%s}]} ',
    ],
)
def test_a_known_text_anywhere_else_parses_as_ever(raw: bytes) -> None:
    """FC-22: no mark is ever seen behind the parse."""
    literal = orjson.dumps(LONG)
    whole = raw % ((literal,) * raw.count(b"%s"))
    value = learned(body(LONG)).parse(whole)
    assert value == orjson.loads(whole)
    assert "\ue000" not in repr(value)


@pytest.mark.parametrize("cut", [1, 2, 3, 40, 2_000, len(orjson.dumps(LONG)) // 2])
@pytest.mark.parametrize("front", [b"", b"{", b"tru", b't"', b"nul", b'"', b'\\"'])
def test_what_is_no_json_stays_no_json(front: bytes, cut: int) -> None:
    """One literal takes the place of one literal, so nothing invalid becomes valid, nor the other way round."""
    strings, raw = learned(body(LONG)), body(LONG)
    for broken in (raw[:-cut], front + raw, raw.replace(b'"content":', front + b't":'), raw + front + b"]"):
        outcomes: list[Any] = []
        for parse in (strings.parse, orjson.loads):
            try:
                outcomes.append(parse(broken))
            except orjson.JSONDecodeError:
                outcomes.append("no JSON")
        assert outcomes[0] == outcomes[1]


def test_nobody_can_write_a_mark() -> None:
    """A text that looks like a mark of another process, or of a text forgotten here, is a text."""
    strings = learned(body(LONG))
    mark = next(iter(strings._by_mark))
    foreign = LiftedStrings(BUDGET)._next_mark()
    assert len(foreign) == len(mark) and foreign[:20] != mark[:20]
    strings.clear()
    assert strings.parse(body(mark, foreign, LONG))["messages"][0]["content"] == mark
    assert strings.parse(body(mark, foreign, LONG))["messages"][1]["content"] == foreign


def test_a_text_that_differs_in_one_character_is_another() -> None:
    strings = learned(body(LONG))
    for at in (0, 100, 191, 192, 300, len(LONG) - 1):
        changed = LONG[:at] + ("x" if LONG[at] != "x" else "y") + LONG[at + 1 :]
        assert strings.parse(body(changed, LONG))["messages"][0]["content"] == changed


def test_the_budget_is_kept_and_the_oldest_go() -> None:
    texts = [f"{number} {LONG}" for number in range(60)]
    strings = learned(*map(body, texts), budget_bytes=300_000)
    assert 0 < strings.bytes <= 300_000
    parser = Parser()
    for text in (texts[-1], texts[0]):
        assert strings.parse(body(text), parser)["messages"][0]["content"] == text
    assert parser.sizes[0] < 1_000 < parser.sizes[1]
    strings.clear()
    assert (strings.bytes, len(strings), strings._by_start) == (0, 0, {})


def test_a_text_used_again_outlives_those_that_are_not() -> None:
    strings = LiftedStrings(300_000)
    for number in range(60):
        strings.parse(body(LONG))
        strings.parse(body(f"{number} {LONG}"))
    parser = Parser()
    strings.parse(body(LONG), parser)
    assert parser.sizes[0] < 1_000


def test_texts_with_the_same_start_are_kept_apart_and_bounded() -> None:
    texts = [f"{LONG}{number}" for number in range(20)]
    strings = learned(*map(body, texts))
    assert len(strings) == 8
    for text in texts:
        assert strings.parse(body(text))["messages"][0]["content"] == text
    assert sum(known.bytes for known in strings._by_mark.values()) == strings.bytes


def test_one_huge_text_is_not_kept() -> None:
    strings = learned(body(LONG * 40), budget_bytes=400_000)
    assert (len(strings), strings.bytes, strings._by_start) == (0, 0, {})


def test_huge_bodies_are_parsed_as_ever() -> None:
    """What would hold up the loop for long is not learned, and in a body that is larger still nothing is looked for."""
    large, larger = body("x" * 1_100_000, LONG), body("x" * 8_400_000, LONG)
    strings = learned(large, budget_bytes=100_000_000)
    assert (len(strings), strings.misses) == (0, 1)
    strings = learned(body(LONG), large, larger, budget_bytes=100_000_000)
    assert (len(strings), strings.hits, strings.misses) == (1, 1, 1)


def test_many_places_are_not_all_looked_at() -> None:
    """A body of nothing but keys costs a bounded search, and texts behind it are parsed as ever."""
    raw = b'{"x":{%s},"messages":[{"content":%s}]}' % (b'"t":"",' * 5_000 + b'"z":1', orjson.dumps(LONG))
    strings = learned(body(LONG))
    assert strings.parse(raw) == orjson.loads(raw)
    assert strings.hits == 0


# Short names stand for long texts, so that hypothesis can show what it found.
NAMED = {"§1": LONG, "§2": OTHER, "§3": LONG[:2047], "§4": LONG[:2048]}
PIECES = st.sampled_from([*NAMED, "", "hi", '"content":"', 't":"', "\\", '\\"content\\":', "\ue000x\ue001"])
TEXTS = st.lists(PIECES, max_size=3).map("".join) | st.text(max_size=20)
TEXT_PARTS = st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS})
PARTS = st.lists(TEXT_PARTS | TEXTS | st.dictionaries(st.sampled_from(["text", "x"]), TEXTS, max_size=2), max_size=3)
CONTENTS = TEXTS | PARTS | st.none() | st.integers(-9, 9)
VALUES = st.recursive(
    CONTENTS, lambda inner: st.dictionaries(st.sampled_from(["content", "text", "t"]), inner, max_size=2), max_leaves=4
)
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": VALUES}), max_size=4)},
    optional={"prompt": VALUES, "content": VALUES, "tools": st.lists(VALUES, max_size=2)},
)
STYLES: dict[str, Callable[[Any], str]] = {
    "compact": lambda value: orjson.dumps(value).decode(),
    "ascii": json.dumps,
    "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
}


def written(value: Any, style: str) -> bytes:
    """JSON in one of the styles, with the long texts in place of their names."""
    text = STYLES[style](value)
    for name, long in NAMED.items():
        text = text.replace(STYLES[style](name)[1:-1], STYLES[style](long)[1:-1])
    return text.encode()


@settings(max_examples=120, deadline=None)
@given(bodies=st.lists(st.tuples(BODIES, st.sampled_from(list(STYLES)), st.integers(0, 200)), min_size=1, max_size=5))
def test_any_bodies_parse_as_ever(bodies: list[tuple[dict[str, Any], str, int]]) -> None:
    """Whatever was learned before, whole or cut short, compact or pretty, a parse returns what it always did."""
    strings = LiftedStrings(200_000)
    for value, style, cut in bodies:
        raw = written(value, style)
        for variant in (raw, raw, raw[: len(raw) - cut]):
            try:
                wanted = orjson.loads(variant)
            except orjson.JSONDecodeError:
                with pytest.raises(orjson.JSONDecodeError):
                    strings.parse(variant)
                continue
            assert strings.parse(variant) == wanted
        assert strings.bytes <= 200_000
