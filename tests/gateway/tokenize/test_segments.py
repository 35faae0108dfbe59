"""Pieces of a prompt text give the ids of the whole, or there are no pieces."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from gateway.tokenize.encode import Encoder
from gateway.tokenize.prompt import Tokenizer
from gateway.tokenize.segments import Cutter, _splits, proven_cutter
from tests.fakes.tokenizer_folder import EOS, write_tokenizer_folder
from tests.gateway.tokenize.test_template import BOS_AND_ROLES, CHATML, PARTS, TOOLS


def encoder_with(folder: Path, *added: AddedToken, **options: Any) -> Encoder:
    """The fake vocabulary with more added tokens."""
    write_tokenizer_folder(folder, template=None, **options)
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.add_special_tokens([token for token in added if token.special])
    reference.add_tokens([token for token in added if not token.special])
    return Encoder(reference)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return encoder_with(tmp_path_factory.mktemp("segments"))


@pytest.mark.parametrize(
    ("template", "tokens"),
    [
        (CHATML, {"<|im_end|>", EOS}),
        (TOOLS, {"<|im_end|>", EOS}),
        (BOS_AND_ROLES, {EOS}),
        (PARTS, {"<|end|>", EOS}),
        ("{{ raise_exception('no') }}", {EOS}),
        (None, {EOS}),
    ],
)
def test_texts_are_cut_behind_the_tokens_that_end_turns(tmp_path: Path, template: str | None, tokens: set[str]) -> None:
    tokenizer = Tokenizer.load(write_tokenizer_folder(tmp_path, template=template))
    cutter = proven_cutter(tokenizer.encoder, tokenizer.template, eos=EOS)
    assert cutter is not None
    assert set(cutter.tokens) == tokens


def special(text: str, **flags: bool) -> AddedToken:
    return AddedToken(text, **{"normalized": False, "special": True, **flags})


@pytest.mark.parametrize(
    "added",
    [
        special("<x>", lstrip=True),
        special("<x>", rstrip=True),
        special("<x>", single_word=True),
        special("<x>", normalized=True),
        AddedToken("<x>", normalized=False, special=False),
    ],
)
def test_a_token_that_reaches_for_its_neighbours_is_no_place_to_cut(tmp_path: Path, added: AddedToken) -> None:
    assert not _splits(added, [added])
    assert proven_cutter(encoder_with(tmp_path, added), None, eos="<x>") is None


def test_no_place_to_cut_where_a_token_looks_at_the_character_in_front_of_it() -> None:
    """`word` behind `<x` is no token there, because x is a letter; at the start of a piece it would be one."""
    assert _splits(special("<x"), [special("<x")])
    assert not _splits(special("<x"), [special("<x"), special("word", single_word=True)])


@pytest.mark.parametrize(
    ("token", "other", "text"),
    [("<x>", "<x>\n", "a<x>\nb"), ("<x>", "<x><x>", "a<x><x>b"), ("<x>", "1<x>2", "01<x>23"), ("<xu", "1<x", "01<xuser")],
)
def test_a_token_that_another_can_swallow_is_no_place_to_cut(tmp_path: Path, token: str, other: str, text: str) -> None:
    """The other token is found in the whole text, and not in its pieces."""
    encoder = encoder_with(tmp_path, special(token), special(other))
    pieces = encoder.encode_all(Cutter((token,)).cut(text), add_special_tokens=False)
    assert np.concatenate(pieces).tolist() != encoder.encode(text, add_special_tokens=False).tolist()
    assert proven_cutter(encoder, None, eos=token) is None


def test_harmless_neighbours_leave_a_token_its_place(tmp_path: Path) -> None:
    encoder = encoder_with(tmp_path, special("<x>"), special("<y>", lstrip=True), special("<"), special(">>", rstrip=True))
    cutter = proven_cutter(encoder, None, eos="<x>")
    assert cutter is not None and cutter.tokens == ("<x>",)


def test_an_encoder_that_treats_the_start_of_a_text_differently_has_no_pieces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A prefix that only the very first word gets would be put in front of every piece."""
    letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    first = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first"), letters])
    encoder = encoder_with(tmp_path, pre_tokenizer=first)
    with caplog.at_level(logging.WARNING):
        assert proven_cutter(encoder, None, eos=EOS) is None
    assert "token cache refused" in caplog.text


def test_a_model_without_an_end_token_has_no_pieces(encoder: Encoder) -> None:
    assert proven_cutter(encoder, None, eos=None) is None
    assert proven_cutter(encoder, None, eos="not in the vocabulary") is None


@given(st.lists(st.sampled_from(["<|im_end|>", EOS, "<|im_end", "|>", "", "hello", "\n", " <|im_end|> "])).map("".join))
def test_pieces_are_the_text(text: str) -> None:
    pieces = Cutter(("<|im_end|>", EOS)).cut(text)
    assert "".join(pieces) == text
    assert all(pieces)
    assert all(piece.endswith(("<|im_end|>", EOS)) for piece in pieces[:-1])
    first = Cutter(("<|im_end|>", EOS)).first_end(text)
    assert first == (len(pieces[0]) if pieces and pieces[0].endswith(("<|im_end|>", EOS)) else -1)


MARKERS = ["<|im_end|>", EOS, "<|im_start|>", "<|im_end", "<s>", "\n", " ", "hello the user", "é你🎉"]


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.sampled_from(MARKERS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)).map("".join))
def test_ids_of_pieces_are_the_ids_of_the_text(encoder: Encoder, text: str) -> None:
    """FC-22: for any text, also with markers in places where no template puts them."""
    pieces = encoder.encode_all(Cutter((EOS, "<|im_end|>")).cut(text), add_special_tokens=False)
    assert [token for piece in pieces for token in piece.tolist()] == encoder.encode(text, add_special_tokens=False).tolist()
