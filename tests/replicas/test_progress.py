"""When an answer ends, and what of its text leaves."""

from __future__ import annotations

from array import array

from replicas.generation import Generation, Output, RequestHandle
from replicas.progress import Progress
from replicas.sampling import Sampling


def letters(ids: list[int]) -> str:
    """Ids 1.. are a, b, c, ..."""
    return "".join(chr(96 + one) for one in ids)


def run(tokens: str, **options: object) -> list[Output]:
    """Outputs of an answer whose tokens are the given letters, until it ends."""
    fields: dict[str, object] = {"max_tokens": 100, **options}
    generation = Generation(prompts=(array("i", [9]),), sampling=Sampling(), **fields)  # type: ignore[arg-type]
    progress = Progress(RequestHandle(generation, lambda handle: None), 0, letters)
    outputs = []
    for letter in tokens:
        progress.sequence.tokens.append(ord(letter) - 96)
        output = progress.advance()
        if output is not None:
            outputs.append(output)
            if output.finish_reason is not None:
                break
    return outputs


def text(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


def test_it_ends_at_max_tokens() -> None:
    outputs = run("abcdef", max_tokens=3)
    assert text(outputs) == "abc"
    assert [output.finish_reason for output in outputs] == [None, None, "length"]


def test_a_stop_token_gives_no_text_but_counts() -> None:
    (first, last) = run("abz", stop_ids=frozenset({2}))
    assert (first.text, last.text, last.finish_reason, last.generated) == ("a", "", "stop", 2)


def test_a_stop_string_across_tokens_ends_it_before_its_start() -> None:
    outputs = run("abcdefg", stop=("de",))
    assert text(outputs) == "abc"
    assert outputs[-1].finish_reason == "stop"
    assert outputs[-1].generated == 5


def test_text_that_could_begin_a_stop_is_given_out_at_the_end() -> None:
    outputs = run("abcd", stop=("de",), max_tokens=4)
    assert text(outputs) == "abcd"
    assert outputs[-1].finish_reason == "length"
    assert text(run("abcdz", stop=("de",), stop_ids=frozenset({26}))) == "abcd"


def test_an_unfinished_character_is_given_out_at_the_end() -> None:
    """FC-48: the end of the answer in mid-character."""
    for stop, last in (((), ("\N{REPLACEMENT CHARACTER}", "length")), (("\N{REPLACEMENT CHARACTER}",), ("", "stop"))):
        generation = Generation(prompts=(array("i", [9]),), sampling=Sampling(), max_tokens=3, stop=stop)
        handle = RequestHandle(generation, lambda handle: None)
        progress = Progress(handle, 0, lambda ids: bytes(ids).decode("utf-8", "replace"))
        outputs = []
        for byte in "a\N{PARTY POPPER}".encode()[:3]:
            progress.sequence.tokens.append(byte)
            outputs.append(progress.advance())
        assert [output and (output.text, output.finish_reason) for output in outputs] == [("a", None), None, last]


def test_a_stop_string_wins_over_the_limit_on_the_same_token() -> None:
    assert run("ab", stop=("b",), max_tokens=2)[-1].finish_reason == "stop"


def test_no_stop_string_ends_it_before_min_tokens() -> None:
    outputs = run("ababab", stop=("b",), min_tokens=3, max_tokens=6)
    assert text(outputs) == "aba"
    assert outputs[-1].generated == 4


def test_stop_tokens_are_banned_until_min_tokens() -> None:
    generation = Generation(prompts=(array("i", [9]),), sampling=Sampling(), max_tokens=9, min_tokens=2, stop_ids=frozenset({2}))
    progress = Progress(RequestHandle(generation, lambda handle: None), 0, letters)
    banned = []
    for token in (1, 3, 4):
        banned.append(progress.banned)
        progress.sequence.tokens.append(token)
    assert banned == [frozenset({2}), frozenset({2}), frozenset()]


def test_the_first_output_comes_with_the_first_token_even_without_text() -> None:
    outputs = run("deab", stop=("def",), max_tokens=4)
    assert [(output.text, output.generated) for output in outputs] == [("", 1), ("dea", 3), ("b", 4)]
