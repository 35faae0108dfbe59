"""The HTTP side over real sockets, in a process started as production starts it."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.tokenize.prompt import Tokenizer
from tests.fakes.replica_process import TEMPLATE, VOCABULARY, ReplicaProcess
from tests.fakes.runner import generate
from tests.fakes.tokenizer_folder import write_tokenizer_folder

MESSAGES: list[Any] = [{"role": "user", "content": "hello the user"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"), template=TEMPLATE)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == VOCABULARY
    return tokenizer


@pytest.fixture(scope="module")
def replica(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    process = ReplicaProcess(folder, tmp_path_factory.mktemp("log") / "log", num_blocks=200, block_tokens=4)
    yield process
    process.kill()
    assert "ERROR" not in process.log()


@pytest.fixture(scope="module")
def client(replica: ReplicaProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0, timeout=10) as made:
        yield made


def call(
    replica: ReplicaProcess, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=10)
    try:
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, raw, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def post(replica: ReplicaProcess, path: str, body: object) -> tuple[int, Any, http.client.HTTPMessage]:
    status, raw, headers = call(replica, "POST", path, body)
    return status, json.loads(raw), headers


def chat_ids(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.chat({"messages": MESSAGES}).tolist()


def answer_text(tokenizer: Tokenizer, prompt: list[int], count: int) -> str:
    return tokenizer.decode(generate(prompt, count, VOCABULARY), skip_special_tokens=True)


def test_chat_whole_and_streamed_give_the_same_text(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    """FC-48: stream text equals non-stream text; this model's bytes are seldom whole characters."""
    expected = answer_text(tokenizer, chat_ids(tokenizer), 40)
    whole = client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=40, temperature=0)
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].finish_reason == "length"
    chunks = list(client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=40, temperature=0, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert not chunks[0].choices[0].delta.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_comes_last_and_only_when_asked_for(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    """FC-42: with an empty choice list, after the end of the text."""
    chunks = list(
        client.chat.completions.create(
            model="fake", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )
    prompt = len(chat_ids(tokenizer))
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (prompt, 5)
    assert chunks[-1].usage.total_tokens == prompt + 5
    assert [chunk for chunk in chunks[:-1] if chunk.usage] == []


def test_cached_tokens_are_reported_in_usage_and_header(replica: ReplicaProcess) -> None:
    ids = [5 + number for number in range(18)]
    for expected in (0, 16):
        status, answer, headers = post(replica, "/v1/completions", {"prompt": ids, "max_tokens": 2})
        assert status == 200
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": expected}
        assert headers["x-trunkline-cached-tokens"] == str(expected)
    status, raw, headers = call(replica, "POST", "/v1/completions", {"prompt": ids, "max_tokens": 2, "stream": True})
    assert headers["x-trunkline-cached-tokens"] == "16"
    assert headers["content-type"].startswith("text/event-stream")
    assert raw.endswith(b"\n\ndata: [DONE]\n\n")


def test_a_salt_separates_caches(replica: ReplicaProcess) -> None:
    """FC-20: tenants do not see each other's blocks."""
    ids = [9 + 2 * number for number in range(18)]
    found = []
    for salt in ("a", "b", "a", None):
        _, answer, _ = post(replica, "/v1/completions", {"prompt": ids, "max_tokens": 1, "cache_salt": salt})
        found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found == [0, 0, 16, 0]


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    full = answer_text(tokenizer, chat_ids(tokenizer), 40)
    stop = full[10:13]
    asked = {"model": "fake", "messages": MESSAGES, "max_tokens": 40, "temperature": 0, "stop": [stop, "never there"]}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == full[: full.index(stop)]
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == full[: full.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_given_token_ids_are_taken_as_they_are(replica: ReplicaProcess, tokenizer: Tokenizer, path: str) -> None:
    """A body as the gateway makes it: ids in front, the client's own fields behind them, which are not looked at."""
    ids = [11, 12, 13]
    rest = {"messages": "not even a list"} if "chat" in path else {"prompt": 17}
    status, answer, _ = post(replica, path, {"prompt_token_ids": ids, **rest, "max_tokens": 6, "temperature": 0})
    assert status == 200
    choice = answer["choices"][0]
    assert (choice["message"]["content"] if "chat" in path else choice["text"]) == answer_text(tokenizer, ids, 6)
    assert answer["usage"]["prompt_tokens"] == 3


def test_only_requests_that_come_as_text_are_tokenized(replica: ReplicaProcess) -> None:
    before = replica.metric("tokenized_requests_total")
    for path, body, expected in (
        ("/v1/completions", {"prompt": "hello"}, 1),
        ("/v1/completions", {"prompt": ["hello", "user"]}, 2),
        ("/v1/completions", {"prompt": [5, 6]}, 2),
        ("/v1/completions", {"prompt_token_ids": [5, 6], "prompt": "hello"}, 2),
        ("/v1/chat/completions", {"messages": MESSAGES}, 3),
        ("/v1/chat/completions", {"prompt_token_ids": [5, 6], "messages": MESSAGES}, 3),
    ):
        assert post(replica, path, {**body, "max_tokens": 1})[0] == 200
        assert replica.metric("tokenized_requests_total") - before == expected


def test_the_four_forms_of_prompt_are_answered_by_index(replica: ReplicaProcess, tokenizer: Tokenizer) -> None:
    """FC-24: text, list of texts, ids, list of ids."""
    texts = ["hello the", "user"]
    ids = [tokenizer.text(text).tolist() for text in texts]
    expected = [answer_text(tokenizer, one, 6) for one in ids]
    for prompt, answers in ((texts[0], expected[:1]), (texts, expected), (ids[0], expected[:1]), (ids, expected)):
        body = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
        _, answer, _ = post(replica, "/v1/completions", body)
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(answers)))
        assert [choice["text"] for choice in answer["choices"]] == answers
        _, raw, _ = call(replica, "POST", "/v1/completions", {**body, "stream": True})
        streamed = [""] * len(answers)
        for line in raw.split(b"\n\n")[:-2]:
            for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                streamed[choice["index"]] += choice["text"]
        assert streamed == answers


def test_completions_default_to_sixteen_tokens_and_chats_to_the_rest_of_the_context(replica: ReplicaProcess) -> None:
    _, answer, _ = post(replica, "/v1/completions", {"prompt": [3, 4], "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 16
    _, answer, _ = post(replica, "/v1/completions", {"prompt": [3] * 790})
    assert answer["usage"]["completion_tokens"] == 10
    _, answer, _ = post(replica, "/v1/chat/completions", {"prompt_token_ids": [3] * 770})
    assert answer["usage"]["completion_tokens"] == 30
    body = {"prompt_token_ids": [3], "max_tokens": 3, "max_completion_tokens": 2}
    _, answer, _ = post(replica, "/v1/chat/completions", body)
    assert answer["usage"]["completion_tokens"] == 2


def test_a_seed_repeats_an_answer(replica: ReplicaProcess) -> None:
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 30.0, "seed": 4}
    first, second = (post(replica, "/v1/completions", body)[1]["choices"][0]["text"] for _ in range(2))
    other = post(replica, "/v1/completions", {**body, "seed": 5})[1]["choices"][0]["text"]
    assert first == second != other


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "said"),
    [
        ("/v1/completions", b"{", 400, None, "not JSON"),
        ("/v1/completions", b"[1]", 400, None, "must be a JSON object"),
        ("/v1/completions", {}, 400, "prompt", "got None"),
        ("/v1/completions", {"prompt": []}, 400, "prompt", "got []"),
        ("/v1/completions", {"prompt": ""}, 400, "prompt", "no tokens"),
        ("/v1/completions", {"prompt": [[]]}, 400, "prompt", "no tokens"),
        ("/v1/completions", {"prompt": [5, 272]}, 400, "prompt", "272 is not in the vocabulary of 272"),
        ("/v1/completions", {"prompt": [5, -1]}, 400, "prompt", "-1"),
        ("/v1/completions", {"prompt": [5, 2**40]}, 400, "prompt", ""),
        ("/v1/completions", {"prompt": [5, "a"]}, 400, "prompt", "whole numbers"),
        ("/v1/completions", {"prompt": [True]}, 400, "prompt", "whole numbers"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "5"}, 400, "max_tokens", "'5'"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "0"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "temperature", "-1"),
        ("/v1/completions", {"prompt": "a", "stop": ["b", 1]}, 400, "stop", "1"),
        ("/v1/completions", {"prompt": "a", "stop": ""}, 400, "stop", "empty"),
        ("/v1/completions", {"prompt": "a", "echo": True}, 400, "echo", "echo=True is not supported"),
        ("/v1/completions", {"prompt": "a", "logprobs": 0}, 400, "logprobs", "logprobs=0 is not supported"),
        ("/v1/completions", {"prompt": "a", "n": 2}, 400, "n", "n=2 is not supported"),
        ("/v1/completions", {"prompt": [5] * 790, "max_tokens": 11}, 400, "prompt", "takes 800 tokens, but 801"),
        ("/v1/completions", {"prompt": [5] * 800}, 400, "prompt", "takes 800 tokens, but 801"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [272]}, 400, "stop_token_ids", "272 is not in the vocabulary"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [-1]}, 400, "stop_token_ids", "-1 is not in the vocabulary"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [2**70]}, 400, "stop_token_ids", "1180591620717411303424"),
        (
            "/v1/completions",
            {"prompt": "a", "stop_token_ids": [5] * 1025},
            400,
            "stop_token_ids",
            "1025 entries; this engine takes",
        ),
        ("/v1/completions", {"prompt": "a", "stop": ["b"] * 33}, 400, "stop", "33 entries; this engine takes at most 32"),
        ("/v1/completions", {"prompt": ["a"] * 257}, 400, "prompt", "257 entries; this engine takes at most 256"),
        ("/v1/completions", {"prompt": [[5]] * 257}, 400, "prompt", "257 entries; this engine takes at most 256"),
        ("/v1/completions", b"[" * 100_000, 400, None, "nested too deeply"),
        ("/v1/completions", b'{"prompt":"a","x":' + b"[" * 100_000, 400, None, "nested too deeply"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages", ""),
        ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True}, 400, "logprobs", "logprobs=True"),
        ("/v1/chat/completions", {"messages": MESSAGES, "tool_choice": "required"}, 400, "tool_choice", "required"),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {"type": "json_object"}},
            400,
            "response_format",
            "json_object",
        ),
        ("/v1/chat/completions", {"messages": MESSAGES, "model": "other"}, 404, "model", "'other'"),
        ("/tokenize", {}, 400, "prompt", "prompt or messages"),
        ("/detokenize", {"tokens": [272]}, 400, "tokens", "0..271"),
        ("/detokenize", {"tokens": [5] * 801}, 400, "tokens", "801 entries; this engine takes at most 800"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_name_field_and_value_before_any_event(
    replica: ReplicaProcess, path: str, body: Any, status: int, param: str | None, said: str, stream: bool
) -> None:
    """FC-44: a stream that is refused answers with the status and a JSON body, as a plain request does."""
    if stream and isinstance(body, dict):
        body = {**body, "stream": True}
    got, answer, headers = post(replica, path, body)
    assert got == status
    assert headers["content-type"].startswith("application/json")
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert said in answer["error"]["message"]


def test_neutral_values_and_unknown_fields_are_accepted(replica: ReplicaProcess) -> None:
    body = {
        "messages": MESSAGES, "max_tokens": 1, "n": 1, "logprobs": False, "logit_bias": {}, "response_format": {"type": "text"},
        "tool_choice": "none", "top_k": -1, "stop": None, "user": "x", "metadata": {"a": 1}, "service_tier": "auto",
    }  # fmt: skip
    assert post(replica, "/v1/chat/completions", body)[0] == 200


def test_unknown_paths_and_methods_answer_in_the_api_shape(replica: ReplicaProcess) -> None:
    status, answer, _ = post(replica, "/v1/nothing", {})
    assert (status, answer["error"]["type"]) == (404, "invalid_request_error")
    status, raw, headers = call(replica, "GET", "/v1/completions")
    assert (status, headers["allow"]) == (405, "POST")
    assert json.loads(raw)["error"]["code"] is None


def test_tokenize_and_detokenize_are_inverse(replica: ReplicaProcess, tokenizer: Tokenizer) -> None:
    """FC-22: the ids the engine itself uses, for texts and for chats."""
    _, answer, _ = post(replica, "/tokenize", {"prompt": "hello <|end|> user 🎉"})
    assert answer["tokens"] == tokenizer.text("hello <|end|> user 🎉").tolist()
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 800)
    assert post(replica, "/detokenize", {"tokens": answer["tokens"]})[1] == {"prompt": "hello <|end|> user 🎉"}
    _, chat, _ = post(replica, "/tokenize", {"messages": MESSAGES})
    assert chat["tokens"] == chat_ids(tokenizer)
    _, bare, _ = post(replica, "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})
    assert bare["count"] < chat["count"]


def test_models_health_and_server_info_describe_the_replica(replica: ReplicaProcess, client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert (card.id, card.object, card.owned_by) == ("fake", "model", "trunkline")
    assert card.created > 0
    assert card.model_dump()["max_model_len"] == 800
    assert call(replica, "GET", "/health")[0] == 200
    info = json.loads(call(replica, "GET", "/server_info")[1])
    assert info["dialect"] == "trunkline"
    assert (info["model"], info["block_tokens"], info["num_blocks"]) == ("fake", 4, 200)
    assert json.loads(call(replica, "GET", "/kv_event_sources")[1]) == {}


def test_the_cache_can_be_reset_over_http(replica: ReplicaProcess) -> None:
    ids = [7] * 20
    post(replica, "/v1/completions", {"prompt": ids, "max_tokens": 1})
    assert replica.metric('blocks{state="cached"}') > 0
    assert post(replica, "/reset_prefix_cache", {})[1] == {"success": True}
    assert replica.metric('blocks{state="cached"}') == 0
    assert replica.metric('blocks{state="empty"}') == 200


def test_metrics_count_what_was_done(replica: ReplicaProcess) -> None:
    names = ("prompt_tokens_total", "cached_tokens_total", "generated_tokens_total", "step_seconds_count")
    before = {name: replica.metric(name) for name in names}
    for _ in range(2):
        post(replica, "/v1/completions", {"prompt": [8, 9] * 10, "max_tokens": 5})
    change = {name: replica.metric(name) - before[name] for name in names}
    assert change["prompt_tokens_total"] == 40
    assert change["cached_tokens_total"] == 16
    assert change["generated_tokens_total"] == 10
    assert change["step_seconds_count"] == 10
    assert replica.metric("requests_running") == replica.metric("requests_waiting") == 0


def test_as_many_prompts_stops_and_stop_tokens_as_are_allowed_are_answered(replica: ReplicaProcess) -> None:
    body = {"prompt": ["hello"] * 256, "max_tokens": 2, "stop": ["never"] * 32, "stop_token_ids": [271] * 1024}
    status, answer, _ = post(replica, "/v1/completions", body)
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == list(range(256))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"logit_bias": {str(number): 1.0 for number in range(20_000)}}),
        ("/v1/completions", {"suffix": "s" * 100_000}),
        ("/v1/completions", {"model": "m" * 100_000}),
        ("/v1/completions", {"max_tokens": "m" * 100_000}),
        ("/v1/completions", {"prompt": {"m" * 100_000: 1}}),
        ("/v1/chat/completions", {"tool_choice": {"a": "s" * 100_000}}),
        ("/v1/chat/completions", {"tool_choice": "s" * 100_000}),
        ("/v1/chat/completions", {"response_format": {"type": "s" * 100_000}}),
    ],
)
def test_a_refusal_quotes_only_the_start_of_a_value(replica: ReplicaProcess, path: str, fields: dict[str, object]) -> None:
    status, answer, _ = post(replica, path, {"prompt": "a", "messages": MESSAGES, **fields})
    assert status in (400, 404)
    assert answer["error"]["param"] == next(iter(fields))
    assert len(answer["error"]["message"]) < 250


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "anything"])
@pytest.mark.parametrize("raw", [b"junk", b'{"prompt": "a"}', gzip.compress(b'{"prompt": "a"}', mtime=0)])
def test_bodies_in_another_encoding_are_refused_in_the_api_shape(replica: ReplicaProcess, encoding: str, raw: bytes) -> None:
    status, answer, headers = call(replica, "POST", "/v1/completions", raw, {"Content-Encoding": encoding})
    assert (status, headers["content-type"]) == (400, "application/json")
    assert repr(encoding) in json.loads(answer)["error"]["message"]


def test_a_body_at_the_gateways_limit_has_room_for_its_ids(replica: ReplicaProcess) -> None:
    ids = b",".join([b"111111"] * 1_000_000)
    raw = b'{"prompt_token_ids": [' + ids + b'], "prompt": "' + b"x" * (64 << 20) + b'"}'
    status, answer, _ = call(replica, "POST", "/v1/completions", raw)
    assert status == 400  # read and understood, but more than the context
    assert json.loads(answer)["error"]["param"] == "prompt"
