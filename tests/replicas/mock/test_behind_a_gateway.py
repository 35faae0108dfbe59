"""A real gateway in front of the fake engines: what it predicts is what they find, and what it makes of each fault."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from replicas.mock.tokens import ByteCodec, answer_text
from tests.fakes.mock_engines import Engines, Gateway, OpenStream, call, ids, wait_for


def test_what_is_cached_is_what_was_predicted(vllm: Engines, gateway: Gateway) -> None:
    """FC-63: the reason and the matched tokens of the choice, and the engine's own count, agree turn by turn."""
    messages = [{"role": "user", "content": "Tell me of the sea, and of the ships that sail on it at night."}]
    cached, replicas = [], set()
    for turn in range(4):
        reply = call(
            f"{gateway.base}/v1/chat/completions", {"model": "m", "messages": messages, "max_tokens": 40, "ignore_eos": True}
        )
        assert reply.cached_tokens == reply.predicted
        assert reply.headers["x-trunkline-reason"] in (("price", "load") if turn == 0 else ("credit", "price"))
        cached.append(reply.cached_tokens)
        replicas.add(reply.replica)
        answer = reply.json()["choices"][0]["message"]["content"]
        prompt = ByteCodec().chat({"messages": messages}).tolist()
        assert answer == answer_text("m", prompt, 8)[:40]
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"And then, in the year {turn}?"}]
        known = reply.json()["usage"]["total_tokens"] // 16
        wait_for(lambda at=known: gateway.metric("trunkline_index_blocks") >= at - 1, "the events of this turn")  # type: ignore[misc]
    assert cached[0] == 0
    assert cached == sorted(set(cached))  # more with each turn, the generated tokens among them
    assert len(replicas) == 1


def test_sglang_is_followed_where_it_says_and_predicted(sglang: Engines, gateway: Gateway) -> None:
    prompt = ids(100, first=3)
    first = gateway.complete(prompt, model="s")
    assert (first.status, first.cached_tokens) == (200, 0)
    wait_for(lambda: sglang.rank()["next_seq"] and gateway.complete(prompt, model="s").predicted == 96, "its events")
    again = gateway.complete(prompt, model="s")
    assert again.cached_tokens == again.predicted == 96


def test_requests_get_their_own_answers_under_load(vllm: Engines, gateway: Gateway) -> None:
    async def ask(number: int) -> tuple[int, str]:
        reply = await asyncio.to_thread(gateway.complete, ids(40, first=number), model="m", max_tokens=20, ignore_eos=True)
        return number, reply.json()["choices"][0]["text"]

    async def all_of_them() -> list[tuple[int, str]]:
        return await asyncio.gather(*(ask(number) for number in range(100, 124)))

    for number, text in asyncio.run(all_of_them()):
        assert text == answer_text("m", ids(40, first=number), 3)


@pytest.mark.parametrize(("value", "outcome"), [(500, "engine_error"), (404, "client_error")])
def test_an_error_reaches_the_client_and_ends_the_request(vllm: Engines, gateway: Gateway, value: int, outcome: str) -> None:
    """FC-30: the engine's status and body, no retry."""
    for number in (0, 1):
        vllm.fault(number, error={"value": value, "times": 1})
    reply = gateway.complete("an error", model="m")
    assert reply.status == value
    assert reply.json()["error"]["code"] == "mock_error"
    assert (gateway.receipt()["outcome"], gateway.receipt()["attempts"]) == (outcome, 1)


def test_a_busy_engine_is_left_for_another_and_two_are_a_429(vllm: Engines, gateway: Gateway) -> None:
    """FC-31."""
    vllm.fault(0, busy={"value": 7})
    for _ in range(2):
        assert gateway.complete("busy", model="m").replica == "b"
    vllm.fault(1, busy={"value": 7})
    reply = gateway.complete("busy", model="m")
    assert (reply.status, reply.headers["retry-after"]) == (429, "7")
    assert gateway.replica("a")["healthy"]


def test_a_reset_before_the_first_byte_is_repaired(vllm: Engines, gateway: Gateway) -> None:
    """FC-34, FC-43: by a fresh connection, or by the other replica."""
    retries = gateway.metric("trunkline_retries_total")
    for number in (0, 1):
        vllm.fault(number, reset={"times": 1})
    assert gateway.complete("a reset", model="m").status == 200
    assert vllm.hits(0).get("reset", 0) + vllm.hits(1).get("reset", 0) >= 1
    assert gateway.metric("trunkline_retries_total") > retries


