"""The fast encoder is used only where it is proven; the reference serves otherwise."""

from __future__ import annotations

import logging
from pathlib import Path

import fastokens
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import NoTokens
from gateway.tokenize import reasons
from gateway.tokenize.encode import Encoder, read_config
from gateway.tokenize.parity import CORPUS, mixtures
from gateway.tokenize.prompt import Tokenizer
from tests.fakes.tokenizer_folder import write_tokenizer_folder

FOLDER_TEMPLATE = "{{ messages[0].content }}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("encode"), template=FOLDER_TEMPLATE, adds_bos=True)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder.load(folder, read_config(folder))


@pytest.fixture(scope="module")
def reference(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


REAL = fastokens.Tokenizer


class Differing:
    """A fast tokenizer that adds a token to one text."""

    def __init__(self, real: fastokens.Tokenizer) -> None:
        self._real = real

    @classmethod
    def from_json_str(cls, text: str) -> Differing:
        return cls(REAL.from_json_str(text))

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[fastokens._native.Encoding]:
        encodings = self._real.encode_batch(texts, add_special_tokens)
        encodings[5] = self._real.encode(texts[5] + "!", add_special_tokens)
        return list(encodings)


class Refusing:
    """A fast tokenizer that can not load the file."""

    @staticmethod
    def from_json_str(text: str) -> None:
        raise ValueError("unsupported pre-tokenizer")


def test_the_fast_encoder_is_used_where_its_ids_are_equal(encoder: Encoder) -> None:
    assert encoder.name == "fastokens"


@pytest.mark.parametrize(("fake", "complaint"), [(Differing, "fast tokenizer differs"), (Refusing, "fast tokenizer refused")])
def test_the_reference_serves_where_the_fast_encoder_is_not_proven(
    folder: Path,
    reference: tokenizers.Tokenizer,
    fake: type,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(fastokens, "Tokenizer", fake)
    with caplog.at_level(logging.WARNING):
        slow = Encoder.load(folder, {})
    assert slow.name == "tokenizers"
    assert complaint in caplog.text
    text = CORPUS[3]
    for specials in (False, True):
        ids = slow.encode(text, add_special_tokens=specials)
        assert ids.tolist() == reference.encode(text, add_special_tokens=specials).ids
        assert ids.dtype == np.int32


def test_a_tokenizer_that_neither_side_reads_alike_falls_back(tmp_path: Path) -> None:
    """A pre-tokenizer with a prefix space and unusual split: whatever is chosen, the ids are the reference's."""
    space = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Metaspace(), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]
    )
    folder = write_tokenizer_folder(tmp_path, template=None, pre_tokenizer=space)
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.load(folder)
    for text in CORPUS:
        assert tokenizer.text(text).tolist() == reference.encode(text).ids


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4), specials=st.booleans())
def test_ids_equal_the_reference(encoder: Encoder, reference: tokenizers.Tokenizer, texts: list[str], specials: bool) -> None:
    """Any text, alone and in a batch."""
    wanted = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=specials)]
    assert [ids.tolist() for ids in encoder.encode_all(texts, add_special_tokens=specials)] == wanted
    assert encoder.encode(texts[0], add_special_tokens=specials).tolist() == wanted[0]


def test_text_comes_back_from_its_ids(encoder: Encoder) -> None:
    for text in mixtures(count=50, seed=1):
        ids = encoder.encode(text, add_special_tokens=False).tolist()
        assert encoder.decode(ids, skip_special_tokens=False) == text


def test_ids_can_be_written_to(encoder: Encoder) -> None:
    ids = encoder.encode("hello", add_special_tokens=False)
    ids[0] = 7
    assert ids[0] == 7


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path, template=None)
    stored = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    stored.enable_truncation(max_length=4)
    stored.enable_padding(length=8)
    stored.save(str(folder / "tokenizer.json"))
    ids = Encoder.load(folder, {}).encode_all(["hello the user hello", "a"], add_special_tokens=False)
    assert len(ids[0]) > 4
    assert len(ids[1]) == 1


def test_special_tokens_named_only_in_the_configuration_are_known(tmp_path: Path) -> None:
    """Engines add them at load; without that the template's own markers would be cut into letters."""
    folder = write_tokenizer_folder(tmp_path, template=None)
    encoder = Encoder.load(folder, {"eos_token": "<|late|>"})
    assert encoder.encode("<|late|>", add_special_tokens=False).tolist() == [encoder.vocab_size - 1]


@pytest.mark.parametrize(
    ("file", "content"), [("tokenizer.json", "{}"), ("tokenizer.json", None), ("tokenizer_config.json", "[]")]
)
def test_a_folder_that_can_not_be_read_names_the_file(tmp_path: Path, file: str, content: str | None) -> None:
    folder = write_tokenizer_folder(tmp_path, template=None)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(NoTokens, match=file) as refused:
        Tokenizer.load(folder)
    assert refused.value.reason == reasons.NO_TOKENIZER


def test_mixtures_are_the_same_for_a_seed() -> None:
    assert mixtures(count=5, seed=3) == mixtures(count=5, seed=3) != mixtures(count=5, seed=4)
