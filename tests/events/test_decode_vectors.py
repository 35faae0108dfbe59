"""Messages of three engines, 25 versions of two of them, against their expected reading."""

from __future__ import annotations

import json

import pytest

from events.decode import decode, read
from events.decode.announced import Announced, Message
from events.decode.polled import PolledReader
from events.replay import Frames, parse_reply
from events.show import row_of
from radix.changes import Batch, Cleared, GroupKind, Removed, Stored, Tier
from tests.events.recorded import RECORDED, expected, lines, polled

TIERS = {None: Tier.DEVICE, "GPU": Tier.DEVICE, "CPU": Tier.HOST, "cpu": Tier.HOST, "CPU_PINNED": Tier.HOST}
TIERS |= {"STORAGE": Tier.DISK, "FS": Tier.DISK, "DISK": Tier.DISK, "EXTERNAL": Tier.SHARED, "OBJ": Tier.SHARED}


def message(line: dict) -> Message:
    return read(bytes.fromhex(line["payload_hex"]), int(line["seq_hex"], 16))


def changes(line: dict) -> Batch:
    return decode(bytes.fromhex(line["payload_hex"]), int(line["seq_hex"], 16))


def check_event(event: Announced | Removed | Cleared, view: dict) -> None:
    match event:
        case Announced():
            assert view["type"] == "BlockStored"
            assert (None if event.parent is None else f"{event.parent:016x}") == view["_parent64"]
            assert event.tokens == view["token_ids"]
            assert event.block_tokens == view["block_size"]
            assert (event.kind is GroupKind.UNSTATED) == (view.get("kv_cache_spec_kind") is None)
            assert event.window_tokens == (view.get("kv_cache_spec_sliding_window") or 0)
        case Removed():
            assert view["type"] == "BlockRemoved"
        case Cleared():
            assert view["type"] == "AllBlocksCleared"
            return
    assert [f"{value:016x}" for value in event.hashes] == view["_hash64"]
    assert event.tier is TIERS[view.get("medium")]
    assert event.group == (view.get("group_idx") or 0)


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: line["id"])
def test_every_recorded_message_reads_as_it_should(line: dict) -> None:
    """FC-06, edge cases 1, 2, 13, 14: arrays and maps, two to three batch elements, signed and unsigned ints and bytes."""
    read_message = message(line)
    want = expected(line)
    assert (read_message.ts, read_message.rank, read_message.seq) == (want["ts"], want["dp_rank"], int(line["seq_hex"], 16))
    assert read_message.skipped == 0
    for event, view in zip(read_message.events, want["events"], strict=True):
        check_event(event, view)
    assert changes(line).skipped == 0


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: line["id"])
def test_the_printed_form_says_the_same(line: dict) -> None:
    """Edge case 31: tokens are null where the engine sends pairs or strings."""
    row = row_of(message(line))
    views = expected(line)["events"]
    names = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
    assert [event["type"] for event in row["events"]] == [names[view["type"]] for view in views]  # type: ignore[attr-defined]
    for event, view in zip(row["events"], views, strict=True):  # type: ignore[call-overload]
        assert event["hashes"] == view.get("_hash64", [])
        if view["type"] != "BlockStored":
            continue
        plain = all(isinstance(token, int) for token in view["token_ids"])
        assert event["tokens"] == (view["token_ids"] if plain else None)
        assert (event["parent"], event["adapter"]) == (view["_parent64"], view.get("lora_name"))
    assert json.loads(json.dumps(row)) == row


def stores(line: dict) -> list[Stored]:
    return [event for event in changes(line).events if isinstance(event, Stored)]


def recorded(name: str) -> dict:
    return next(line for line in RECORDED if line["id"] == name)


def test_pages_of_pairs_are_shifted_behind_their_first_token() -> None:
    """Edge case 31: four pairs cover the tokens 1 to 5."""
    (event,) = stores(recorded("s0523-bigram"))
    assert (event.lead, event.tokens.tolist(), event.block_tokens) == ((1,), [2, 3, 4, 5], 4)