def test_a_slow_first_byte_is_waited_for_and_a_hang_is_not(vllm: Engines, gateway: Gateway) -> None:
    """FC-46: the limit of the first byte."""
    for number in (0, 1):
        vllm.fault(number, slow_first_byte={"value": 0.2, "times": 1}, hang=None)
    started = time.monotonic()
    assert gateway.complete("slow", model="m").status == 200
    assert time.monotonic() - started >= 0.2
    vllm.calm()
    for number in (0, 1):
        vllm.fault(number, hang=True)
    assert gateway.complete("never", model="m").status == 504
    assert gateway.receipt()["outcome"] == "engine_error"


@pytest.mark.parametrize("fault", ["cut", "end_early"])
def test_a_cut_stream_is_told_and_left_incomplete(vllm: Engines, gateway: Gateway, fault: str) -> None:
    """FC-45."""
    for number in (0, 1):
        vllm.fault(number, **{fault: {"value": 3, "times": 1}})
    with OpenStream(gateway.base, {"model": "m", "prompt": "cut", "max_tokens": 30}) as stream:
        lines = list(stream.lines())
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]
    assert len([event for event in events if event.get("choices")]) == 3
    assert events[-1]["error"]["code"] == "stream_cut"
    assert b"data: [DONE]" not in lines
    assert b"0" not in lines  # no last chunk
    assert gateway.receipt()["outcome"] == "cut"


@pytest.mark.parametrize("fault", [{"slow_health": {"value": 5}}, {"sick": {"value": 503}}], ids=["slow", "sick"])
def test_a_replica_whose_health_fails_is_left_until_it_is_well(vllm: Engines, gateway: Gateway, fault: dict[str, object]) -> None:
    """FC-32, FC-33: down after several failures, back by probing alone."""
    vllm.fault(0, **fault)
    wait_for(lambda: not gateway.replica("a")["healthy"], "the replica to be given up")
    assert gateway.complete("health", model="m").replica == "b"
    vllm.calm()
    wait_for(lambda: gateway.replica("a")["healthy"], "the replica to be back")


def settled_blocks(gateway: Gateway) -> int:
    """Blocks it knows once no event of an earlier request is on its way."""
    readings: list[int] = []

    def settled() -> bool:
        readings.append(gateway.blocks())
        return len(readings) > 5 and len(set(readings[-5:])) == 1

    wait_for(settled, "the events of earlier requests")
    return readings[-1]


def test_silence_changes_no_view_and_stops_no_request(vllm: Engines, gateway: Gateway) -> None:
    """FC-05: the replica stays routable."""
    for number in (0, 1):
        vllm.fault(number, silent=True)
    before = [vllm.rank(number)["next_seq"] for number in (0, 1)]
    blocks = settled_blocks(gateway)
    assert gateway.complete(ids(64, first=77), model="m").status == 200
    assert [vllm.rank(number)["next_seq"] for number in (0, 1)] == before
    assert sum(vllm.hits(number).get("silent", 0) for number in (0, 1)) > 0
    assert gateway.blocks() == blocks


@pytest.mark.parametrize(
    ("fault", "counted"), [("lose", "gaps"), ("skip", "gaps"), ("reorder", "gaps"), ("duplicate", "duplicates")]
)
def test_event_faults_are_noticed_and_predictions_go_on(vllm: Engines, gateway: Gateway, fault: str, counted: str) -> None:
    """FC-01, FC-08: what is missing is fetched or given up; what is predicted afterwards is found."""
    before = gateway.metric(f"trunkline_event_{counted}_total")
    for number in (0, 1):
        vllm.fault(number, **{fault: {"times": 1}})
    firsts = iter(range(1000))

    def noticed() -> bool:
        assert gateway.complete(ids(40, first=next(firsts)), model="m").status == 200
        return gateway.metric(f"trunkline_event_{counted}_total") > before

    wait_for(noticed, "the fault to be noticed")
    vllm.calm()
    wait_for(lambda: all(gateway.replica(name)["ranks"][0]["freshness"] != "gap" for name in "ab"), "the views to be settled")
    prompt = ids(100, first=1000)
    wait_for(lambda: gateway.complete(prompt, model="m").predicted == 96, "the prompt to be known")
    reply = gateway.complete(prompt, model="m")
    assert reply.predicted == reply.cached_tokens == 96


