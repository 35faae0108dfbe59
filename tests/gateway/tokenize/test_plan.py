"""Plans exist where they are proven, and then say what the template says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import NoTokens
from gateway.tokenize import plan as planning
from gateway.tokenize.encode import Encoder
from gateway.tokenize.plan import Plan, learn_plan
from gateway.tokenize.prompt import Tokenizer
from gateway.tokenize.segments import Cutter, proven_cutter
from gateway.tokenize.template import ChatTemplate
from radix.match import Int32Array
from tests.fakes.tokenizer_folder import BOS, EOS, write_tokenizer_folder
from tests.gateway.tokenize.test_template import BOS_AND_ROLES, CHATML, PARTS, TOOLS

Make = Callable[[str], tuple[Tokenizer, Plan | None]]
HEAD = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
TAIL = "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
# In the manner of Qwen3: thoughts of earlier turns are cut out of answers, tool results are recognised by their text.
THINKING = (
    "{%- set ns = namespace(last=messages|length - 1) %}{%- for message in messages[::-1] %}"
    "{%- if message.role == 'user' and not (message.content.startswith('<tool_response>')) %}"
    "{%- set ns.last = messages|length - 1 - loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- if message.content is string %}{%- set content = message.content %}"
    "{%- else %}{%- set content = '' %}{%- endif %}{%- if message.role == 'assistant' %}"
    "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{%- endfor %}{{- '<|im_start|>assistant\n' }}"
)
INDENTED = "{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}" + CHATML
TRIMMED = HEAD + "{{ message.content | trim }}" + TAIL


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A tokenizer with that template, and its plan; all share one vocabulary."""
    encoder = Encoder.load(write_tokenizer_folder(tmp_path_factory.mktemp("plan"), template=None), {})
    specials = {"bos_token": BOS, "eos_token": EOS}

    def made(template: str) -> tuple[Tokenizer, Plan | None]:
        tokenizer = Tokenizer(encoder, ChatTemplate({"default": template}, specials), specials)
        cutter = proven_cutter(encoder, tokenizer.template, eos=EOS)
        return tokenizer, learn_plan(tokenizer.template, tokenizer.encoder, cutter)

    return made


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def planned(plan: Plan, fields: dict[str, Any]) -> str | None:
    """The prompt text by the plan, where it takes this body."""
    kinds = plan.kinds(fields)
    if kinds is None or not all(plan.admits(content) for _, content in kinds):
        return None
    return "".join([*(plan.text(kind, content) for kind, content in kinds), plan.ending])


@pytest.mark.parametrize(
    "template", [CHATML, BOS_AND_ROLES.replace("message.content.strip()", "message.content"), THINKING, TRIMMED, PARTS, INDENTED]
)
def test_plain_templates_have_a_plan(make: Make, template: str) -> None:
    tokenizer, plan = make(template)
    assert plan is not None
    fields = chat(("user", "hello"), ("assistant", "the user"), ("user", "é你 <b>"))
    assert planned(plan, fields) == tokenizer.chat_text(fields)


@pytest.mark.parametrize(
    ("template", "content"),
    [
        (THINKING, "a</think>\nb"),
        (THINKING, "<tool_response>x"),
        (TRIMMED, " a"),
        (TRIMMED, "a\n"),
        (HEAD + "{{ 'nothing' if not message.content else message.content }}" + TAIL, ""),
        (HEAD + "{{ 'yes' if message.content == 'no' else message.content }}" + TAIL, "no"),
    ],
)
def test_a_text_that_the_template_treats_in_another_way_is_rendered(make: Make, template: str, content: str) -> None:
    """FC-22: the plan leaves it alone, wherever in the chat it stands."""
    _, plan = make(template)
    assert plan is not None
    for fields in (chat(("user", content)), chat(("user", "a"), ("assistant", content), ("user", "b"))):
        assert planned(plan, fields) is None
    assert planned(plan, chat(("user", "a"), ("assistant", "x"), ("user", "b"))) is not None


