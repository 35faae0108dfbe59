"""Scoring small captures made by hand; the live ones are in `test_cli`."""

from __future__ import annotations

import msgspec
import pytest

from events import score as words
from events.errors import CaptureError
from events.score import Line, score
from tests.fakes.wire import CLEARED, batch, chain, removed

BLOCK = 4
PROMPT = [10 * i + j for i in range(6) for j in range(BLOCK)]


def event(seq: int, *events: object) -> Line:
    return {"kind": "event", "seq": seq, "seq_hex": f"{seq:016x}", "payload_hex": batch(*events).hex()}


def ask(name: str, cached: int | None, tokens: list[int] = PROMPT, *between: Line, **fields: object) -> list[Line]:
    """A request, what happens meanwhile, and its answer."""
    body = fields.pop("body", {"model": "m"})
    request = {"kind": "request", "id": name, "body": body, "prompt_token_ids": tokens, **fields}
    return [request, *between, {"kind": "response", "id": name, "status": 200, "cached_tokens": cached}]


def replay(start: int, *events: Line, ended: bool = True) -> Line:
    frames = [["", str(line["seq_hex"]), str(line["payload_hex"])] for line in events]
    return {"kind": "replay", "start_seq": start, "ended": ended, "response_frames_hex": [*frames, ["", "f" * 16, ""]]}


UP: list[Line] = [
    {"kind": "subscriber", "state": "up"},
    {"kind": "restart", "state": "up"},
    {"kind": "meta", "block_size": BLOCK},
]


def classes(*lines: Line) -> dict[str, tuple[int, int, int]]:
    result = score([*UP, *lines])
    return {name: (tally.exact, tally.in_range, tally.total) for name, tally in result.classes.items()}


def test_the_last_block_of_a_prompt_is_never_predicted_whole() -> None:
    """Edge case 40: at least one token is computed."""
    assert classes(event(0, chain(6, BLOCK)), *ask("a", 20), *ask("b", 24, [*PROMPT, 1])) == {words.SEQUENTIAL: (2, 2, 2)}


def test_a_prediction_may_come_true_while_a_request_is_open() -> None:
    """Edge case 32: the engine was a step ahead of its events."""
    late = ask("a", 8, PROMPT, event(1, chain(2, BLOCK)))
    result = score([*UP, event(0, removed(9)), *late])
    assert classes(event(0, removed(9)), *late) == {words.SEQUENTIAL: (0, 1, 1)}
    (miss,) = result.misses
    assert (miss.id, miss.reason, miss.why, miss.predicted, miss.cached, miss.low, miss.high) == (
        *("a", words.SEQUENTIAL, "a step in flight"),
        *(0, 8, 0, 8),
    )


def test_a_gap_is_filled_by_the_replay_and_nothing_before_it_is_believed() -> None:
    """FC-01, edge cases 4, 6: what comes behind the gap waits."""
    stores = [event(n, chain(1, BLOCK, first=n)) for n in range(4)]
    down: list[Line] = [{"kind": "subscriber", "state": "down"}, *ask("down", 8), {"kind": "subscriber", "state": "up"}]
    told = [*stores[:2], *down, stores[3], *ask("up", 8), replay(2, ended=False), replay(2, *stores[2:]), *ask("healed", 16)]
    assert classes(*told) == {words.DOWN: (1, 1, 1), words.UNASKED: (1, 1, 1), words.SEQUENTIAL: (1, 1, 1)}


def test_a_gap_older_than_the_buffer_drops_the_view_until_a_clear() -> None:
    """FC-02, edge case 7: later predictions are lower bounds."""
    told = [event(0, chain(2, BLOCK)), event(5, chain(1, BLOCK)), replay(1, event(4, removed(77)), event(5, chain(1, BLOCK)))]
    assert classes(*told, *ask("a", 4), event(6, CLEARED), *ask("b", 0)) == {
        words.DROPPED: (1, 1, 1),
        words.SEQUENTIAL: (1, 1, 1),
    }


