"""`trunkline events tail http://...`: following a queue by hand."""

from __future__ import annotations

import asyncio
import json

import pytest

from events.errors import EndpointError
from events.polled_tail import PolledTail
from gateway.cli import main
from tests.fakes.event_queue import FakeQueue, created, removed, stored
from tests.fakes.publisher import until


async def typed(*args: str) -> int:
    return await asyncio.to_thread(main, ["events", "tail", *args])


async def test_each_rank_of_an_answer_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeQueue() as queue:
        for rank in (0, 1):
            queue.tell(created(), rank=rank)
            queue.tell(stored(0, count=3), rank=rank)
        queue.tell(removed(2), rank=1)
        assert await typed(queue.url.removesuffix("/kv_cache_events"), "--count", "2") == 0
        out, err = capsys.readouterr()
        assert out.splitlines() == [
            "event=1 rank=0 events=1",
            "  stored  0000000000000001 0000000000000002 +1 device 3x4 tokens after start",
            "event=2 rank=1 events=2",
            "  stored  0000000000000001 0000000000000002 +1 device 3x4 tokens after start",
            "  removed 0000000000000003 device",
        ]
        assert "empties the engine's queue" in err


async def test_what_fails_is_told_once_and_the_following_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.polled_tail._FAILING_PAUSE_S", 0.01)
    async with FakeQueue() as queue:
        queue.status = 500
        following = asyncio.create_task(typed(queue.url, "--count", "1", "--json"))
        await until(lambda: queue.asked >= 4)
        queue.raw = b"<html>"
        queue.status = 200
        await until(lambda: queue.raw is None)
        queue.tell(stored(0))
        assert await following == 0
        out, err = capsys.readouterr()
        (row,) = [json.loads(line) for line in out.splitlines()]
        assert (row["seq"], row["rank"], row["error"], row["events"][0]["type"]) == (0, None, None, "stored")
        assert (err.count("answered 500"), err.count("answer is not JSON")) == (1, 1)


async def test_what_cannot_be_polled_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert await typed("http://*:1") == 2
    assert "queue of events" in capsys.readouterr().err
    for option in (["--replay", "tcp://h:1"], ["--topic", "kv"], ["--record", "/nowhere/x"]):
        assert await typed("http://h:1", *option) == 2
        assert "are for tcp:// endpoints" in capsys.readouterr().err
    with pytest.raises(EndpointError):
        PolledTail("tcp://h:1", print)
