"""Chats through the gateway: the same content as directly, and routed to whoever holds the conversation."""

from __future__ import annotations

import socket
import urllib.request
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.demo.http import get_json
from tests.end_to_end.fleet import Fleet, wait_for

MESSAGES = [
    {"role": "system", "content": "You are the help desk of a library. Answer in plain sentences, and keep it short, please."},
    {"role": "user", "content": "Hello, I joined the library last month with my two children and we borrowed nine books."},
]


def ask(fleet: Fleet, base: str | None = None, *, messages: list[dict[str, str]] = MESSAGES, **options: Any) -> Any:
    """A whole answer through the official client."""
    with fleet.client(base) as client:
        return client.chat.completions.create(model="m", messages=messages, temperature=0, **options)  # type: ignore[call-overload]


def streamed(fleet: Fleet, base: str | None = None, **options: Any) -> tuple[str, list[Any]]:
    """(joined text, all chunks) of a streamed answer."""
    with fleet.client(base) as client:
        stream = client.chat.completions.create(model="m", messages=MESSAGES, temperature=0, stream=True, **options)  # type: ignore[call-overload]
        chunks = list(stream)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks


def test_content_is_byte_for_byte_what_the_replica_gives(fleet: Fleet) -> None:
    direct = ask(fleet, fleet.url(0), max_tokens=24)
    through = ask(fleet, max_tokens=24)
    text = direct.choices[0].message.content
    assert text
    assert through.choices[0].message.content == text
    assert streamed(fleet, max_tokens=24)[0] == text
    assert streamed(fleet, fleet.url(1), max_tokens=24)[0] == text


def test_a_follow_up_goes_to_the_holder_and_its_cached_tokens_are_predicted(fleet: Fleet) -> None:
    """FC-63: the recorded reason and matched tokens are checked, not only a hit on the engine."""
    fleet.clear()
    first = ask(fleet, max_tokens=20)
    reply = first.choices[0].message.content
    home = fleet.receipts(1)[0]["replica"]
    conversation = [*MESSAGES, {"role": "assistant", "content": reply}, {"role": "user", "content": "And on Saturday?"}]
    for _ in range(3):
        ask(fleet, messages=conversation, max_tokens=4)
        receipt = fleet.receipts(1)[0]
        assert receipt["replica"] == home
        assert receipt["reason"] == "credit"
        assert receipt["predicted_cached_tokens"] == receipt["realised_cached_tokens"] > 0
        assert receipt["prompt_tokens"] == receipt["engine_prompt_tokens"]


def test_streams_are_metered_without_the_client_seeing_it(fleet: Fleet) -> None:
    """FC-42: usage reaches the receipt; the client gets it only if it asked."""
    _, plain = streamed(fleet, max_tokens=5)
    assert all(chunk.usage is None and chunk.choices for chunk in plain)
    assert fleet.receipts(1)[0]["output_tokens"] == 5
    _, asked = streamed(fleet, max_tokens=5, stream_options={"include_usage": True})
    assert asked[-1].usage.completion_tokens == 5
    assert asked[-1].usage.prompt_tokens_details.cached_tokens is not None


def test_stop_and_max_tokens_work_streaming_and_not(fleet: Fleet) -> None:
    whole = ask(fleet, max_tokens=16).choices[0]
    assert whole.finish_reason == "length"
    stop = whole.message.content[4:8]
    expected = whole.message.content[: whole.message.content.index(stop)]
    stopped = ask(fleet, max_tokens=16, stop=[stop]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (expected, "stop")
    assert streamed(fleet, max_tokens=16, stop=[stop])[0] == expected


def test_completions_take_text_and_token_ids(fleet: Fleet) -> None:
    """FC-24: every shape of prompt is served, and routed on its tokens."""
    with fleet.client() as client:
        text = client.completions.create(model="m", prompt="The quick brown fox jumps", max_tokens=6, temperature=0)
        ids = fleet.receipts(1)[0]["prompt_tokens"]
        assert ids == text.usage.prompt_tokens
        tokens = client.completions.create(model="m", prompt=[10, 20, 30, 40], max_tokens=6, temperature=0)
        assert tokens.usage.prompt_tokens == 4
        batch = client.completions.create(model="m", prompt=["one two", "one three"], max_tokens=3, temperature=0)
        assert [choice.index for choice in batch.choices] == [0, 1]


def test_our_own_replicas_do_not_tokenize_again(fleet: Fleet) -> None:
    before = [fleet.metric(fleet.url(number), "trunkline_replica_tokenized_requests_total") for number in (0, 1)]
    ask(fleet, max_tokens=2)
    after = [fleet.metric(fleet.url(number), "trunkline_replica_tokenized_requests_total") for number in (0, 1)]
    assert after == before
    ask(fleet, fleet.url(0), max_tokens=2)
    assert fleet.metric(fleet.url(0), "trunkline_replica_tokenized_requests_total") == before[0] + 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_reaches_the_engine_within_a_second(fleet: Fleet, stream: bool) -> None:
    """FC-49: the client leaves, the engine stops, load and slots are free, and nothing is an error."""
    body = orjson.dumps({"model": "m", "messages": MESSAGES, "max_tokens": 4000, "ignore_eos": True, "stream": stream})
    host, port = fleet.base.removeprefix("http://").split(":")
    running = "trunkline_replica_requests_running"
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_for(lambda: sum(fleet.metric(fleet.url(n), running) for n in (0, 1)) == 1 or None, 5, "the engine to run it")
    wait_for(lambda: sum(fleet.metric(fleet.url(n), running) for n in (0, 1)) == 0 or None, 1.0, "the engine to stop")
    for number in (0, 1):
        rank = fleet.state(number)["ranks"][0]
        assert (rank["in_flight"], rank["queued_tokens"], rank["decoding"]) == (0, 0, 0)
    assert fleet.receipts(1)[0]["outcome"] == "client_left"


def test_the_scrape_is_well_formed_and_counts(fleet: Fleet) -> None:
    ask(fleet, max_tokens=2)
    with urllib.request.urlopen(f"{fleet.control}/metrics", timeout=5) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    assert sum(sample.value for sample in families["trunkline_decisions"].samples) > 0
    assert {sample.labels["replica"] for sample in families["trunkline_replica_up"].samples} == {"r1", "r2"}
    assert get_json(f"{fleet.control}/readyz")["ready"] is True