def test_the_http_side_down_with_the_engine_and_back_with_an_empty_view(vllm: Engines, gateway: Gateway) -> None:
    """FC-03, FC-56: what it held is forgotten, and it serves again."""
    prompt = ids(80, first=31)
    wait_for(lambda: gateway.complete(prompt, model="m").predicted == 64, "the prompt to be known")
    holder = gateway.complete(prompt, model="m").replica
    number = ("a", "b").index(holder)
    vllm.restart(number, http=True, down_s=0.4)
    wait_for(lambda: gateway.replica(holder)["healthy"], "its HTTP side")
    wait_for(lambda: gateway.replica(holder)["ranks"][0]["freshness"] == "live", "its events")
    reply = gateway.complete(prompt, model="m")
    assert reply.status == 200
    assert reply.cached_tokens == reply.predicted == 0


def test_an_aborted_request_frees_its_blocks_within_a_second(vllm: Engines, gateway: Gateway) -> None:
    """FC-49: through the gateway, by leaving."""
    body = {"model": "m", "prompt": ids(320, first=55), "max_tokens": 7000, "ignore_eos": True}
    with OpenStream(gateway.base, body) as stream:
        assert stream.first_event()
        number = next(number for number in (0, 1) if vllm.rank(number)["used_blocks"])
    left_at = time.monotonic()
    wait_for(lambda: vllm.rank(number)["used_blocks"] == 0, "the blocks to be free", 1.0)
    assert time.monotonic() - left_at < 1.0
    assert vllm.state(number)["open_requests"] == 0


def test_each_engine_is_known_by_what_it_plays(vllm: Engines, sglang: Engines, gateway: Gateway) -> None:
    assert [gateway.replica(name)["dialect"] for name in ("a", "s", "h")] == ["vllm", "sglang", "vllm"]


@pytest.mark.parametrize(("model", "dialect"), [("m", "vllm"), ("s", "sglang")])
def test_an_engine_that_takes_ids_finds_the_same_ones(
    vllm: Engines, sglang: Engines, gateway: Gateway, model: str, dialect: str
) -> None:
    """FC-22: by its own count, and by what it finds in its cache of a text that it tokenized itself."""
    before = gateway.metric("trunkline_sent_with_tokens_total", dialect=dialect)
    text = "All happy families are alike; each unhappy family is unhappy in its own way."
    engines, number = (sglang, 0) if model == "s" else (vllm, 0)
    engines.complete(text, number)
    sent = gateway.complete(text, model=model)
    assert sent.json()["usage"]["prompt_tokens"] == len(text) == int(sent.headers["x-trunkline-prompt-tokens"])
    assert gateway.metric("trunkline_sent_with_tokens_total", dialect=dialect) == before + 1
    if model == "s":
        assert sent.cached_tokens == len(text) // 16 * 16


def test_a_chat_of_sglang_takes_ids_that_it_would_have_made_itself(sglang: Engines, gateway: Gateway) -> None:
    """FC-22."""
    messages = [{"role": "user", "content": "What is the capital of the moon, if it has one?"}]
    body = {"model": "s", "messages": messages, "max_tokens": 4}
    direct = call(f"{sglang.url()}/v1/chat/completions", body).json()
    before = gateway.metric("trunkline_sent_with_tokens_total", dialect="sglang")
    reply = call(f"{gateway.base}/v1/chat/completions", body)
    assert reply.json()["choices"] == direct["choices"]
    assert reply.json()["usage"]["prompt_tokens"] == direct["usage"]["prompt_tokens"]
    assert gateway.metric("trunkline_sent_with_tokens_total", dialect="sglang") == before + 1


def test_sglang_is_told_to_stop_what_its_client_left(sglang: Engines, gateway: Gateway) -> None:
    """FC-49: within a second, by a call, though the engine would notice a minute later."""
    sglang.fault(deaf={"value": 60})
    done = gateway.metric("trunkline_engine_aborts_total", result="done")
    body = {"model": "s", "prompt": ids(48, first=56), "max_tokens": 200, "ignore_eos": True}

    def left_and_stopped() -> bool:
        with OpenStream(gateway.base, body) as stream:
            assert stream.first_event()
        left_at = time.monotonic()
        wait_for(lambda: sglang.rank()["used_blocks"] == 0, "the blocks to be free")
        assert time.monotonic() - left_at < 1.0
        return gateway.metric("trunkline_engine_aborts_total", result="done") > done

    wait_for(left_and_stopped, "an answer to be left before its end")
    assert gateway.metric("trunkline_engine_aborts_total", result="failed") == 0
