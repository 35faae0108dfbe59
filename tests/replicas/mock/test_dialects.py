"""The APIs of the engines the fake one speaks like, asked directly."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from replicas.mock.tokens import ByteCodec, answer_text
from tests.fakes.mock_engines import Engines, OpenStream, call, ids, wait_for

ALONE = 2
LONG: dict[str, Any] = {"max_tokens": 5000, "ignore_eos": True}


def stream_of(base: str, body: dict[str, object], path: str = "/v1/completions") -> list[Any]:
    """The parsed events of a whole stream; its end mark has to be there."""
    lines: list[bytes] = []
    with OpenStream(base, body, path) as stream:
        for line in stream.lines():
            lines.append(line)
            if line == b"data: [DONE]":
                break
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def test_prompts_are_text_or_ids_alone_or_many(vllm: Engines) -> None:
    """FC-24."""
    codec, text = ByteCodec(), "a prompt of text, some thirty bytes"
    prompt = codec.text(text).tolist()
    for given, count in ((text, 1), (prompt, 1), ([text, text], 2), ([prompt, prompt], 2)):
        answer = vllm.complete(given, ALONE, max_tokens=13).json()
        assert [choice["text"] for choice in answer["choices"]] == [answer_text("m", prompt, 2)] * count
        assert answer["usage"]["prompt_tokens"] == count * len(prompt)


@pytest.mark.parametrize("name", ["prompt_token_ids", "input_ids"])
def test_a_chat_takes_ids_in_place_of_its_messages(vllm: Engines, name: str) -> None:
    prompt = ids(33, first=44)
    body = {"messages": [{"role": "user", "content": "not this"}], name: prompt, "max_tokens": 6}
    answer = call(f"{vllm.url(ALONE)}/v1/chat/completions", body).json()
    assert answer["choices"][0]["message"]["content"] == answer_text("m", prompt, 1)
    assert answer["usage"]["prompt_tokens"] == 33


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [1, 2**31]}, 400, "prompt"),
        ({"prompt": [1, -2]}, 400, "prompt"),
        ({"prompt": ids(9000)}, 400, "prompt"),
        ({"prompt": "x", "n": 2}, 400, "n"),
        ({"prompt": "x", "cache_salt": "a\0b"}, 400, "cache_salt"),
        ({"prompt": "x", "routed_dp_rank": 7}, 400, "data_parallel_rank"),
        ({"prompt": "x", "model": "other"}, 404, "model"),
        ({"prompt": "\ud800"}, 400, None),
    ],
    ids=["empty", "large id", "negative id", "too long", "n", "salt", "rank", "model", "surrogate"],
)
def test_bad_requests_are_named(vllm: Engines, body: dict[str, object], status: int, param: str | None) -> None:
    reply = call(f"{vllm.url(ALONE)}/v1/completions", {"max_tokens": 1, **body})
    assert (reply.status, reply.json()["error"]["param"]) == (status, param)


def test_a_stream_ends_with_usage_when_asked(vllm: Engines) -> None:
    """FC-42."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    path = "/v1/chat/completions"
    plain = stream_of(vllm.url(ALONE), body, path)
    assert all(event["choices"] for event in plain)
    assert plain[-1]["choices"][0]["finish_reason"] == "length"
    with_usage = stream_of(vllm.url(ALONE), {**body, "stream_options": {"include_usage": True}}, path)
    assert with_usage[-1]["choices"] == []
    assert with_usage[-1]["usage"]["completion_tokens"] == 5


def test_an_answer_has_its_natural_length_unless_told(vllm: Engines) -> None:
    def length_and_end(**fields: object) -> tuple[int, str]:
        answer = vllm.complete("x", ALONE, **{"max_tokens": None, **fields}).json()
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert length_and_end() == (16, "stop")
    assert length_and_end(max_tokens=3) == (3, "length")
    assert length_and_end(max_tokens=40) == (16, "stop")
    assert length_and_end(max_tokens=40, ignore_eos=True) == (40, "length")
    assert length_and_end(max_tokens=40, min_tokens=20) == (20, "stop")


def test_salts_and_adapters_share_nothing(hybrid: Engines) -> None:
    """FC-18, FC-19, FC-20."""
    prompt = ids(65, first=71)
    spaces: list[dict[str, object]] = [{}, {"cache_salt": "tuned"}, {"model": "tuned"}, {"model": "tuned", "cache_salt": "x"}]
    headers = {"X-Data-Parallel-Rank": "0"}
    assert [hybrid.complete(prompt, headers=headers, **space).cached_tokens for space in spaces] == [0, 0, 0, 0]
    assert [hybrid.complete(prompt, headers=headers, **space).cached_tokens for space in spaces] == [64, 64, 64, 64]


