"""From request bodies to ids: markers, prompt shapes, options."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.errors import NoTokens
from gateway.tokenize import reasons
from gateway.tokenize.prompt import Tokenizer
from tests.fakes.tokenizer_folder import BOS, SPECIALS, write_tokenizer_folder

BOS_ID = SPECIALS.index(BOS)
PLAIN_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp("plain"), template=PLAIN_TEMPLATE))


@pytest.fixture(scope="module")
def adding(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer that adds the begin marker, under a template that does not write it."""
    return Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp("adding"), template=PLAIN_TEMPLATE, adds_bos=True))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer that adds the begin marker, under a template that writes it too, as Llama 3 does."""
    template = "{{ bos_token }}" + PLAIN_TEMPLATE
    return Tokenizer.load(write_tokenizer_folder(tmp_path_factory.mktemp("written"), template=template, adds_bos=True))


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def test_markers_are_where_the_engine_has_them(plain: Tokenizer, adding: Tokenizer, written: Tokenizer) -> None:
    """FC-23: chat takes the marker from the template only, completion from the tokenizer only, each exactly once."""
    expected = {"plain": (0, 0), "adding": (0, 1), "written": (1, 1)}
    for name, tokenizer in (("plain", plain), ("adding", adding), ("written", written)):
        as_chat, as_completion = tokenizer.chat(chat("hello")).tolist(), tokenizer.completion({"prompt": "hello"}).tolist()
        assert (as_chat.count(BOS_ID), as_completion.count(BOS_ID)) == expected[name]
        assert tokenizer.completion({"prompt": "hello", "add_special_tokens": False}).tolist().count(BOS_ID) == 0


def test_a_prompt_that_writes_the_marker_itself_gets_it_on_top(plain: Tokenizer, adding: Tokenizer) -> None:
    """FC-23: marker text in a prompt is the marker, and the tokenizer adds its own regardless, as engines do."""
    assert plain.completion({"prompt": f"{BOS}hello"}).tolist().count(BOS_ID) == 1
    assert adding.completion({"prompt": f"{BOS}hello"}).tolist().count(BOS_ID) == 2
    assert adding.chat(chat(f"{BOS}hello")).tolist().count(BOS_ID) == 1


def test_special_tokens_of_the_model_are_known(adding: Tokenizer) -> None:
    assert (adding.bos, adding.eos) == (BOS_ID, SPECIALS.index("</s>"))
    assert adding.id_of("<|im_end|>") == SPECIALS.index("<|im_end|>")
    assert adding.id_of("<|nothing|>") is None


@pytest.mark.parametrize(
    ("prompt", "same_as"),
    [
        ("hello", "hello"),
        (["hello"], "hello"),
        (["hello the", "hello th"], "hello"),
        (["hello", "hello", "hello"], "hello"),
        (["hello the user", "hello"], "hello"),
    ],
)
def test_prompts_of_text(plain: Tokenizer, prompt: object, same_as: str) -> None:
    """FC-24: one text, or the longest start that all texts share."""
    assert plain.completion({"prompt": prompt}).tolist() == plain.text(same_as).tolist()


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([9, 8, 7], [9, 8, 7]),
        ([[9, 8, 7], [9, 8, 6, 5]], [9, 8]),
        ([[9, 8]], [9, 8]),
        ([[9], [9]], [9]),
        ([[9, 8, 7, 6], [9, 1, 7, 2]], [9]),
    ],
)
def test_prompts_of_ids(plain: Tokenizer, prompt: object, ids: list[int]) -> None:
    """FC-24: ids are taken as they are; of several lists the start they share."""
    result = plain.completion({"prompt": prompt})
    assert result.tolist() == ids
    assert result.dtype == np.int32


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([], reasons.SHAPE),
        (None, reasons.SHAPE),
        (5, reasons.SHAPE),
        ({}, reasons.SHAPE),
        ([[]], reasons.SHAPE),
        ([1, "a"], reasons.SHAPE),
        (["a", 1], reasons.SHAPE),
        ([["a"]], reasons.SHAPE),
        ([1.5], reasons.SHAPE),
        ([True], reasons.SHAPE),
        ([-1], reasons.SHAPE),
        ([2**40], reasons.SHAPE),
        ([[1], [10**9]], reasons.SHAPE),
        (["hello", "the"], reasons.BATCH),
        ([[1], [2]], reasons.BATCH),
        ("\ud800", reasons.SHAPE),
    ],
)
def test_prompts_that_the_engine_may_judge(plain: Tokenizer, prompt: object, reason: str) -> None:
    """FC-24: an empty list, ids above the vocabulary and odd shapes have a reason and no tokens."""
    with pytest.raises(NoTokens) as refused:
        plain.completion({"prompt": prompt})
    assert refused.value.reason == reason


def test_the_largest_id_is_inside_the_vocabulary(plain: Tokenizer) -> None:
    largest = plain.vocab_size - 1
    assert plain.completion({"prompt": [largest]}).tolist() == [largest]
    with pytest.raises(NoTokens):
        plain.completion({"prompt": [largest + 1]})


def test_ids_of_the_client_are_taken_as_they_are(plain: Tokenizer) -> None:
    assert plain.chat(chat("hello", prompt_token_ids=[3, 1, 2])).tolist() == [3, 1, 2]
    assert plain.completion({"prompt": "hello", "prompt_token_ids": [3, 1, 2]}).tolist() == [3, 1, 2]
    with pytest.raises(NoTokens):
        plain.chat(chat("hello", prompt_token_ids=[]))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"chat_template": "{{ 1 }}"}, reasons.CLIENT_TEMPLATE),
        ({"truncate_prompt_tokens": 5}, reasons.TRUNCATION),
        ({"prompt_embeds": "AA=="}, reasons.EMBEDS),
        ({"add_generation_prompt": "yes"}, reasons.SHAPE),
        ({"add_special_tokens": 1}, reasons.SHAPE),
        ({"chat_template_kwargs": [1]}, reasons.SHAPE),
        ({"chat_template_kwargs": {"tokenize": False}}, reasons.TEMPLATE),
    ],
)
def test_fields_that_make_the_tokens_unknowable(plain: Tokenizer, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoTokens) as refused:
        plain.chat(chat("hello", **fields))
    assert refused.value.reason == reason
    assert reason in reasons.ALL


def test_a_model_without_template_tokenizes_completions_only(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tokenizer_folder(tmp_path, template=None))
    assert not tokenizer.has_template
    assert len(tokenizer.completion({"prompt": "hello"}))
    with pytest.raises(NoTokens) as refused:
        tokenizer.chat(chat("hello"))
    assert refused.value.reason == reasons.NO_TEMPLATE


def test_an_empty_text_is_an_empty_prompt(plain: Tokenizer) -> None:
    assert plain.completion({"prompt": ""}).tolist() == []


def test_threads_get_the_ids_that_one_thread_gets(plain: Tokenizer) -> None:
    bodies = [chat(f"hello the user {number} é你🎉 " * 20) for number in range(40)]
    wanted = [plain.chat(body).tolist() for body in bodies]
    with ThreadPoolExecutor(4) as pool:
        assert [ids.tolist() for ids in pool.map(plain.chat, bodies)] == wanted


def test_longer_texts_are_estimated_to_take_longer(plain: Tokenizer) -> None:
    assert 0 < plain.estimate_s(0) < plain.estimate_s(1_000) < plain.estimate_s(1_000_000)
