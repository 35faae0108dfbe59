"""What a request asks, and the only bytes of it that are changed."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.apis.asked import Asked
from gateway.apis.stored import StoredResponses
from gateway.body import look, with_model
from gateway.config import Limits
from gateway.errors import Refusal
from gateway.http1.parse import RequestHead, parse_head
from gateway.request import Kind

ALIASES = {"gpt": "llama", 'q"é': 'x"é'}


def head(path: bytes = b"/v1/x", *, content_type: bytes = b"application/json", method: bytes = b"POST") -> RequestHead:
    raw = b"%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nx-trunkline-session: s\r\n" % (method, path, content_type)
    return parse_head(raw, Limits().head_fields)[0]


def asked(aliases: dict[str, str] | None = None, stored: StoredResponses | None = None) -> Asked:
    return Asked(ALIASES if aliases is None else aliases, lambda body, loads: loads(body), stored or StoredResponses())


@pytest.mark.parametrize(
    ("raw", "want", "model"),
    [
        (b'{"model":"gpt"}', b'{"model":"llama"}', "llama"),
        (
            b'{ "n" : 1.00000000000000000001 ,\n "model" :\t"gpt" , "x":{"model":"gpt","big":123456789012345678901234567890}}',
            b'{ "n" : 1.00000000000000000001 ,\n "model" :\t"llama" , "x":{"model":"gpt","big":123456789012345678901234567890}}',
            "llama",
        ),
        (b'{"m\\u006fdel":"g\\u0070t","a":"\xc3\xa9"}', b'{"m\\u006fdel":"llama","a":"\xc3\xa9"}', "llama"),
        (b'{"model":"x","model":"gpt"}', b'{"model":"x","model":"llama"}', "llama"),
        (b'{"model":"q\\"\xc3\xa9"}', b'{"model":"x\\"\xc3\xa9"}', 'x"é'),
    ],
)
@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.MESSAGES, Kind.EMBEDDINGS, Kind.PASS_THROUGH])
def test_an_alias_changes_the_value_of_model_and_no_other_byte(raw: bytes, want: bytes, model: str, kind: Kind) -> None:
    """FC-40: numbers keep all digits, names elsewhere stay."""
    intent, body = asked().read(kind, head(), raw)
    assert (body, intent.model) == (want, model)


@pytest.mark.parametrize(
    "raw", [b'{"model":"llama"}', b'{"model":null}', b"{}", b'{"model":"GPT"}', b'{"model":"gpt:8b"}', b'{"x":{"model":"gpt"}}']
)
def test_a_body_without_an_alias_is_not_copied(raw: bytes) -> None:
    for kind in (Kind.CHAT, Kind.PASS_THROUGH):
        assert asked().read(kind, head(), raw)[1] is raw


def test_a_body_too_deep_to_rename_its_model_is_refused() -> None:
    raw = b'{"model":"gpt","x":' + b"[" * 1010 + b"]" * 1010 + b"}"
    with pytest.raises(Refusal, match="nested too deep") as caught:
        asked().read(Kind.CHAT, head(), raw)
    assert (caught.value.status, caught.value.param) == (400, "model")


def test_an_alias_in_a_form_is_changed_where_it_stands() -> None:
    """FC-40: the file beside it keeps its bytes, also those that look like the name."""
    file = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n\x00gpt\xff\r\n'
    field = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%s\r\n--b--\r\n'
    form = head(content_type=b"multipart/form-data; boundary=b")
    intent, body = asked().read(Kind.PASS_THROUGH, form, file + field % b"gpt")
    assert (intent.model, body) == ("llama", file + field % b"llama")


def test_the_argument_that_spoils_the_view_is_taken_out_in_every_api() -> None:
    raw = b'{"model":"gpt","vllm_xargs":{"kv_cache_report_mode":"full"}}'
    for kind in (Kind.MESSAGES, Kind.RESPONSES, Kind.PASS_THROUGH):
        assert asked().read(kind, head(), raw)[1] == b'{"model":"llama","vllm_xargs":{}}'


@pytest.mark.parametrize(("response_id", "pin", "seeks"), [("resp_1", "a", False), ("resp_2", None, True)])
def test_what_an_engine_keeps_is_asked_there_or_looked_for(response_id: str, pin: str | None, seeks: bool) -> None:
    stored = StoredResponses()
    stored.remember("resp_1", "a")
    reader = asked(stored=stored)
    raw = json.dumps({"input": "x", "previous_response_id": response_id}).encode()
    intents = [
        reader.read(Kind.RESPONSES, head(), raw)[0],
        reader.read(Kind.STORED, head(b"/v1/responses/" + response_id.encode(), method=b"GET"), b"")[0],
        reader.read(Kind.STORED, head(b"/v1/responses/%s/cancel" % response_id.encode()), b"{}")[0],
    ]
    for intent in intents:
        assert (intent.pin, intent.seeks, intent.session) == (pin, seeks, "s")


@pytest.mark.parametrize("fields", [{}, {"previous_response_id": None}, {"previous_response_id": 3}])
def test_a_new_response_may_be_made_anywhere(fields: dict[str, Any]) -> None:
    intent, _ = asked().read(Kind.RESPONSES, head(), json.dumps({"input": "x", **fields}).encode())
    assert (intent.pin, intent.seeks) == (None, False)


def test_a_stored_response_may_be_streamed_again() -> None:
    assert asked().read(Kind.STORED, head(b"/v1/responses/r?stream=true&starting_after=3", method=b"GET"), b"")[0].stream
    assert not asked().read(Kind.STORED, head(b"/v1/responses/r", method=b"GET"), b"")[0].stream


def test_what_passes_through_may_be_anything() -> None:
    for raw in (b"", b"\x00\xff", b'{"model":', b"[1]", b'{"stream":true,"model":"m"}'):
        intent, body = asked().read(Kind.PASS_THROUGH, head(), raw)
        assert (body, intent.stream) == (raw, raw.startswith(b'{"stream"'))


@pytest.mark.parametrize(
    ("kind", "fields", "batch"),
    [
        (Kind.COMPLETION, {"prompt": ["a", "b"]}, True),
        (Kind.COMPLETION, {"prompt": [[1], [2]]}, True),
        (Kind.COMPLETION, {"prompt": [1, 2]}, False),
        (Kind.COMPLETION, {"prompt": "a"}, False),
        (Kind.COMPLETION, {"prompt": []}, False),
        (Kind.GENERATE, {"text": ["a"]}, True),
        (Kind.GENERATE, {"text": "a"}, False),
        (Kind.GENERATE, {"input_ids": [[1], [2]]}, True),
        (Kind.GENERATE, {"input_ids": [1]}, False),
    ],
)
def test_several_prompts_are_a_batch(kind: Kind, fields: dict[str, Any], batch: bool) -> None:
    """FC-24: also after the fields were let go, when the engine's sum is compared with our count."""
    intent = look(json.dumps(fields).encode(), kind)
    intent.fields = {}
    assert intent.is_batch is batch