def test_blocks_hashed_with_what_follows_are_shifted_too() -> None:
    """A block is another one when other tokens follow it."""
    (event,) = stores(recorded("v0330-lookahead"))
    assert (event.lead, event.tokens.tolist()) == ((0,), list(range(1, 33)))


def test_tokens_of_an_image_match_no_prompt() -> None:
    """Edge cases 29, 31: a string among the ids stands for an image, which has a key of its own beside it."""
    (event,) = stores(recorded("t-native-mm"))
    assert event.namespace_hint.media == (b"ab" * 32, b"\0opaque")
    assert event.tokens[:31].tolist() == list(range(31))
    first, second = stores(recorded("t-dynamo-republish"))
    assert (first.namespace_hint.media, first.namespace_hint.salt) == ((), "t1")
    assert (second.hashes, second.parent, second.namespace_hint.media) == ((8,), 7, (b"12345",))


def test_a_polled_answer_reads_as_its_note_says() -> None:
    """The largest window only, no partial blocks, a change of level moves the block, a missing number clears first."""
    (answer,) = PolledReader().read(polled())
    block = 17975942397110281216
    assert [type(event) for event in answer.events] == [Announced, Announced, Removed, Cleared, Removed]
    stored, host, left, _, removed = answer.events
    assert isinstance(stored, Announced) and isinstance(host, Announced)
    assert (stored.hashes, stored.parent, stored.tokens, stored.tier) == ((block,), None, [0, 1, 2, 3], Tier.DEVICE)
    assert (host.hashes, host.tokens, host.tier) == ((block,), [], Tier.HOST)
    assert (left, removed) == (Removed((block,), Tier.DEVICE), Removed((block,), Tier.DEVICE))
    assert (answer.rank, answer.seq, answer.skipped) == (0, 8, 0)


HINTS = {
    "v0130-lora-id": ("lora-id:7", None, ()),
    "v0141-lora-name": ("sql-adapter", None, ()),
    "v0191-extra-mm-offset": (None, None, (b"imgsha",)),
    "v0191-extra-salt-lora": ("ad", "tenant-7", ()),
    "v0320-typical": (None, None, ()),
    "s0518-salt-metadata": (None, "tenant-1", ()),
    "s0523-dynamo-format": ("ad-2", "t", ()),
    "v0320-lora-salt-mm": ("ad", "salt-x", (b"img",)),
    "v0320-embeds": (
        None,
        None,
        (b"\0embeds:" + bytes.fromhex("e251a7a05ee81b84b1c839e4218ed473cb50870e5754336f07502e1afcc34b49"),),
    ),
}


@pytest.mark.parametrize("line", [line for line in RECORDED if line["id"] in HINTS], ids=lambda line: line["id"])
def test_namespaces_are_read_from_the_keys_beside_the_tokens(line: dict) -> None:
    """FC-18: adapter, image and salt, each in its own field."""
    hints = [event.namespace_hint for event in stores(line)]
    assert [(hint.adapter, hint.salt, hint.media) for hint in hints] == [HINTS[line["id"]]]


@pytest.mark.parametrize("line", lines("replay_transcripts.jsonl"), ids=lambda line: line["id"])
def test_replay_dialogues_of_real_publishers_are_understood(line: dict) -> None:
    """FC-01: with and without a topic frame, up to either form of the end mark."""
    replies = [parse_reply([bytes.fromhex(frame) for frame in frames]) for frames in line["response_frames_dealer"]]
    start = int(line["request_frames_dealer"][1], 16)
    live = [Frames(int(seq, 16), bytes.fromhex(payload)) for _, seq, payload in line["live_frames"]]
    buffered = live[-line["buffer_steps"] :]
    assert replies == [*(frames for frames in buffered if frames.seq >= start), None]
