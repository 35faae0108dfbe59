"""Following an endpoint by hand, and the capture that is written meanwhile."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from events.decode import decode, read
from events.record import Recorder, Veil
from events.replay import Frames
from events.score import score
from events.tail import Heard, Note, Tail
from gateway.cli import main
from radix import Index
from tests.events.recorded import RECORDED
from tests.fakes.publisher import FakePublisher, until
from tests.fakes.wire import CLEARED, batch, chain, removed, stored


class Listener:
    """Keeps what a tail tells."""

    def __init__(self) -> None:
        self.told: list[Heard | Note] = []

    def __call__(self, what: Heard | Note) -> None:
        self.told.append(what)

    @property
    def seqs(self) -> list[int]:
        return [what.frames.seq for what in self.told if isinstance(what, Heard)]

    @property
    def notes(self) -> list[str]:
        return [what.text for what in self.told if isinstance(what, Note)]

    def has(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.seqs) >= count


async def test_the_past_comes_first_and_gaps_are_filled() -> None:
    """FC-01, edge case 12: subscribe, replay, then live; every batch is told once."""
    listener, file = Listener(), io.StringIO()
    async with FakePublisher() as publisher:
        for n in range(3):
            await publisher.send(n, batch(chain(1, 4, first=n)), live=False)
        recorder = Recorder(file, prompts=True)
        tail = Tail(publisher.endpoint, publisher.replay, listener, recorder=recorder, count=7)
        task = asyncio.create_task(tail.run())
        await publisher.subscribed()
        await until(listener.has(3))
        await publisher.send(3, batch(chain(1, 4, first=3)))
        await publisher.send(4, batch(removed(4)), live=False)
        await publisher.send(5, batch(removed(3)))
        await until(listener.has(6))
        await publisher.send_raw(b"kv", b"short")
        await publisher.send(5, batch(removed(3)), keep=False)
        await publisher.send(6, b"\xc1")
        await asyncio.wait_for(task, 5)
    assert listener.seqs == list(range(7))
    assert listener.notes == ["connected", "gap 4..4", "broken message, frames of (2, 5) bytes"]
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["meta", "subscriber", "replay", "event", "event", "replay", "event", "event"]
    assert score(lines).total().total == 0  # a capture that can be scored, though nobody asked anything


async def test_without_replay_gaps_and_restarts_are_told() -> None:
    """Edge cases 5, 9: the numbers say so."""
    listener = Listener()
    async with FakePublisher(replay=False) as publisher:
        task = asyncio.create_task(Tail(publisher.endpoint, None, listener, topic="kv", count=4).run())
        await publisher.subscribed()
        await publisher.send_raw(b"kv2", bytes(8), batch(CLEARED))
        for seq in (7, 9, 0, 1):
            await publisher.send(seq, batch(removed(seq)))
        await asyncio.wait_for(task, 5)
    assert listener.seqs == [7, 9, 0, 1]
    assert listener.notes == ["connected", "gap 8..8", "the engine restarted"]


async def test_a_replay_that_does_not_answer_or_begins_late_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edge cases 7, 9."""
    monkeypatch.setattr("events.tail._REPLAY_TIMEOUT_S", 0.05)
    listener = Listener()
    async with FakePublisher() as publisher:
        publisher.answering = False
        task = asyncio.create_task(Tail(publisher.endpoint, publisher.replay, listener, count=3).run())
        await publisher.subscribed()
        await until(lambda: len(listener.notes) == 2)
        publisher.answering = True
        await publisher.send(3, batch(CLEARED), keep=False)
        await until(listener.has(1))
        await publisher.send(8, batch(CLEARED), live=False)
        await publisher.send(9, batch(CLEARED))
        await asyncio.wait_for(task, 5)
    assert listener.seqs == [3, 8, 9]
    assert "no reply for 0.05 s" in listener.notes[1]
    assert listener.notes[2:] == ["gap 4..8", "replay lacks 4..7"]


def test_a_capture_without_prompts_says_the_same_about_blocks() -> None:
    """Hashes, tokens, salts and images are others, and what can be matched with what is the same."""
    salted = stored([5, 6], None, range(100, 108), 4, lora_name="ad", extra_keys=[["ad", ["img", 1], "secret"], ["ad", b"12"]])
    messages = [batch(chain(3, 4), chain(2, 4, salt=500)), batch(removed(3), salted), batch(chain(2, 4, first=2), rank=None)]
    views = []
    for cover in (False, True):
        veil, index = Veil(b"k" * 16), Index()
        holder = index.holder("r", 0)
        for seq, payload in enumerate(messages):
            index.apply(holder, decode(veil.cover(Frames(seq, payload)) if cover else payload, seq))
        views.append(sorted((len(block.path), block.copies, len(block.namespace.media)) for block in index.dump(holder)))
    assert views[0] == views[1]
    covered = veil.cover(Frames(0, messages[1]))
    assert b"secret" not in covered
    assert b"img" not in covered
    assert read(covered, 0).events[1].ids != list(range(100, 108))  # type: ignore[union-attr]
    assert veil.cover(Frames(0, b"\xc1")) == b""


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: line["id"])
def test_any_message_can_be_covered(line: dict) -> None:
    """The covered form has the same events of the same sizes."""
    payload = bytes.fromhex(line["payload_hex"])
    plain, covered = read(payload, 0), read(Veil(b"k" * 16).cover(Frames(0, payload)), 0)
    assert (covered.rank, covered.ts, covered.skipped) == (plain.rank, plain.ts, 0)
    for event, other in zip(plain.events, covered.events, strict=True):
        assert type(event) is type(other)
        for name in ("tier", "group", "kind", "window_tokens", "block_tokens"):
            assert getattr(event, name, None) == getattr(other, name, None)
        assert len(getattr(event, "hashes", ())) == len(getattr(other, "hashes", ()))
        assert len(getattr(event, "tokens", ())) == len(getattr(other, "tokens", ()))


async def test_the_command_prints_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`trunkline events tail` in another thread, as it has a loop of its own."""
    async with FakePublisher() as publisher:
        await publisher.send(0, batch(chain(3, 4), removed(3), CLEARED, rank=None), live=False)
        await publisher.send(1, b"\xc1", live=False)
        assert publisher.replay is not None
        args = ["events", "tail", publisher.endpoint, "--replay", publisher.replay, "--count", "2"]
        assert await asyncio.to_thread(main, args) == 0
        plain = capsys.readouterr()
        record = tmp_path / "capture.jsonl"
        assert await asyncio.to_thread(main, [*args, "--json", "--record", str(record)]) == 0
    assert plain.err == "connected\n"
    head, store, removal, clear, error = plain.out.splitlines()
    assert head == "seq=0 replayed rank=None events=3"
    assert store == "  stored  0000000000000001 0000000000000002 +1 device 3x4 tokens after start"
    assert (removal, clear) == ("  removed 0000000000000003 device", "  cleared")
    assert "is not msgpack" in error
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["seq"], row["replayed"], row["error"] is None) for row in rows] == [(0, True, True), (1, True, False)]
    assert [json.loads(line)["kind"] for line in record.read_text().splitlines()] == ["meta", "subscriber", "replay"]


@pytest.mark.parametrize(("url", "record"), [("nonsense", None), ("tcp://127.0.0.1:1", "/nowhere/at/all")])
def test_wrong_use_of_the_command(capsys: pytest.CaptureFixture[str], url: str, record: str | None) -> None:
    assert main(["events", "tail", url, "--count", "1", *(["--record", record] if record else [])]) == 2
    assert (record or url) in capsys.readouterr().err