@pytest.mark.parametrize(
    "template",
    [
        HEAD + "{{ message.content | upper }}" + TAIL,
        HEAD + "{{ message.content | title }}" + TAIL,
        HEAD + "{{ message.content }}{% if message.content | int %}!{% endif %}" + TAIL,
        HEAD + "{{ message.content | tojson }}" + TAIL,
        HEAD + "{{ message.content | e }}" + TAIL,
        HEAD + "{{ message.content[:900] }}" + TAIL,
        HEAD + "{{ message.content.replace('x', 'y') }}" + TAIL,
        HEAD + "{{ message.content }}{{ message.content }}" + TAIL,
        HEAD + "{{ message.content }}{% if message.content | length > 2 %}!{% endif %}" + TAIL,
        HEAD + "{{ message.content }}{% if loop.index > 900 %}!{% endif %}" + TAIL,
        HEAD + "{{ message.content }}{% if message.content.count('zq') > 1 %}!{% endif %}" + TAIL,
        HEAD + "{{ message.content }}{% if messages | length > 60 %}!{% endif %}" + TAIL,
        HEAD + "{{ message.content }}{% if loop.index0 is divisibleby 3 %}!{% endif %}" + TAIL,
        HEAD + "{{ message.content }}{{ loop.index0 }}" + TAIL,
        HEAD + "{{ message.content }}{{ strftime_now('%H') }}" + TAIL,
        HEAD + "{{ message.content }}{{ ['a', 'b'] | random }}" + TAIL,
        HEAD + "{{ message.content }}{% if loop.changed(message.content) %}!{% endif %}" + TAIL,
        HEAD + "{% set c = 'a' ~ message.content %}{{ message.content }}{% if 'axa' in c %}!{% endif %}" + TAIL,
        HEAD + "{% set c %}a{{ message.content }}{% endset %}{{ message.content }}{% if 'ax' in c %}!{% endif %}" + TAIL,
        HEAD + "{% macro m(c) %}{{ c }}{% endmacro %}{{ m(message.content) }}" + TAIL,
        HEAD + "{{ message.content }}{% if message.content and message.content in 'yes' %}!{% endif %}" + TAIL,
        HEAD + "{{ [message.content, ''] | join('') }}" + TAIL,
        HEAD + "{{ message.content }}{% if messages[0].content == message.content and not loop.first %}!{% endif %}" + TAIL,
        HEAD + "{{ messages[0].content }}" + TAIL,
        HEAD + TAIL,
        "{% for message in messages | reverse %}{{ message.content }}{% endfor %}",
        "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}",  # no place to cut
        "{{ raise_exception('no') }}",
        "{{ messages[9].content.x }}",
    ],
)
def test_other_templates_have_none(make: Make, template: str) -> None:
    _, plan = make(template)
    assert plan is None


