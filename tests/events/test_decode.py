"""Shapes the recorded messages do not have: mixed encodings, broken ones, and what we write ourselves."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.decode import decode
from events.encode import encode
from events.errors import DecodeError
from events.types import EventsError
from radix.changes import Batch, Cleared, Event, NamespaceHint, Removed, Stored, Tier
from radix.index import Index
from tests.fakes.wire import CLEARED, as_array, batch, chain, removed, stored


def view_of(payload: bytes) -> bytes:
    """Digest of the view that one payload makes."""
    index = Index()
    holder = index.holder("r", 0)
    index.apply(holder, decode(payload, 0))
    return index.digest(holder)


def test_four_encodings_of_one_batch_make_one_view() -> None:
    """FC-06: arrays, maps, maps without optional keys, and the batch itself as a map; hashes as ints and as bytes."""
    ints = [stored([2**63 + 5, 7], None, range(8), 4), stored([9], 7, range(4), 4), removed(9)]
    wide = [(b"\xab" * 24) + value.to_bytes(8, "big") for value in (2**63 + 5, 7, 9)]
    as_bytes = [stored(wide[:2], None, range(8), 4), stored(wide[2:], wide[1], range(4), 4), removed(wide[2])]
    bare = [{name: value for name, value in event.items() if value is not None} for event in ints]
    signed = [stored([5 - 2**63, 7], None, range(8), 4), *ints[1:]]
    outer = msgspec.msgpack.encode({"ts": 1.5, "events": ints, "data_parallel_rank": 0})
    forms = [batch(*map(as_array, ints)), batch(*ints), batch(*bare), outer, batch(*as_bytes), batch(*signed)]
    assert len({view_of(form) for form in forms}) == 1
    assert view_of(forms[0]) != view_of(batch(*ints[:1], removed(7)))


def test_both_encodings_may_be_mixed_in_one_batch() -> None:
    """FC-06, edge case 1: the shape is looked at per event."""
    mixed = decode(batch(chain(1, 4), as_array(chain(1, 4, first=1)), as_array(CLEARED), removed(1)), 3)
    assert [type(event) for event in mixed.events] == [Stored, Stored, Cleared, Removed]


def test_what_is_unknown_is_skipped_and_counted() -> None:
    """FC-07: tags, fields, longer arrays, events that are no events, malformed known ones; the rest is applied."""
    strange: list[object] = [
        {"type": "BlockPinned", "x": 1},
        ["BlockPinned", 1],
        {"no_type": 1},
        [],
        17,
        None,
        stored(["text"], None, range(4), 4),
        stored([1], None, [[1, 2], [9, 3]], 2),  # type: ignore[list-item]
        stored([1], None, [[1, 2], 3], 2),  # type: ignore[list-item]
        stored([1], None, [[2**40, 2**40]], 1),  # type: ignore[list-item]
        stored([1], None, [1.5, None], 2),  # type: ignore[list-item]
        stored([1], None, range(4), -4),
        stored([1], None, range(4), 2**40),
        stored([1], None, range(4), 4, group_idx="0"),
        stored([1], None, range(4), 4, mm_keys=[7]),
        stored([1], None, range(4), 4, extra_keys=[["a", {"b": 1}]]),
        stored([True], None, range(4), 4),
        stored([1], None, range(4), "4"),  # type: ignore[arg-type]
        removed(1, medium=5),
        {"type": "BlockRemoved"},
        ["BlockStored", [1]],
    ]
    good = chain(1, 4) | {"colour": "red"}
    longer = [*as_array(chain(1, 4, first=1)), "full_attention", 1024, "later", {"even": "later"}]
    decoded = decode(batch(good, *strange, longer), 0)
    assert [event.hashes for event in decoded.events if isinstance(event, Stored)] == [(1,), (2,)]
    assert decoded.skipped == len(strange)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x01", batch()[:5], b"\x91\x00", b"\x92\x00\x00", b"\x80", b"\x91" * 5000])
def test_a_payload_that_is_no_batch_is_refused(payload: bytes) -> None:
    """FC-07: the error says which batch."""
    with pytest.raises(DecodeError, match="batch 12"):
        decode(payload, 12)


@given(st.data())
def test_no_bytes_make_the_decoder_fail_otherwise(data: st.DataObject) -> None:
    """FC-07: random bytes and mutated messages decode or raise DecodeError."""
    good = batch(stored([1, b"x" * 32], 5, range(8), 4, extra_keys=[["a", ["img", 1], "s"], None]), removed(3), CLEARED)
    payload = bytearray(data.draw(st.one_of(st.just(good), st.binary(max_size=60))))
    for _ in range(data.draw(st.integers(0, 4))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    index = Index()
    holder = index.holder("r", 0)
    try:
        decoded = decode(bytes(payload), 0)
    except DecodeError:
        return
    index.apply(holder, decoded)


def test_a_new_image_starts_a_run_of_its_own() -> None:
    """FC-18: blocks before the image stay with the text; the image's own and later ones are told apart from it."""
    keys = [None, None, [["img", 2]], [["img", -2]], None, [["img2", 0]]]
    events = decode(batch(stored(range(1, 7), None, range(24), 4, extra_keys=keys)), 0).events
    runs = [
        (event.hashes, event.parent, event.namespace_hint.media, event.tokens.tolist())
        for event in events
        if isinstance(event, Stored)
    ]
    assert runs == [
        ((1, 2), None, (), list(range(8))),
        ((3, 4, 5), 2, (b"img",), list(range(8, 20))),
        ((6,), 5, (b"img2",), list(range(20, 24))),
    ]