def test_models_list_adapters_as_they_come_and_go(hybrid: Engines) -> None:
    def cards() -> dict[str, object]:
        return {card["id"]: card["parent"] for card in call(f"{hybrid.url()}/v1/models").json()["data"]}

    assert cards() == {"h": None, "tuned": "h"}
    assert call(f"{hybrid.url()}/v1/load_lora_adapter", {"lora_name": "new", "lora_path": "/p"}).status == 200
    assert cards() == {"h": None, "tuned": "h", "new": "h"}
    assert hybrid.complete("x", model="new").status == 200
    assert call(f"{hybrid.url()}/v1/unload_lora_adapter", {"lora_name": "new"}).status == 200
    assert hybrid.complete("x", model="new").status == 404


def test_vllm_aborts_by_request_id(vllm: Engines) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(vllm.complete, "abort", ALONE, headers={"X-Request-Id": "r-7"}, **LONG)
        wait_for(lambda: vllm.rank(ALONE)["running"], "the request to run")
        url = f"{vllm.url(ALONE)}/inference/v1/abort_requests"
        assert call(url, {"request_ids": ["r-70", ""]}).json() == {"aborted": 0}
        assert call(url, {"request_ids": ["r-7"]}).json() == {"aborted": 1}
        assert asked.result(1).json()["choices"][0]["finish_reason"] == "abort"
        assert asked.result().json()["id"] == "cmpl-r-7"
    assert vllm.rank(ALONE)["used_blocks"] == 0


def test_sglang_aborts_by_prefix_and_flushes_when_idle(sglang: Engines) -> None:
    base = sglang.url()
    body = {"input_ids": ids(30), "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}, "rid": "chat-12"}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(call, f"{base}/generate", body)
        wait_for(lambda: sglang.rank()["running"], "the request to run")
        assert call(f"{base}/flush_cache", method="POST").status == 400
        call(f"{base}/abort_request", {"rid": "other"})
        call(f"{base}/abort_request", {"rid": "chat"})
        told = asked.result(1).json()["meta_info"]
    assert (told["id"], told["finish_reason"]) == ("chat-12", {"type": "abort"})
    assert call(f"{base}/flush_cache").status == 200
    assert sglang.rank()["cached_blocks"] == 0


def test_sglang_generates_in_one_piece_or_in_growing_ones(sglang: Engines) -> None:
    prompt = ids(40, first=21)
    body: dict[str, object] = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 6}}
    whole = call(f"{sglang.url()}/generate", body).json()
    assert whole["text"] == answer_text("s", prompt, 1)
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    events = stream_of(sglang.url(), body, "/generate")
    assert [event["text"] for event in events] == [whole["text"][: n + 1] for n in range(6)]
    assert events[-1]["meta_info"]["cached_tokens"] == 32
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * 5


def test_sglang_says_where_its_events_are(sglang: Engines) -> None:
    for path in ("/server_info", "/get_server_info"):
        info = call(f"{sglang.url()}{path}").json()
        events = info["kv_events"]
        port = int(sglang.engines[0]["events"][0].rpartition(":")[2])
        assert (events["publisher"], events["endpoint_port_base"], events["block_size"]) == ("zmq", port, 16)
    assert call(f"{sglang.url()}/v1/models").json()["data"][0]["owned_by"] == "sglang"


def test_metrics_carry_the_names_of_the_engine(vllm: Engines, sglang: Engines) -> None:
    vllm.complete(ids(50, first=90), ALONE)
    page = call(f"{vllm.url(ALONE)}/metrics").body.decode()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc"):
        assert f'vllm:{name}{{engine="0",model_name="m"}} 0' in page
    assert 'block_size="16",num_gpu_blocks="512"' in page
    assert 'sglang:num_queue_reqs{dp_rank="0",model_name="s"} 0' in call(f"{sglang.url()}/metrics").body.decode()


def test_tokens_there_and_back(vllm: Engines) -> None:
    base = vllm.url(ALONE)
    told = call(f"{base}/tokenize", {"prompt": "grüße"}).json()
    assert (told["count"], told["max_model_len"]) == (7, 8192)
    assert call(f"{base}/detokenize", {"tokens": told["tokens"]}).json() == {"prompt": "grüße"}
    chat = call(f"{base}/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()
    assert chat["tokens"] == ByteCodec().chat({"messages": [{"role": "user", "content": "x"}]}).tolist()
    assert call(f"{base}/version").json()["version"]


def test_faults_are_refused_by_name(vllm: Engines) -> None:
    for body in ({"no": True}, {"error": {"value": 200}}, {"cut": {"rate": 2}}, {"lose": {"times": "x"}}, {"cut": {"odd": 1}}):
        reply = call(f"{vllm.url(ALONE)}/mock/faults", body)
        assert reply.status == 400, body
        assert next(iter(body)) in reply.json()["error"]["message"]
    assert call(f"{vllm.url(ALONE)}/mock/faults").json()["on"] == {}