@pytest.mark.parametrize(
    "template",
    [
        HEAD + "{{ message.content }}{{ loop.index0 }}" + TAIL,
        HEAD + "{{ message.content }}{{ message.content }}" + TAIL,
        HEAD + "{{ messages[0].content }}" + TAIL,
        HEAD + "{{ message.content }}{% if loop.index0 == 2 %}!{% endif %}" + TAIL,
        HEAD + "{{ message.content }}{% if loop.last %}{{ messages[0].content }}{% endif %}" + TAIL,
        HEAD + "{% if not loop.first %}{{ message.content }}{% endif %}" + TAIL,
        HEAD + "{{ message.content }}{% if message.content.count('zq') > 1 %}!{% endif %}" + TAIL,
    ],
)
def test_what_marks_show_needs_no_probes(make: Make, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_prove", lambda plan, template, encoder: None)
    _, plan = make(template)
    assert plan is None


def test_no_plan_without_a_template_or_a_place_to_cut(make: Make) -> None:
    tokenizer, _ = make(CHATML)
    assert learn_plan(None, tokenizer.encoder, proven_cutter(tokenizer.encoder, None, eos=EOS)) is None
    assert learn_plan(tokenizer.template, tokenizer.encoder, None) is None


@pytest.mark.parametrize("wrong", ["text", "ids"])
def test_a_plan_that_fails_a_probe_is_refused(make: Make, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By text and by ids: either alone is enough."""
    tokenizer, plan = make(CHATML)
    assert plan is not None

    def no_ids(texts: Sequence[str], *, add_special_tokens: bool) -> list[Int32Array]:
        return [np.empty(0, np.int32) for _ in texts]

    def one_more(texts: Sequence[str], *, add_special_tokens: bool) -> list[Int32Array]:
        return [np.array([5], np.int32) for _ in texts]

    if wrong == "text":
        monkeypatch.setattr(Plan, "text", lambda self, kind, content: f"{content} ")
    monkeypatch.setattr(tokenizer.encoder, "encode_all", no_ids if wrong == "text" else one_more)
    assert learn_plan(tokenizer.template, tokenizer.encoder, Cutter(("<|im_end|>",))) is None


def test_templates_that_insist_on_turns_are_planned_for_those_only(make: Make) -> None:
    """FC-22: what the template refuses is refused with its own reason, also where the plan could put ids together."""
    _, plan = make(BOS_AND_ROLES)
    assert plan is not None
    assert plan.kinds(chat(("user", "a"), ("assistant", "b"), ("user", "c"))) is not None
    for roles in (("user", "user"), ("assistant", "user"), ("system", "user"), ("user", "assistant", "assistant", "user")):
        assert plan.kinds(chat(*((role, "x") for role in roles))) is None


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hi",
        [None],
        ["hi"],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "content": "hi", "name": "x"}],
        [{"role": "tool", "content": "hi"}],
        [{"role": ["user"], "content": "hi"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}],
        [{"role": "user", "content": "hi"}, {"role": "system", "content": "hi"}, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "hi"}, None],
        [{"role": "user", "content": "hi"}, None, {"role": "user", "content": "hi"}],
        [{"role": "user", "content": "hi"}] * 2_001,
    ],
)
def test_chats_that_are_not_plain_are_rendered(make: Make, messages: Any) -> None:
    _, plan = make(CHATML)
    assert plan is not None
    assert plan.kinds({"messages": messages}) is None


CONTENTS = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>", EOS, "</think>", "<tool_response>", "\n", " ", "hi", "hello", "\ue0200\ue021", "[user] "]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    max_size=4,
).map("".join)
TURNS = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), CONTENTS), min_size=1, max_size=7)


@pytest.mark.parametrize("template", [CHATML, THINKING, TRIMMED, BOS_AND_ROLES, PARTS, TOOLS])
@settings(max_examples=60, deadline=None)
@given(turns=TURNS)
def test_where_there_is_a_plan_it_says_what_the_template_says(make: Make, template: str, turns: list[tuple[str, str]]) -> None:
    """FC-22: any roles, odd white space, the template's own words and markers as text."""
    if template not in MADE:
        MADE[template] = make(template)
    tokenizer, plan = MADE[template]
    text = None if plan is None else planned(plan, chat(*turns))
    if text is not None:
        assert text == tokenizer.chat_text(chat(*turns))


MADE: dict[str, tuple[Tokenizer, Plan | None]] = {}


def test_a_refusal_by_the_template_is_never_planned(make: Make) -> None:
    tokenizer, plan = make(
        HEAD + "{{ message.content }}{% if message.content == 'bad' %}{{ raise_exception('no') }}{% endif %}" + TAIL
    )
    assert plan is not None
    assert planned(plan, chat(("user", "bad"))) is None
    with pytest.raises(NoTokens):
        tokenizer.chat(chat(("user", "bad")))
