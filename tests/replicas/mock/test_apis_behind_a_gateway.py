"""Every API through a real gateway: routed by prompt where it has one, answered natively, refused in its own shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.mock_engines import Engines, Gateway, OpenStream, Reply, call, ids, wait_for

TEXT = "Tell me of the sea, and of the ships that sail on it by night, and of those who wait for them. "


def post(gateway: Gateway, path: str, **body: object) -> Reply:
    return call(f"{gateway.base}{path}", body)


def messages(gateway: Gateway, text: str, **fields: object) -> Reply:
    turns = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    return post(gateway, "/v1/messages", **{"model": "m", "max_tokens": 4, "messages": turns, **fields})


def events(gateway: Gateway, path: str, body: dict[str, object]) -> list[dict[str, Any]]:
    """The data of each event of a stream."""
    reply = call(f"{gateway.base}{path}", {**body, "stream": True})
    assert reply.status == 200, reply.body
    return [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]


def test_messages_are_routed_by_their_tokens_and_counted(vllm: Engines, gateway: Gateway) -> None:
    """FC-22, FC-63: `system` and blocks of text give the ids of the engine; its counts are read in its own words."""
    body = {"system": [{"type": "text", "text": TEXT * 2}], "messages": []}
    counted = gateway.metric("trunkline_token_mismatches_total")
    first = messages(gateway, "one", **{**body, "messages": [{"role": "user", "content": "one"}]})
    assert first.status == 200, first.body
    assert first.json()["usage"]["cache_read_input_tokens"] == 0

    def again() -> Reply | None:
        reply = messages(gateway, "two", **{**body, "messages": [{"role": "user", "content": "two"}]})
        return reply if reply.predicted >= 192 else None

    second = wait_for(again, "the blocks of the first")
    usage = second.json()["usage"]
    assert second.replica == first.replica
    assert usage["cache_read_input_tokens"] == second.predicted
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == int(second.headers["x-trunkline-prompt-tokens"])
    receipt = gateway.receipt()
    assert receipt["realised_cached_tokens"] == second.predicted
    assert gateway.metric("trunkline_token_mismatches_total") == counted
    assert [block["type"] for block in second.json()["content"]] == ["text"]


def test_messages_stream_in_their_own_events(vllm: Engines, gateway: Gateway) -> None:
    body: dict[str, object] = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "stream, please"}]}
    told = events(gateway, "/v1/messages", body)
    kinds = [event["type"] for event in told]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert set(kinds[3:-3]) == {"content_block_delta"}
    receipt = gateway.receipt()
    assert (receipt["outcome"], receipt["output_tokens"]) == ("ok", 4)
    assert receipt["engine_prompt_tokens"] == receipt["prompt_tokens"]


def test_tokens_of_messages_are_counted_by_the_engine(vllm: Engines, gateway: Gateway) -> None:
    body = {"model": "m", "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    wanted = int(messages(gateway, "hi", system="Be brief.").headers["x-trunkline-prompt-tokens"])
    assert call(f"{gateway.base}/v1/messages/count_tokens", body).json() == {"input_tokens": wanted}


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "other", "messages": [], "max_tokens": 1}, 404, "not_found_error"),
        ({"model": 1, "messages": []}, 400, "invalid_request_error"),
        ({"model": "m", "messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error"),
    ],
    ids=["by the gateway: unknown model", "by the gateway: no name", "by the engine"],
)
def test_refusals_of_messages_have_the_shape_of_their_api(
    vllm: Engines, gateway: Gateway, body: dict[str, object], status: int, kind: str
) -> None:
    reply = call(f"{gateway.base}/v1/messages", body)
    assert reply.status == status
    assert reply.json()["type"] == "error"
    assert reply.json()["error"].keys() == {"type", "message"}
    assert reply.json()["error"]["type"] == kind


def test_responses_are_routed_by_their_tokens_and_kept(vllm: Engines, gateway: Gateway) -> None:
    """What an engine keeps is asked of that engine: to go on from it, to fetch it, to delete it."""
    body = {"model": "m", "instructions": TEXT * 2, "max_output_tokens": 8}
    first = post(gateway, "/v1/responses", **body, input="one")
    assert first.status == 200, first.body
    wait_for(lambda: post(gateway, "/v1/responses", **body, input="two").predicted >= 192, "the blocks of the first")
    again = post(gateway, "/v1/responses", **body, input=[{"role": "user", "content": [{"type": "input_text", "text": "two"}]}])
    assert again.json()["usage"]["input_tokens_details"]["cached_tokens"] == again.predicted
    assert gateway.receipt()["realised_cached_tokens"] == again.predicted
    response_id = first.json()["id"]
    for _ in range(4):
        follow = post(gateway, "/v1/responses", model="m", input="and then?", previous_response_id=response_id)
        assert (follow.status, follow.replica) == (200, first.replica), follow.body
    assert gateway.metric("trunkline_no_tokens_total", reason="state") >= 4
    fetched = call(f"{gateway.base}/v1/responses/{response_id}")
    assert (fetched.json()["id"], fetched.replica) == (response_id, first.replica)
    deleted = call(f"{gateway.base}/v1/responses/{response_id}", method="DELETE")
    assert deleted.json()["deleted"] is True
    assert call(f"{gateway.base}/v1/responses/{response_id}").status == 404


def test_a_response_made_elsewhere_is_looked_for(vllm: Engines, gateway: Gateway) -> None:
    """As after a restart of the gateway: one replica after the other is asked, and then it is known."""
    made = [call(f"{vllm.url(number)}/v1/responses", {"input": "hi", "max_output_tokens": 1}).json()["id"] for number in (0, 1)]
    for response_id, name in zip(made, "ab", strict=True):
        assert call(f"{gateway.base}/v1/responses/{response_id}").replica == name
        follow = post(gateway, "/v1/responses", model="m", input="and then?", previous_response_id=response_id)
        assert (follow.status, follow.replica) == (200, name)
    assert call(f"{gateway.base}/v1/responses/resp_nobody").status == 404


def test_a_streamed_response_is_known_and_can_be_cancelled_while_it_runs(vllm: Engines, gateway: Gateway) -> None:
    """FC-49: through another connection than that of the stream."""
    body: dict[str, object] = {"model": "m", "input": "long", "max_output_tokens": 5000, "ignore_eos": True}
    with OpenStream(gateway.base, {**body, "stream": True}, "/v1/responses") as running:
        created = json.loads(running.first_event()[6:])
        assert created["type"] == "response.created"
        response_id = created["response"]["id"]
        fetched = call(f"{gateway.base}/v1/responses/{response_id}")
        assert fetched.json()["status"] == "in_progress"
        cancelled = call(f"{gateway.base}/v1/responses/{response_id}/cancel", {})
        assert (cancelled.status, cancelled.json()["status"], cancelled.replica) == (200, "cancelled", fetched.replica)
        last = next(line for line in running.lines() if line.startswith(b'data: {"type":"response.completed"'))
        assert json.loads(last[6:])["response"]["status"] == "cancelled"
    told = events(gateway, "/v1/responses", {**body, "max_output_tokens": 4})
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert (told[0]["type"], told[-1]["type"]) == ("response.created", "response.incomplete")
    receipt = gateway.receipt()
    assert (receipt["outcome"], receipt["output_tokens"]) == ("ok", 4)


def test_embeddings_and_ranks_come_from_an_engine(vllm: Engines, gateway: Gateway) -> None:
    embedded = post(gateway, "/v1/embeddings", model="m", input=["a", "b"])
    assert [row["index"] for row in embedded.json()["data"]] == [0, 1]
    assert "x-trunkline-prompt-tokens" not in embedded.headers
    for path in ("/v1/rerank", "/rerank"):
        ranked = post(gateway, path, model="m", query="q", documents=["x", "q"])
        assert ranked.json()["results"][0]["index"] == 1
    assert gateway.metric("trunkline_requests_total", route="embeddings") >= 1
    assert gateway.metric("trunkline_requests_total", route="rerank") >= 2


def test_text_is_turned_into_tokens_and_back_by_an_engine(vllm: Engines, gateway: Gateway) -> None:
    told = post(gateway, "/tokenize", model="m", prompt="hello").json()
    assert told["count"] == 5
    assert post(gateway, "/detokenize", model="m", tokens=told["tokens"]).json() == {"prompt": "hello"}


@pytest.mark.parametrize("stream", [False, True])
def test_sglangs_own_api_is_routed_and_counted(sglang: Engines, gateway: Gateway, stream: bool) -> None:
    prompt = ids(100, first=40 + stream)
    body = {"model": "s", "input_ids": prompt, "sampling_params": {"max_new_tokens": 3}, "stream": stream}
    assert call(f"{gateway.base}/generate", body).status == 200
    wait_for(lambda: call(f"{gateway.base}/generate", body).predicted == 96, "its events")
    receipt = gateway.receipt()
    assert (receipt["outcome"], receipt["prompt_tokens"], receipt["output_tokens"]) == ("ok", 100, 3)
    assert receipt["realised_cached_tokens"] == 96


def test_models_are_merged_with_aliases_and_adapters(vllm: Engines, gateway: Gateway) -> None:
    listed = call(f"{gateway.base}/v1/models").json()["data"]
    by_name = {card["id"]: card for card in listed}
    assert by_name.keys() == {"m", "s", "h", "tuned", "gpt-5"}
    assert (by_name["tuned"]["parent"], by_name["gpt-5"]["root"]) == ("h", "m")
    assert by_name["m"]["max_model_len"] == 512 * 16
    assert call(f"{gateway.base}/v1/models/gpt-5").json() == by_name["gpt-5"]
    missing = call(f"{gateway.base}/v1/models/none")
    assert missing.status == 404
    assert "serves m, s, h, tuned, gpt-5" in missing.json()["error"]["message"]


def test_an_alias_reaches_the_engine_under_the_name_it_knows(vllm: Engines, gateway: Gateway) -> None:
    """FC-40: the mock refuses names it does not know."""
    for path, fields in (
        ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ("/v1/embeddings", {"input": "x"}),
    ):
        reply = post(gateway, path, model="gpt-5", **fields)
        assert (reply.status, reply.json()["model"]) == (200, "m"), reply.body
    refused = post(gateway, "/v1/completions", model="nobody", prompt="x")
    assert refused.status == 404
    assert "this gateway serves" in refused.json()["error"]["message"]


def test_an_adapter_has_a_cache_of_its_own(hybrid: Engines, gateway: Gateway) -> None:
    """FC-18: equal tokens for the base model and for its adapter share nothing, and each finds its own blocks again."""
    prompt = ids(200, first=77)
    for model in ("h", "tuned"):
        first = gateway.complete(prompt, model=model)
        assert (first.status, first.cached_tokens, first.predicted) == (200, 0, 0), model
        wait_for(lambda name=model: gateway.complete(prompt, model=name).predicted == 192, "its own blocks")  # type: ignore[misc]
        again = gateway.complete(prompt, model=model)
        assert again.cached_tokens == again.predicted == 192


def test_what_is_not_listed_stays_closed(vllm: Engines, gateway: Gateway) -> None:
    epoch = vllm.state()["epoch"]
    for path in ("/reset_prefix_cache", "/v1/load_lora_adapter", "/mock/restart", "/v1/audio/../../mock/restart", "/score/x"):
        assert post(gateway, path, model="m").status == 404
    assert vllm.state()["epoch"] == epoch
    passed = post(gateway, "/classify", model="m", input="x")
    assert (passed.status, passed.replica in "ab") == (404, True)  # the engine's own 404: it got there
