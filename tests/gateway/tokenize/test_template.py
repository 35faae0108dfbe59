"""Chat templates against the rendering that engines use (transformers), and the shapes that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from gateway.errors import NoTokens
from gateway.tokenize import reasons
from gateway.tokenize.prompt import Tokenizer
from gateway.tokenize.template import ChatTemplate
from tests.fakes.tokenizer_folder import write_tokenizer_folder

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}{{ "\\n" }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' and loop.index0 > 99 %}{% break %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}{{ message.content | trim }}{% endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>' + call.function.name + ' ' + call.function.arguments | tojson(indent=1) + '</call>' }}
    {%- endfor %}
    {%- generation %}{{- '<|im_end|>\\n' }}{%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>' }}{% endif %}
{%- endif %}
"""
BOS_AND_ROLES = """\
{{ bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {%- endif %}
    {{ '[' ~ message.role ~ '] ' ~ message.content.strip() ~ eos_token }}
{%- endfor %}"""
PARTS = """\
{% for message in messages %}<|start|>{{ message.role }}
    {% if message.content is string %}{{ message.content }}{% else %}
{% for part in message.content %}{{ part.type }}:{{ part.text }};{% endfor %}
{% endif %}<|end|>{% endfor %}"""

PLAIN = [{"role": "user", "content": "hello the user"}, {"role": "assistant", "content": " hi\n"}]
TURNS = [*PLAIN, {"role": "user", "content": "<b>&'\"é你</b>  "}]
WITH_TOOLS: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "weather <here>?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "w", "arguments": '{"at": "Oslo & <x>", "n": 1.5}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": '{"t": 3}'},
    ],
    "tools": [{"type": "function", "function": {"name": "w", "parameters": {"type": "object", "é": ["<", "&"]}}}],
}


