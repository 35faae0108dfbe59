"""Bodies of each API as chats or completions: the turns that vLLM makes of them, or the reason why there are none."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apis import prompt_fields
from gateway.apis.prompt_fields import Fields, Prompted, Read
from gateway.apis.table import API
from gateway.errors import NoTokens
from gateway.request import Kind
from gateway.tokenize import reasons

USER = {"role": "user", "content": "hi"}


def text(value: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": value}


def turn(role: str, content: object) -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("body", "turns"),
    [
        ({"messages": [USER]}, [USER]),
        ({"system": "S", "messages": [USER]}, [turn("system", "S"), USER]),
        ({"system": "", "messages": [USER]}, [USER]),
        ({"system": [], "messages": [USER]}, [USER]),
        ({"system": [text("a"), text("b")], "messages": [USER]}, [turn("system", "ab"), USER]),
        (
            {"system": [text("x-anthropic-billing-header: cch=1;"), text("a")], "messages": [USER]},
            [turn("system", "a"), USER],
        ),
        ({"messages": [turn("user", [text("hi")])]}, [USER]),
        ({"messages": [turn("user", [text("hi"), text("")])]}, [USER]),
        ({"messages": [turn("user", [text("a"), text("b")])]}, [turn("user", [text("a"), text("b")])]),
        (
            {
                "messages": [
                    USER,
                    turn("assistant", "yes"),
                    turn("user", [{**text("no"), "cache_control": {"type": "ephemeral"}}]),
                ]
            },
            [USER, turn("assistant", "yes"), turn("user", "no")],
        ),
    ],
)
def test_messages_become_a_chat(body: Fields, turns: list[object]) -> None:
    """FC-22: `system` is a turn in front, blocks of text are a text, or parts of one where there are several."""
    assert prompt_fields.messages(body) == Prompted({"messages": turns}, True)


def test_what_a_template_reads_of_messages_goes_along() -> None:
    body = {
        "messages": [USER],
        "tools": [],
        "chat_template_kwargs": {"a": 1},
        "output_config": {"effort": "low"},
        "max_tokens": 3,
    }
    wanted = {"messages": [USER], "tools": [], "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low"}
    assert prompt_fields.messages(body).fields == wanted


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": [USER], "tools": [{"name": "f", "input_schema": {}}]}, reasons.TOOLS),
        ({"messages": [USER], "thinking": {"type": "enabled"}}, reasons.THINKING),
        ({"messages": [turn("user", [{"type": "tool_result", "tool_use_id": "1", "content": "x"}])]}, reasons.TOOLS),
        (
            {"messages": [turn("assistant", [text("a"), {"type": "tool_use", "id": "1", "name": "f", "input": {}}])]},
            reasons.TOOLS,
        ),
        ({"messages": [turn("assistant", [{"type": "thinking", "thinking": "x"}])]}, reasons.THINKING),
        ({"messages": [turn("assistant", [{"type": "redacted_thinking", "data": "x"}])]}, reasons.THINKING),
        ({"messages": [turn("user", [{"type": "image", "source": {}}])]}, reasons.IMAGES),
        ({"messages": [turn("user", [{"type": "document", "source": {}}])]}, reasons.IMAGES),
        ({"messages": [turn("system", "later")]}, reasons.SHAPE),
        ({"messages": [turn("user", [])]}, reasons.SHAPE),
        ({"messages": [turn("user", [text("")])]}, reasons.SHAPE),
        ({"messages": [turn("user", [{"type": "text"}])]}, reasons.SHAPE),
        ({"messages": [turn("user", ["bare"])]}, reasons.SHAPE),
        ({"messages": [turn("user", 3)]}, reasons.SHAPE),
        ({"messages": ["bare"]}, reasons.SHAPE),
        ({"messages": [USER], "system": 3}, reasons.SHAPE),
        ({"messages": None}, reasons.SHAPE),
        ({}, reasons.SHAPE),
    ],
)
def test_messages_that_engines_read_differently_have_no_tokens(body: Fields, reason: str) -> None:
    """FC-22: nearly right ids would match nothing, and nobody would see it."""
    with pytest.raises(NoTokens) as caught:
        prompt_fields.messages(body)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("body", "turns"),
    [
        ({"input": "hi"}, [USER]),
        ({"input": "hi", "instructions": "I"}, [turn("system", "I"), USER]),
        ({"input": [USER]}, [USER]),
        ({"input": [{**turn("user", [text("hi", "input_text")]), "type": "message", "id": "m1"}]}, [USER]),
        ({"input": [turn("developer", "D"), USER]}, [turn("developer", "D"), USER]),
        (
            {"input": [USER, turn("assistant", [text("yes", "output_text")]), turn("user", "no")]},
            [USER, turn("assistant", "yes"), turn("user", "no")],
        ),
        (
            {"input": [turn("user", [text("a", "input_text"), text("b", "input_text")])]},
            [turn("user", [text("a"), text("b")])],
        ),
    ],
)
def test_responses_become_a_chat(body: Fields, turns: list[object]) -> None:
    """FC-22: `instructions` are the system's turn, items are turns."""
    assert prompt_fields.responses(body) == Prompted({"messages": turns}, True)


