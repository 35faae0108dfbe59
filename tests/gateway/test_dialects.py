"""What each dialect makes of a request: where ids go, where the rank goes, what is taken out, how a request is stopped."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from gateway.body import _is_batch
from gateway.config import DialectName
from gateway.dialects import Edits, dialect_named
from gateway.dialects.base import NO_EDITS, TEMPLATE_FIELDS
from gateway.dialects.trunkline import Trunkline
from gateway.members import edited
from gateway.request import Intent, Kind
from gateway.tokenize.prompt import CHAT_FIELDS
from radix.match import Int32Array

TOKENS = np.array([3, 1, 2], np.int32)
NAME = "ab12cd34-1f.3."


HELLO = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]


def edits(dialect: str, kind: Kind, fields: dict[str, Any], tokens: Int32Array | None = TOKENS, rank: int | None = None) -> Edits:
    return dialect_named(dialect).edits(Intent(kind, fields, is_batch=_is_batch(fields, kind)), tokens, NAME, rank)


def sent(dialect: str, kind: Kind, fields: dict[str, Any], **given: Any) -> dict[str, Any]:
    """The body as the engine reads it."""
    change = edits(dialect, kind, fields, **given)
    raw = orjson.dumps(fields)
    pieces = edited(raw, fields, front=change.front, values=change.values, without=change.without)
    body: dict[str, Any] = orjson.loads(b"".join(pieces))
    return body


def test_every_dialect_can_be_configured() -> None:
    names = DialectName.__args__  # type: ignore[attr-defined]
    assert {dialect_named(name).name for name in names} == set(names)


def test_own_replicas_get_the_tokens() -> None:
    for kind, fields in ((Kind.COMPLETION, {"prompt": "a"}), (Kind.CHAT, {"messages": HELLO})):
        assert edits("trunkline", kind, fields) == Edits(front=(b'"prompt_token_ids":[3,1,2]',), with_tokens=True)


@pytest.mark.parametrize("dialect", ["trunkline", "vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("fields", [{"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"prompt": [1]}, {"prompt": []}, {}])
def test_tokens_of_several_prompts_are_not_sent_in_their_place(dialect: str, fields: dict[str, object]) -> None:
    """FC-24: a batch is routed on its common start and forwarded unchanged, but for the name one prompt gets."""
    if dialect == "trunkline" and not fields:
        return
    assert not edits(dialect, Kind.COMPLETION, fields).with_tokens
    body = sent(dialect, Kind.COMPLETION, fields)
    assert body == fields or (body.pop("rid") == NAME and body == fields and not _is_batch(fields, Kind.COMPLETION))


@pytest.mark.parametrize("dialect", ["trunkline", "vllm", "trtllm", "openai"])
def test_no_tokens_change_nothing(dialect: str) -> None:
    assert edits(dialect, Kind.COMPLETION, {"prompt": "a"}, None) == NO_EDITS


def test_own_ids_of_a_client_stay() -> None:
    assert Trunkline().edits(Intent(Kind.COMPLETION, {"prompt_token_ids": [1]}), TOKENS, NAME, None) == NO_EDITS
    for dialect in ("vllm", "trtllm"):
        assert not edits(dialect, Kind.COMPLETION, {"prompt": "a", "prompt_token_ids": [1]}).with_tokens
    assert not edits("sglang", Kind.CHAT, {"messages": HELLO, "input_ids": [1]}).with_tokens


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm"])
def test_the_ids_stand_where_the_text_of_a_completion_stood(dialect: str) -> None:
    body = sent(dialect, Kind.COMPLETION, {"model": "m", "prompt": "abc", "max_tokens": 5})
    body.pop("rid", None)
    assert list(body.items()) == [("model", "m"), ("prompt", [3, 1, 2]), ("max_tokens", 5)]
    assert edits(dialect, Kind.COMPLETION, {"prompt": "abc"}).with_tokens


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("extra", [{"echo": True}, {"suffix": "b"}])
def test_a_completion_whose_answer_repeats_the_text_keeps_it(dialect: str, extra: dict[str, object]) -> None:
    """FC-40."""
    assert sent(dialect, Kind.COMPLETION, {"prompt": "a", **extra})["prompt"] == "a"


def test_vllm_takes_no_ids_in_chats() -> None:
    assert edits("vllm", Kind.CHAT, {"messages": HELLO}) == NO_EDITS


@pytest.mark.parametrize(("dialect", "member"), [("sglang", "input_ids"), ("trtllm", "prompt_token_ids")])
def test_plain_chats_take_ids_beside_their_messages(dialect: str, member: str) -> None:
    body = sent(dialect, Kind.CHAT, {"messages": HELLO, "temperature": 0})
    body.pop("rid", None)
    assert body == {member: [3, 1, 2], "messages": HELLO, "temperature": 0}


NOT_PLAIN: list[dict[str, Any]] = [
    {"messages": HELLO, "tools": [{"type": "function"}]},
    {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": HELLO, "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": []}]},
    {"messages": [{"role": "tool", "content": "x"}]},
    {"messages": [{"role": "assistant", "content": None}]},
    {"messages": []},
    {"messages": ["x"]},
]


@pytest.mark.parametrize("dialect", ["sglang", "trtllm"])
@pytest.mark.parametrize("fields", NOT_PLAIN)
def test_other_chats_are_left_to_the_engine(dialect: str, fields: dict[str, Any]) -> None:
    body = sent(dialect, Kind.CHAT, fields)
    body.pop("rid", None)
    assert body == fields


def test_an_option_that_is_null_is_absent() -> None:
    assert edits("sglang", Kind.CHAT, {"messages": HELLO, "tools": None}).with_tokens


def test_all_fields_that_tokenizing_reads_are_template_options() -> None:
    assert CHAT_FIELDS <= TEMPLATE_FIELDS


@pytest.mark.parametrize(
    ("dialect", "line"),
    [
        ("openai", b"x-data-parallel-rank: 3\r\n"),
        ("trunkline", b"x-data-parallel-rank: 3\r\n"),
        ("vllm", b"x-data-parallel-rank: 3\r\n"),
        ("sglang", b"x-data-parallel-rank: 3\r\n"),
        ("trtllm", b""),
    ],
)
def test_the_rank_goes_where_the_engine_looks(dialect: str, line: bytes) -> None:
    """FC-21."""
    assert dialect_named(dialect).rank_line(3) == line


# --- SGLang ---


def test_sglang_gets_a_name_to_stop_a_request_by() -> None:
    for fields in ({"prompt": "a"}, {"prompt": "a", "rid": None}, {"prompt": [1, 2], "n": 1}):
        change = edits("sglang", Kind.COMPLETION, fields, None)
        assert change.abort is not None
        assert (change.abort.path, change.abort.body) == (b"/abort_request", b'{"rid":"%s"}' % NAME.encode())
        assert not change.abort.given
        assert sent("sglang", Kind.COMPLETION, fields, tokens=None) == {**fields, "rid": NAME}


def test_a_clients_own_name_stays_and_is_used_only_where_it_can_be_nobody_elses_start() -> None:
    """Edge case 45: names are matched by how they begin."""
    long = "c0ffee00" * 4
    change = edits("sglang", Kind.COMPLETION, {"prompt": "a", "rid": long}, None)
    assert change.abort is not None
    assert (change.abort.name, change.abort.given) == (long, True)
    for rid in ("chat", "c0ffee00" * 3, "", ["x" * 40], 7):
        assert edits("sglang", Kind.COMPLETION, {"prompt": "a", "rid": rid}, None) == NO_EDITS


@pytest.mark.parametrize("fields", [{"prompt": ["a", "b"]}, {"prompt": "a", "n": 2}])
def test_requests_the_engine_names_anew_get_no_name(fields: dict[str, object]) -> None:
    change = edits("sglang", Kind.COMPLETION, fields, None)
    assert change == NO_EDITS


def test_sglangs_own_route_takes_ids_in_place_of_text_and_the_rank_in_the_body() -> None:
    body = sent("sglang", Kind.GENERATE, {"text": "a", "sampling_params": {"max_new_tokens": 3}}, rank=2)
    assert body == {
        "routed_dp_rank": 2,
        "input_ids": [3, 1, 2],
        "rid": NAME,
        "text": None,
        "sampling_params": {"max_new_tokens": 3},
    }
    own = {"text": "a", "input_ids": None, "routed_dp_rank": 0, "rid": "mine"}
    assert sent("sglang", Kind.GENERATE, own, rank=2) == {**own, "text": None, "input_ids": [3, 1, 2]}


@pytest.mark.parametrize(
    "fields",
    [
        {"input_ids": [1]},
        {"text": "a", "image_data": ["x"]},
        {"text": ["a", "b"]},
        {"text": "a", "sampling_params": {"n": 2}},
        {"text": ["a"], "sampling_params": [{}]},
    ],
)
def test_other_inputs_of_sglangs_own_route_are_left_as_they_are(fields: dict[str, Any]) -> None:
    body = sent("sglang", Kind.GENERATE, fields)
    body.pop("rid", None)
    if fields.get("sampling_params") == {"n": 2}:
        fields = {"input_ids": [3, 1, 2], **fields, "text": None}
    assert body == fields


def test_what_does_not_generate_is_not_touched() -> None:
    for name in ("vllm", "sglang", "trtllm", "trunkline"):
        assert edits(name, Kind.EMBEDDINGS, {"input": "a", "vllm_xargs": {}}, rank=1) == NO_EDITS


# --- TensorRT-LLM ---


def test_what_only_other_engines_know_is_taken_out_for_trtllm() -> None:
    extras = {"vllm_xargs": {"a": 1}, "session_id": "s", "rid": "r", "priority": 5, "cache_salt": "x"}
    fields = {"model": "m", "prompt": "a", **extras, "top_k": 3}
    assert sent("trtllm", Kind.COMPLETION, fields) == {"model": "m", "prompt": [3, 1, 2], "top_k": 3}
    chat = sent("trtllm", Kind.CHAT, {"messages": HELLO, **extras}, tokens=None)
    assert chat == {"messages": HELLO, "cache_salt": "x"}  # known there


@pytest.mark.parametrize(
    ("value", "stays"), [(0, True), (0.25, True), (1, True), (None, True), (-1, False), (2, False), (True, False)]
)
def test_priorities_trtllm_would_refuse_are_taken_out(value: object, stays: bool) -> None:
    body = sent("trtllm", Kind.CHAT, {"messages": HELLO, "priority": value}, tokens=None)
    assert ("priority" in body) is stays


def test_fields_that_change_the_answer_are_for_the_engine_to_refuse() -> None:
    fields = {"messages": HELLO, "lora_path": "x", "allowed_token_ids": [1], "unheard_of": 1}
    assert sent("trtllm", Kind.CHAT, fields, tokens=None) == fields