def test_only_messages_that_are_an_array_are_taken() -> None:
    for kind in (Kind.CHAT, Kind.MESSAGES, Kind.COUNT_TOKENS):
        with pytest.raises(Refusal, match="'messages' must be an array, got a string"):
            look(b'{"messages":"x"}', kind)
    assert look(b'{"messages":"x"}', Kind.EMBEDDINGS).fields == {"messages": "x"}


def test_the_name_is_written_as_json() -> None:
    assert orjson.loads(with_model(b'{"model":"a"}', 'b"\n\\')) == {"model": 'b"\n\\'}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("model"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _VALUES, max_size=4), st.text(min_size=1), st.text(), st.sampled_from([None, 1]), st.booleans())
def test_any_body_keeps_its_other_bytes(
    fields: dict[str, Any], name: str, target: str, indent: int | None, ascii_only: bool
) -> None:
    """FC-40: wherever the name stands, whatever is written around it."""
    body = {**fields, "model": name}
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode()
    renamed = with_model(raw, target)
    assert json.loads(renamed) == {**body, "model": target}
    literal = json.dumps(name, ensure_ascii=ascii_only).encode()
    written = orjson.dumps(target)
    assert len(renamed) == len(raw) - len(literal) + len(written)
    at = renamed.rindex(written) if renamed.count(written) == 1 else None
    assert at is None or raw == renamed[:at] + literal + renamed[at + len(written) :]
