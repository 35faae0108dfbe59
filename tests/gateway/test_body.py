"""The look into the JSON, and members put in front of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gateway.body import look
from gateway.dialects import dialect_named
from gateway.dialects.base import NO_EDITS
from gateway.errors import Refusal
from gateway.request import Kind

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'"x"', None),
        (b"null", None),
        (b'{"a":1}x', None),
        (b'{"model":1}', "model"),
        (b'{"stream":"yes"}', "stream"),
        (b'{"stream":1}', "stream"),
        (b'{"messages":"hi"}', "messages"),
        (b'{"messages":{}}', "messages"),
    ],
)
def test_a_body_of_the_wrong_shape_is_refused_by_name(body: bytes, param: str | None) -> None:
    with pytest.raises(Refusal) as caught:
        look(body, Kind.CHAT)
    assert (caught.value.status, caught.value.param) == (400, param)
    if param is not None:
        assert param in caught.value.message


def test_a_refusal_does_not_repeat_what_the_client_wrote() -> None:
    """FC-59: a value may be a key by mistake."""
    with pytest.raises(Refusal) as caught:
        look(b'{"model":["sk-123456"]}', Kind.CHAT)
    assert b"123456" not in caught.value.body()


@pytest.mark.parametrize("prompt", ["hi", ["hi", "ho"], [1, 2], [[1, 2], [3]], [], [99999999], None, 7])
def test_the_shape_of_a_prompt_is_the_engines_business(prompt: object) -> None:
    """FC-24: no shape of `prompt` is judged here."""
    assert look(json.dumps({"prompt": prompt}).encode(), Kind.COMPLETION).fields == {"prompt": prompt}


@pytest.mark.parametrize("part", [b"{},", b"[],", b"1,", b'{"a":1},', b'"",'])
def test_a_body_of_too_many_parts_is_refused_before_it_is_parsed(part: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        look(b'{"z":[' + part * 1_300_000 + b"1]}", Kind.CHAT)
    assert (caught.value.status, caught.value.code) == (400, "too_many_elements")


@pytest.mark.parametrize("text", [b"hello, this is a line of prose, ", b"iVBORw0KGgoAAAANSUhEUgAA"])
def test_long_texts_and_long_prompts_of_ids_pass(text: bytes) -> None:
    assert look(b'{"user":"' + text * 200_000 + b'"}', Kind.CHAT).fields
    assert look(b'{"prompt":[' + b"12345," * 900_000 + b"1]}", Kind.COMPLETION).fields


def test_what_routing_needs_is_read() -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    intent = look(json.dumps(body).encode(), Kind.CHAT, session="s", priority=2)
    assert (intent.model, intent.stream, intent.wants_usage) == ("m", True, True)
    assert (intent.session, intent.priority) == ("s", 2)
    assert look(b'{"messages":[],"stream":null,"model":null}', Kind.CHAT).stream is False


def test_the_own_dialect_sends_the_ids_unless_the_client_did() -> None:
    dialect = dialect_named("trunkline")
    tokens = np.array([5, 6, 7], np.int32)
    intent = look(b'{"messages":[]}', Kind.CHAT)
    assert dialect.edits(intent, tokens, "n", None).front == (b'"prompt_token_ids":[5,6,7]',)
    assert dialect.edits(intent, None, "n", None) == NO_EDITS
    assert dialect.edits(look(b'{"prompt_token_ids":[1]}', Kind.CHAT), tokens, "n", None) == NO_EDITS
    assert dialect_named("openai").edits(intent, tokens, "n", None) == NO_EDITS