def test_requests_that_cannot_be_exact_are_told_apart() -> None:
    """Edge cases 33, 44: a reset not announced yet, no lookup, lists, announcements without copies."""
    done: Line = {"kind": "reset", "status": 200, "body": {"success": True}}
    refused: Line = {"kind": "reset", "status": 200, "body": {"success": False}}
    told = [
        event(0, chain(6, BLOCK)),
        refused,
        *ask("refused", 20),
        done,
        *ask("after", 0),
        *ask("none", 0, body={"prompt_logprobs": 0}),
        *ask("list", 20, prompts_token_ids=[[1], PROMPT]),
        *ask("together", 20, concurrent_group=1),
        *ask("full", 20, body={"vllm_xargs": {"kv_cache_report_mode": "full"}}),
        *ask("no answer", None),
    ]
    assert classes(*told) == {
        words.SEQUENTIAL: (1, 1, 1),
        words.RESET: (0, 0, 1),
        words.NO_LOOKUP: (0, 0, 1),
        words.LISTS: (1, 1, 1),
        words.TOGETHER: (1, 1, 1),
        words.REANNOUNCED: (1, 1, 1),
    }


def test_adapters_and_salts_are_asked_under_their_names() -> None:
    """FC-18, FC-20."""
    stores = [chain(2, BLOCK) | {"lora_name": "ad"}, chain(3, BLOCK, salt=0) | {"extra_keys": [["s"], None, None]}]
    told = [{"kind": "meta", "lora_adapters": ["ad"]}, event(0, stores[0]), *ask("ad", 8, body={"model": "ad"})]
    assert classes(*told, *ask("base", 0)) == {words.SEQUENTIAL: (2, 2, 2)}
    assert classes(event(0, stores[1]), *ask("s", 12, body={"cache_salt": "s"}), *ask("none", 0)) == {words.SEQUENTIAL: (2, 2, 2)}


def test_a_restart_empties_the_view() -> None:
    """FC-03, edge case 5: announced by the capture, or by the numbers alone."""
    again: Line = {"kind": "restart", "state": "up"}
    assert classes(event(0, chain(3, BLOCK)), again, *ask("a", 0)) == {words.SEQUENTIAL: (1, 1, 1)}
    told = [event(0, chain(1, BLOCK)), event(1, chain(3, BLOCK)), event(0, chain(1, BLOCK)), *ask("a", 4)]
    assert classes(*told) == {words.SEQUENTIAL: (1, 1, 1)}


def test_a_batch_that_cannot_be_read_empties_the_view() -> None:
    """Edge case 35: what it said is lost."""
    broken = {"kind": "event", "seq": 1, "seq_hex": "01", "payload_hex": msgspec.msgpack.encode(5).hex()}
    assert classes(event(0, chain(3, BLOCK)), broken, *ask("a", 0)) == {words.SEQUENTIAL: (1, 1, 1)}


def test_a_request_without_its_prompt_is_not_judged() -> None:
    asked: list[Line] = [
        {"kind": "request", "id": "a", "body": {}},
        {"kind": "response", "id": "a", "status": 200, "cached_tokens": 4},
    ]
    assert classes(event(0, chain(3, BLOCK)), *asked, *ask("b", 12)) == {words.SEQUENTIAL: (1, 1, 1)}


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "event", "seq_hex": 5},
        {"kind": "event", "seq_hex": "0", "payload_hex": "xy"},
        {"kind": "request", "id": "a", "body": {}, "prompt_token_ids": [2**40]},
        {"kind": "request", "id": "a", "body": {}, "prompt_token_ids": "text"},
        {"kind": "replay", "ended": True, "response_frames_hex": [["", "00"]]},
        {"kind": "replay", "ended": True, "response_frames_hex": 5},
        {"kind": "restart"},
    ],
)
def test_a_line_that_cannot_be_used_is_named(line: Line) -> None:
    with pytest.raises(CaptureError, match=rf"line 4 \({line['kind']}\)"):
        score([*UP, line])
