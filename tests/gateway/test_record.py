"""The recording: what a line says, what no line can say, and that requests never wait for it."""

from __future__ import annotations

import json
import stat
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.config import RecordSettings
from gateway.errors import ConfigError
from gateway.record import KEY_VARIABLE, Recorder, TraceKey
from gateway.request import Intent, Kind, Outcome, Prompt, Usage
from gateway.spool import Spool, open_append
from radix.namespace import Namespace
from tests.fakes.publisher import until
from tests.gateway.test_place import House, prompt_of

KEY = TraceKey(b"k" * 32, 0.0)
MODEL = Namespace("m")


def recording(folder: Path, **fields: Any) -> tuple[House, Recorder, Path]:
    file = folder / "trace.jsonl"
    house = House()
    recorder = Recorder(RecordSettings(file=str(file), **fields), clock=lambda: 1000.0 + house.clock.now)
    recorder._key = TraceKey(b"k" * 32, 1000.0)
    house.placer.witness = recorder
    return house, recorder, file


def rows_of(recorder: Recorder, file: Path) -> list[dict[str, Any]]:
    recorder.spool.close()
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_line_has_the_fields_the_simulator_reads_and_the_real_figures(tmp_path: Path) -> None:
    house, recorder, file = recording(tmp_path)
    intent = Intent(Kind.CHAT, {}, model="m", stream=True, session="user-7")
    ticket = house.placer.place(intent, Prompt(prompt_of(40)), "id")
    house.clock.now += 0.25
    ticket.first_byte()
    house.clock.now += 0.5
    ticket.close(Outcome.OK, Usage(40, 7, 16))
    (row,) = rows_of(recorder, file)
    ids = row.pop("hash_ids")
    assert len(ids) == 3
    assert row == {
        "timestamp": 100_000.0,
        "input_length": 40,
        "output_length": 7,
        "session_id": KEY.session_id("user-7"),
        "block_size": 16,
        "cached_tokens": 16,
        "ttft_ms": 250.0,
        "e2e_ms": 750.0,
        "replica": ticket.replica.name,
        "policy": "cost",
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_ids_are_chained_and_separate_what_shares_no_cache() -> None:
    """FC-19, FC-20: equal ids mean an equal prefix in an equal namespace, and nothing else does."""
    tokens = prompt_of(64)
    ids = KEY.block_ids(MODEL, tokens, 16)
    assert KEY.block_ids(MODEL, tokens.copy(), 16) == ids
    assert KEY.block_ids(MODEL, np.concatenate([tokens, prompt_of(16, 1)]), 16)[:4] == ids
    changed = tokens.copy()
    changed[20] += 1
    others = [KEY.block_ids(MODEL, changed, 16)]
    assert others[0][0] == ids[0]
    assert set(others[0][1:]).isdisjoint(ids)  # chained: what follows a difference differs
    for namespace in (Namespace("n"), Namespace("m", adapter="a"), Namespace("m", salt="a"), Namespace("m", media=(b"a",))):
        others.append(KEY.block_ids(namespace, tokens, 16))
        assert set(others[-1]).isdisjoint(ids)
    assert all(0 <= one < 2**63 for one in ids)


def test_a_block_that_is_not_full_is_nobodys_prefix() -> None:
    tokens = prompt_of(24)
    first, second = KEY.block_ids(MODEL, tokens, 16), KEY.block_ids(MODEL, tokens, 16)
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_ids_cannot_be_reproduced_without_the_secret_and_the_secret_is_not_in_the_file(tmp_path: Path) -> None:
    """Two recordings of the same prompt have nothing in common, sessions included."""
    tokens, found = prompt_of(48), []
    for number in range(2):
        file = tmp_path / f"{number}.jsonl"
        house, recorder = House(), Recorder(RecordSettings(file=str(file)))
        house.placer.witness = recorder
        house.placer.place(Intent(Kind.CHAT, {}, model="m", session="s"), Prompt(tokens), "id").close(Outcome.OK, Usage(48, 1, 0))
        (row,) = rows_of(recorder, file)
        found.append({*row["hash_ids"], row["session_id"]})
        assert recorder._key.handed_on().partition(":")[0] not in file.read_text()
    assert found[0].isdisjoint(found[1])


def test_what_cannot_be_replayed_is_left_out_and_counted(tmp_path: Path) -> None:
    house, recorder, file = recording(tmp_path)
    intent = Intent(Kind.CHAT, {}, model="m")
    house.placer.place(intent, Prompt(None, "template"), "a").close(Outcome.OK, Usage(40, 2))
    batch = Intent(Kind.COMPLETION, {"prompt": ["x", "y"]}, model="m", is_batch=True)
    house.placer.place(batch, Prompt(prompt_of(10)), "b").close(Outcome.OK, Usage(40, 2))
    house.placer.place(intent, Prompt(prompt_of(10)), "c").close(Outcome.CLIENT_LEFT)
    house.placer.place(intent, Prompt(prompt_of(10)), "d").close(Outcome.OK, None)
    assert rows_of(recorder, file) == []
    assert recorder.skipped == Counter(no_tokens=1, batch=1, not_answered=1, no_usage=1)
    assert recorder.spool.failed == 0
    assert not recorder._open
    assert not recorder._ids


def test_an_older_file_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    for number in range(3):
        recorder = Recorder(RecordSettings(file=str(file)))
        recorder.spool.put(lambda number=number: b"%d\n" % number)  # type: ignore[misc]
        recorder.spool.close()
    assert [(tmp_path / name).read_text() for name in ("trace.jsonl.1", "trace.jsonl.2", "trace.jsonl")] == ["0\n", "1\n", "2\n"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"record\.file: cannot write .*missing"):
        Recorder(RecordSettings(file=str(tmp_path / "missing" / "trace.jsonl")))


def test_the_recording_ends_at_its_bound_and_counts_on(tmp_path: Path) -> None:
    handle = open_append(str(tmp_path / "f"), "record.file")
    spool = Spool("f", handle, most_bytes=25)
    for _ in range(5):
        spool.put(lambda: b"0123456789\n")
    spool.close()
    assert (tmp_path / "f").read_bytes() == b"0123456789\n" * 2
    assert (spool.written, spool.dropped, spool.full) == (2, 3, True)


def test_a_full_recording_costs_nothing_more(tmp_path: Path) -> None:
    house, recorder, _ = recording(tmp_path)
    recorder.spool.full = True
    house.place(prompt_of(40)).close(Outcome.OK, Usage(40, 1, 0))
    assert recorder.skipped == Counter(full=1)
    assert not recorder._open
    recorder.spool.close()


async def test_a_disk_that_hangs_drops_lines_and_holds_up_nobody(tmp_path: Path) -> None:
    """What waits is bounded in number and in bytes."""
    gate = threading.Event()
    spool = Spool("f", open_append(str(tmp_path / "f"), "record.file"))
    spool.put(lambda: b"" if gate.wait(20) else None)
    await until(lambda: spool._queue.qsize() == 0)
    assert not spool.put(lambda: b"x", 65 << 20)  # more than may wait
    kept = sum(spool.put(lambda: b"x") for _ in range(10_500))
    assert kept == 10_000
    assert spool.dropped == 501
    gate.set()
    spool.close()
    assert (tmp_path / "f").stat().st_size == 10_000


def test_a_line_that_fails_does_not_end_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool("f", open_append(str(tmp_path / "f"), "record.file"))
    spool.put(lambda: bytes(1 // 0))
    spool.put(lambda: b"next\n")
    spool.close()
    assert (tmp_path / "f").read_bytes() == b"next\n"
    assert spool.failed == 1
    assert "lines not written" in caplog.text


def test_workers_get_the_secret_and_the_clock_of_their_supervisor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = TraceKey.new()
    monkeypatch.setenv(KEY_VARIABLE, key.handed_on())
    given = TraceKey.of_environment()
    assert given is not None
    assert given.block_ids(MODEL, prompt_of(32), 16) == key.block_ids(MODEL, prompt_of(32), 16)
    assert given.started_at == key.started_at
    (tmp_path / "t").write_text("of another worker\n")
    Recorder(RecordSettings(file=str(tmp_path / "t"))).spool.close()
    assert (tmp_path / "t").read_text() == "of another worker\n"  # not renamed: it is everybody's