def test_effort_of_responses_goes_to_the_template() -> None:
    assert prompt_fields.responses({"input": "hi", "reasoning": {"effort": "high"}}).fields["reasoning_effort"] == "high"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": "x", "previous_response_id": "resp_1"}, reasons.STATE),
        ({"input": "x", "previous_response": {}}, reasons.STATE),
        ({"input": "x", "conversation": "conv_1"}, reasons.STATE),
        ({"input": "x", "prompt": {"id": "p"}}, reasons.STATE),
        ({"input": [{"type": "item_reference", "id": "m1"}]}, reasons.STATE),
        ({"input": "x", "tools": [{"type": "function"}]}, reasons.TOOLS),
        ({"input": [{"type": "function_call", "name": "f"}]}, reasons.TOOLS),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, reasons.TOOLS),
        ({"input": [{"type": "reasoning", "summary": []}]}, reasons.THINKING),
        ({"input": [turn("user", [{"type": "input_image", "image_url": "x"}])]}, reasons.IMAGES),
        ({"input": [turn("user", [{"type": "input_file"}])]}, reasons.IMAGES),
        ({"input": "x", "truncation": "auto"}, reasons.TRUNCATION),
        ({"input": [{**turn("assistant", "half"), "status": "incomplete"}]}, reasons.SHAPE),
        ({"input": [turn("assistant", [text("a", "output_text"), text("b", "output_text")])]}, reasons.SHAPE),
        ({"input": [turn("assistant", [{"type": "refusal", "refusal": "no"}])]}, reasons.SHAPE),
        ({"input": [turn("tool", "x")]}, reasons.SHAPE),
        ({"input": [{"type": "unheard_of"}]}, reasons.SHAPE),
        ({"input": ["bare"]}, reasons.SHAPE),
        ({"input": [turn("user", [])]}, reasons.SHAPE),
        ({"input": 3}, reasons.SHAPE),
        ({}, reasons.SHAPE),
    ],
)
def test_responses_that_engines_read_differently_have_no_tokens(body: Fields, reason: str) -> None:
    """FC-22."""
    with pytest.raises(NoTokens) as caught:
        prompt_fields.responses(body)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("read", "body", "prompt"),
    [
        (prompt_fields.generate, {"text": "hi"}, "hi"),
        (prompt_fields.generate, {"text": ["a", "b"]}, ["a", "b"]),
        (prompt_fields.generate, {"input_ids": [1, 2]}, [1, 2]),
        (prompt_fields.generate, {"text": None, "input_ids": [[1], [2]], "image_data": None}, [[1], [2]]),
        (prompt_fields.tokens, {"token_ids": [1, 2]}, [1, 2]),
    ],
)
def test_prompts_that_are_texts_or_ids_become_a_completion(read: Read, body: Fields, prompt: object) -> None:
    assert read(body) == Prompted({"prompt": prompt}, False)


@pytest.mark.parametrize(
    ("read", "body", "reason"),
    [
        (prompt_fields.generate, {"text": "x", "image_data": ["..."]}, reasons.IMAGES),
        (prompt_fields.generate, {"input_embeds": [[0.1]]}, reasons.EMBEDS),
        (prompt_fields.tokens, {"token_ids": [1], "features": {}}, reasons.IMAGES),
    ],
)
def test_prompts_that_are_more_than_their_ids_have_none(read: Read, body: Fields, reason: str) -> None:
    with pytest.raises(NoTokens) as caught:
        read(body)
    assert caught.value.reason == reason


def test_the_table_has_a_row_for_every_kind_and_a_path_once() -> None:
    assert API.keys() == set(Kind)
    paths = [path for api in API.values() for path in api.paths]
    assert len(paths) == len(set(paths))
