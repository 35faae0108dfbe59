"""Messages of real engines, 25 versions of two of them, against their expected reading."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from events.decode import decode
from events.replay import Frames, parse_reply
from radix.changes import Batch, Cleared, Event, Removed, Stored, Tier

DATA = Path(__file__).parent.parent / "data"
TIERS = {None: Tier.DEVICE, "GPU": Tier.DEVICE, "CPU": Tier.HOST, "cpu": Tier.HOST, "CPU_PINNED": Tier.HOST}
TIERS |= {"STORAGE": Tier.DISK, "FS": Tier.DISK, "DISK": Tier.DISK, "EXTERNAL": Tier.SHARED, "OBJ": Tier.SHARED}


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def read(line: dict) -> Batch:
    return decode(bytes.fromhex(line["payload_hex"]), int(line["seq_hex"], 16))


def check_event(event: Event, view: dict) -> None:
    match event:
        case Stored():
            assert view["type"] == "BlockStored"
            assert [f"{value:016x}" for value in event.hashes] == view["_hash64"]
            assert (None if event.parent is None else f"{event.parent:016x}") == view["_parent64"]
            assert event.tokens.tolist() == view["token_ids"]
            assert event.block_tokens == view["block_size"]
            salt = view.get("cache_salt")
            if salt is not None:
                assert event.namespace_hint.salt == salt
        case Removed():
            assert view["type"] == "BlockRemoved"
            assert [f"{value:016x}" for value in event.hashes] == view["_hash64"]
        case Cleared():
            assert view["type"] == "AllBlocksCleared"
            return
    assert event.tier is TIERS[view.get("medium")]
    assert event.group == (view.get("group_idx") or 0)


def matchable(views: Iterable[dict]) -> list[dict]:
    """Pages of token pairs cannot be compared with a prompt and are skipped."""
    return [view for view in views if not any(isinstance(token, list) for token in view.get("token_ids", ()))]


@pytest.mark.parametrize("line", lines("vllm_kv_events.jsonl") + lines("sglang_kv_events.jsonl"), ids=lambda line: line["id"])
def test_every_recorded_message_reads_as_it_should(line: dict) -> None:
    """FC-06: arrays and maps, two to three batch elements, signed and unsigned ints and bytes, old and new fields."""
    batch = read(line)
    want = line["decoded"]
    views = matchable(want["events"])
    assert (batch.ts, batch.rank, batch.seq) == (want["ts"], want["dp_rank"], int(line["seq_hex"], 16))
    assert len(batch.events) == len(views)
    assert batch.skipped == len(want["events"]) - len(views)
    for event, view in zip(batch.events, views, strict=True):
        check_event(event, view)


HINTS = {
    "v0130-lora-id": ("lora-id:7", None, ()),
    "v0141-lora-name": ("sql-adapter", None, ()),
    "v0191-extra-mm-offset": (None, None, (b"imgsha",)),
    "v0191-extra-salt-lora": ("ad", "tenant-7", ()),
    "v0320-typical": (None, None, ()),
    "v0320-lora-salt-mm": ("ad", "salt-x", (b"img",)),
    "v0320-embeds": (
        None,
        None,
        (b"\0embeds:" + bytes.fromhex("e251a7a05ee81b84b1c839e4218ed473cb50870e5754336f07502e1afcc34b49"),),
    ),
}


@pytest.mark.parametrize(
    "line", [line for line in lines("vllm_kv_events.jsonl") if line["id"] in HINTS], ids=lambda line: line["id"]
)
def test_namespaces_are_read_from_the_keys_beside_the_tokens(line: dict) -> None:
    """FC-18: adapter, image and salt, each in its own field."""
    hints = [event.namespace_hint for event in read(line).events if isinstance(event, Stored)]
    assert [(hint.adapter, hint.salt, hint.media) for hint in hints] == [HINTS[line["id"]]]


@pytest.mark.parametrize("line", lines("replay_transcripts.jsonl"), ids=lambda line: line["id"])
def test_replay_dialogues_of_real_publishers_are_understood(line: dict) -> None:
    """FC-01: with and without a topic frame, up to either form of the end mark."""
    replies = [parse_reply([bytes.fromhex(frame) for frame in frames]) for frames in line["response_frames_dealer"]]
    start = int(line["request_frames_dealer"][1], 16)
    live = [Frames(int(seq, 16), bytes.fromhex(payload)) for _, seq, payload in line["live_frames"]]
    buffered = live[-line["buffer_steps"] :]
    assert replies == [*(frames for frames in buffered if frames.seq >= start), None]