def as_vllm_hands_over(body: dict[str, Any], template: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools as vLLM gives them to the template, written out by hand."""
    if body is WITH_TOOLS:
        user, _, tool = body["messages"]
        call = {"id": "1", "type": "function", "function": {"name": "w", "arguments": {"at": "Oslo & <x>", "n": 1.5}}}
        function = {"name": "w", "description": None, "parameters": {"type": "object", "é": ["<", "&"]}}
        assistant = {"role": "assistant", "content": "", "tool_calls": [call]}
        return [user, assistant, tool], [{"type": "function", "function": function}]
    if template == PARTS:
        return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in body["messages"]], None
    return body["messages"], None


@pytest.mark.parametrize("adds_bos", [False, True], ids=["no-bos", "adds-bos"])
@pytest.mark.parametrize(
    ("template", "body"),
    [
        (CHATML, {"messages": TURNS}),
        (CHATML, {"messages": PLAIN, "add_generation_prompt": False}),
        (CHATML, {"messages": PLAIN, "add_generation_prompt": False, "continue_final_message": True}),
        (TOOLS, WITH_TOOLS),
        (TOOLS, {"messages": TURNS, "chat_template_kwargs": {"enable_thinking": False}}),
        (TOOLS, {"messages": TURNS, "chat_template_kwargs": {"enable_thinking": True}}),
        (TOOLS, {"messages": PLAIN, "add_generation_prompt": False, "continue_final_message": True}),  # trims the content
        (BOS_AND_ROLES, {"messages": TURNS}),
        (PARTS, {"messages": TURNS, "add_generation_prompt": False}),
        (PARTS, {"messages": PLAIN, "add_generation_prompt": False, "continue_final_message": True}),
    ],
)
def test_chat_tokens_equal_transformers(tmp_path: Path, template: str, body: dict[str, Any], adds_bos: bool) -> None:
    """FC-22, FC-23: equal ids for a template with and without the begin marker, and for a tokenizer that adds it or not."""
    folder = write_tokenizer_folder(tmp_path, template=template, adds_bos=adds_bos)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    messages, tools = as_vllm_hands_over(body, template)
    wanted = theirs.apply_chat_template(
        messages,
        tools=tools,
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
        tokenize=False,
        **body.get("chat_template_kwargs", {}),
    )
    ours = Tokenizer.load(folder)
    assert ours.chat_text(body) == wanted
    assert ours.chat(body).tolist() == theirs(wanted, add_special_tokens=False)["input_ids"]
    marked = ours.chat({**body, "add_special_tokens": True})
    assert marked.tolist() == theirs(wanted, add_special_tokens=True)["input_ids"]


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"})


def test_parts_are_joined_with_a_newline_and_nulls_skipped() -> None:
    content = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": None}, {"type": "refusal", "refusal": "c"}]
    text = template_of(CHATML).render([{"role": "user", "content": content}], add_generation_prompt=False)
    assert text == "<|im_start|>user\na\nb\nc<|im_end|>\n"


@pytest.mark.parametrize(("source", "role"), [(CHATML, "system"), ("{# developer #}" + CHATML, "developer")])
def test_developer_becomes_system_where_the_template_does_not_know_it(source: str, role: str) -> None:
    text = template_of(source).render([{"role": "developer", "content": "x"}], add_generation_prompt=False)
    assert text == f"<|im_start|>{role}\nx<|im_end|>\n"


def test_tool_use_template_serves_requests_with_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].function.name }}"}]
    tokenizer = Tokenizer.load(write_tokenizer_folder(tmp_path, template=named))
    body = {"messages": PLAIN}
    assert tokenizer.chat_text(body) == "plain"
    assert tokenizer.chat_text({**body, "tools": [{"type": "function", "function": {"name": "w"}}]}) == "w"


def test_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path, template="from the configuration")
    (folder / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools", encoding="utf-8")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.chat_text({"messages": PLAIN}) == "from the file"
    assert tokenizer.chat_text({"messages": PLAIN, "tools": [{"function": {"name": "w"}}]}) == "with tools"


def test_rendering_leaves_the_body_as_it_was() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "w", "arguments": '{"a": 1}'}}]
    messages = [*PLAIN, {"role": "assistant", "content": [{"type": "text", "text": "x"}], "tool_calls": calls}]
    before = repr(messages)
    template_of(TOOLS).render(messages, add_generation_prompt=False)
    template_of(PARTS).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert repr(messages) == before


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], reasons.TEMPLATE),
        (None, reasons.SHAPE),
        ("hello", reasons.SHAPE),
        (["hello"], reasons.SHAPE),
        ([{"content": "no role"}], reasons.SHAPE),
        ([{"role": 1, "content": "x"}], reasons.SHAPE),
        ([{"role": "user", "content": 5}], reasons.SHAPE),
        ([{"role": "user", "content": [7]}], reasons.SHAPE),
        ([{"role": "user", "content": [{"type": "text", "text": 7}]}], reasons.SHAPE),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], reasons.IMAGES),
        ([{"role": "user", "content": [{"text": "no type"}]}], reasons.IMAGES),
        ([{"role": "assistant", "content": "x", "tool_calls": "w"}], reasons.SHAPE),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], reasons.SHAPE),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "w", "arguments": "{"}}]}], reasons.TEMPLATE),
    ],
)
def test_shapes_that_engines_refuse(messages: object, reason: str) -> None:
    """FC-22: a body that can not be rendered has a reason."""
    with pytest.raises(NoTokens) as refused:
        template_of(CHATML).render(messages)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "extra",
    [
        {"continue_final_message": True},  # together with the generation prompt, which is on by default
        {"options": {"chat_template": "x"}},
        {"options": {"messages": []}},
        {"tools": "w"},
        {"tools": [{"type": "function"}]},
    ],
)
def test_options_that_engines_refuse(extra: dict[str, Any]) -> None:
    with pytest.raises(NoTokens):
        template_of(CHATML).render(PLAIN, **extra)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{{ missing.field }}",
        "{{ messages.append(1) }}",  # the sandbox is immutable
        "{{ ''.__class__.__mro__ }}",
        "{% for message in messages %}{{ message.content[:2] }}{% endfor %}",  # drops the mark of continue_final_message
    ],
)
def test_what_a_template_raises_is_a_refusal(source: str) -> None:
    with pytest.raises(NoTokens) as refused:
        template_of(source).render(PLAIN, add_generation_prompt=False, continue_final_message="content[:2]" in source)
    assert refused.value.reason == reasons.TEMPLATE


def test_a_broken_template_leaves_completions_working(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tokenizer_folder(tmp_path, template="{% for %}"))
    assert len(tokenizer.completion({"prompt": "hello"}))
    with pytest.raises(NoTokens) as refused:
        tokenizer.chat({"messages": PLAIN})
    assert refused.value.reason == reasons.NO_TEMPLATE
