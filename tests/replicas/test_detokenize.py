"""Text as it streams: whole characters only, and the same in the end as decoded at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokenize.folder import model_folder
from gateway.tokenize.prompt import Tokenizer
from replicas.detokenize import Decode, Detokenizer, StopStrings


def decode_bytes(ids: Sequence[int]) -> str:
    """A byte-level decoder: ids up to 255 are bytes, others are special and give nothing."""
    return bytes(one for one in ids if one < 256).decode("utf-8", "replace")


def decode_words(ids: Sequence[int]) -> str:
    """A decoder that looks back: words carry a blank in front, which the start of a text drops."""
    return "".join(f" w{one}" for one in ids if one < 256).removeprefix(" ")


def stream(decode: Decode, ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(decode)
    return [detokenizer.push(one) for one in ids] + [detokenizer.flush()]


@given(st.lists(st.one_of(st.integers(0, 255), st.integers(0x80, 0xFF), st.just(300)), max_size=40))
def test_any_bytes_stream_to_the_plain_decode(ids: list[int]) -> None:
    """FC-48: also bytes that are no text, and text that ends in the middle of a character."""
    assert "".join(stream(decode_bytes, ids)) == decode_bytes(ids)


@given(st.text(max_size=20))
def test_text_leaves_in_whole_characters(text: str) -> None:
    """FC-48: cut at every byte, a character leaves with its last one and never as a replacement."""
    ids = list(text.encode())
    pieces = stream(decode_bytes, ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        for count in range(len(ids) + 1):
            assert "".join(pieces[:count]) == bytes(ids[:count]).decode("utf-8", "ignore")


def test_the_end_of_an_unfinished_character_is_flushed_as_decoded() -> None:
    """FC-48: the end of the text in mid-character."""
    ids = list("ok 🎉".encode())[:-1]
    pieces = stream(decode_bytes, ids)
    assert pieces[-1] == "\ufffd"
    assert "".join(pieces) == decode_bytes(ids)


PIECES = (
    b"",
    b"a",
    b"\x80",
    b"\xbf\x80",
    b"\xf0",
    b"\x9f\x8e",
    b"\xf0\x9f",
    b"\xe4\xbd",
    b"\xa0",
    b"\xc3",
    b"\xed\xa0",
    b"\xffb\xc3",
)


def decode_pieces(ids: Sequence[int]) -> str:
    """A byte-level decoder whose tokens are several bytes, of which the first is none."""
    return b"".join(PIECES[one] for one in ids).decode("utf-8", "replace")


@given(st.lists(st.integers(0, len(PIECES) - 1), min_size=30, max_size=200))
def test_long_runs_of_broken_bytes_stream_to_the_plain_decode(ids: list[int]) -> None:
    """FC-48: long enough that the text is cut where no whole character ends it."""
    assert "".join(stream(decode_pieces, ids)) == decode_pieces(ids)


@pytest.mark.parametrize("ids", [[2], [0], [4], [1, 5], [11], [6, 4], [0, 2, 0, 0, 10]], ids=str)
def test_a_token_costs_the_same_however_long_the_text_stays_open(ids: list[int]) -> None:
    """FC-48: a model that says only broken bytes, or only special tokens; the work per token is bounded."""
    work = 0

    def counted(some: Sequence[int]) -> str:
        nonlocal work
        work += len(some)
        return decode_pieces(some)

    tokens = (ids * 2000)[:2000]
    assert "".join(stream(counted, tokens)) == decode_pieces(tokens)
    assert work < 2000 * 60


@given(st.lists(st.one_of(st.integers(0, 9), st.just(300)), max_size=20))
def test_a_decoder_that_looks_back_keeps_its_blanks(ids: list[int]) -> None:
    assert "".join(stream(decode_words, ids)) == decode_words(ids)


def test_work_per_token_does_not_grow_with_the_text() -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode_bytes(ids)

    stream(decode, list("naïve 你好 🎉 ".encode() * 50))
    assert longest <= 8


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    folder: Path = model_folder("smollm2")
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: run `trunkline model fetch smollm2`")
    return Tokenizer.load(folder)


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_real_vocabulary_streams_to_the_plain_decode(smollm2: Tokenizer, data: st.DataObject) -> None:
    """FC-48: token lists whose bytes cut characters anywhere, specials between them."""
    text_ids = smollm2.text(data.draw(st.text(max_size=12)), add_special_tokens=False).tolist()
    ids = data.draw(st.lists(st.one_of(st.integers(0, smollm2.vocab_size - 1), st.sampled_from(text_ids or [0])), max_size=20))
    ids += text_ids

    def decode(some: Sequence[int]) -> str:
        return smollm2.decode(some, skip_special_tokens=True)

    assert "".join(stream(decode, ids)) == decode(ids)


@pytest.mark.model
def test_real_text_leaves_without_replacements(smollm2: Tokenizer) -> None:
    """FC-48: emoji and CJK take several tokens each in this vocabulary."""
    text = "naïve 你好 🎉🏳️‍🌈 नमस्ते 12345\r\n\tdone"
    ids = smollm2.text(text, add_special_tokens=False).tolist()
    pieces = stream(lambda some: smollm2.decode(some, skip_special_tokens=True), ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(not piece for piece in pieces[:-1]) >= 4  # some tokens did end in mid-character


def cut(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, bool]:
    watch = StopStrings(stops)
    out = ""
    for piece in pieces:
        text, reached = watch.push(piece)
        out += text
        if reached:
            return out, True
    return out + watch.release(), False


def plain_cut(stops: Sequence[str], text: str) -> tuple[str, bool]:
    """The text before the stop that ends first, the longest of those; by looking at every end."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(
    stops=st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("ab<", max_size=4), max_size=8),
)
def test_stop_strings_cut_the_same_wherever_tokens_end(stops: list[str], pieces: list[str]) -> None:
    """FC-48: a stop string across tokens; nothing of it leaves, and nothing that could begin it leaves early."""
    assert cut(stops, pieces) == plain_cut(stops, "".join(pieces))


def test_what_could_begin_a_stop_waits_and_the_rest_does_not() -> None:
    watch = StopStrings(["<end>"])
    assert watch.push("abc <e") == ("abc ", False)
    assert watch.push("n") == ("", False)
    assert watch.push("x") == ("<enx", False)
    assert watch.push("<end") == ("", False)
    assert watch.release() == "<end"