def test_masked_blocks_with_images_stay_one_unplaceable_event() -> None:
    """FC-18: cut at the image, the first part would look aligned though its tokens are not its hashes'."""
    keys = [None, [["img", 0]]]
    events = decode(batch(stored([1, 2], None, range(16), 4, extra_keys=keys)), 0).events
    assert [event.hashes for event in events if isinstance(event, Stored)] == [(1, 2)]
    index = Index()
    applied = index.apply(index.holder("r", 0), Batch(0, 0, 0.0, events))
    assert (applied.stored, applied.skipped) == (0, 1)


def test_an_adapter_and_a_salt_of_one_name_are_told_apart() -> None:
    """FC-19: the first bare string is the adapter's only where the event names that adapter."""
    salted = decode(batch(stored([1], None, range(4), 4, extra_keys=[["k"]])), 0).events[0]
    adapted = decode(batch(stored([1], None, range(4), 4, lora_name="k", extra_keys=[["k"]])), 0).events[0]
    both = decode(batch(stored([1], None, range(4), 4, lora_name="k", extra_keys=[["k", "k"]])), 0).events[0]
    assert isinstance(salted, Stored) and isinstance(adapted, Stored) and isinstance(both, Stored)
    assert salted.namespace_hint == NamespaceHint(salt="k")
    assert adapted.namespace_hint == NamespaceHint(adapter="k")
    assert both.namespace_hint == NamespaceHint(adapter="k", salt="k")


@pytest.mark.parametrize("ts", [float("nan"), float("inf"), None, "now", [1]])
def test_a_time_that_is_none_reads_as_unknown(ts: object) -> None:
    """FC-07: the batch is read all the same."""
    payload = msgspec.msgpack.encode([ts, [removed(1)], 0])
    assert decode(payload, 0) == Batch(0, 0, 0.0, (Removed((1,)),))


@pytest.mark.parametrize(
    ("medium", "tier"),
    [("", Tier.DEVICE), ("Gpu", Tier.DEVICE), ("CPU_TIER1", Tier.HOST), ("nvme", Tier.DISK), ("Remote", Tier.SHARED)],
)
def test_media_are_compared_without_regard_to_case(medium: str, tier: Tier) -> None:
    """Edge case 18: several names for one tier."""
    (event,) = decode(batch(removed(1, medium=medium)), 0).events
    assert event == Removed((1,), tier)


names = st.one_of(st.none(), st.sampled_from(["k", "kk", "tenant"]))
hashes = st.integers(0, 2**64 - 1)


@st.composite
def stores(draw: st.DrawFn) -> Stored:
    count, size = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    parent = draw(st.one_of(st.none(), hashes))
    media = tuple(draw(st.lists(st.sampled_from([b"k", b"img"]), unique=True, max_size=2)))
    hint = NamespaceHint(draw(names), draw(names) if parent is None else None, media)
    tokens = np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=count * size, max_size=count * size)), np.int32)
    ids = tuple(draw(st.lists(hashes, min_size=count, max_size=count)))
    return Stored(ids, parent, tokens, size, hint, draw(st.sampled_from(Tier)), draw(st.integers(0, 3)))


removals = st.builds(Removed, st.lists(hashes, max_size=4).map(tuple), st.sampled_from(Tier), st.integers(0, 3))


def comparable(event: Event) -> object:
    if isinstance(event, Stored):
        return (
            event.hashes,
            event.parent,
            event.tokens.tolist(),
            event.block_tokens,
            event.namespace_hint,
            event.tier,
            event.group,
        )
    return event


@given(st.lists(st.one_of(stores(), removals, st.just(Cleared())), max_size=5), st.integers(0, 7))
def test_what_we_write_reads_back(events: list[Event], rank: int) -> None:
    """FC-19: adapter, salt and image strings drawn from one alphabet never change places."""
    decoded = decode(encode(events, ts=12.5, rank=rank), 4)
    assert [comparable(event) for event in decoded.events] == [comparable(event) for event in events]
    assert decoded == Batch(rank, 4, 12.5, decoded.events)


def test_our_form_is_the_engine_s_map_form() -> None:
    event = Stored((1, 2), None, np.arange(8, dtype=np.int32), 4, NamespaceHint("ad", "salt"))
    fields = msgspec.msgpack.decode(encode([event], ts=1.0, rank=2))
    body = {"block_hashes": [1, 2], "parent_block_hash": None, "token_ids": list(range(8)), "block_size": 4}
    body |= {"lora_id": None, "medium": "GPU", "lora_name": "ad", "extra_keys": [["ad", "salt"], ["ad"]]}
    assert fields == [1.0, [{"type": "BlockStored"} | body], 2]
    plain = msgspec.msgpack.decode(encode([Removed((1,)), Cleared()], ts=1.0, rank=0))
    assert plain[1] == [{"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}, {"type": "AllBlocksCleared"}]


def test_a_hash_beyond_64_bits_cannot_be_written() -> None:
    with pytest.raises(EventsError, match="cannot be encoded"):
        encode([Removed((2**64,))], ts=0.0, rank=0)
