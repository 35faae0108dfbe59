"""Payloads nobody should send: they are refused or skipped, counted, and change nothing else."""

from __future__ import annotations

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.decode import decode, read
from events.decode.engine_wire import MAX_PAYLOAD_BYTES
from events.decode.polled import PolledReader
from events.errors import DecodeError
from events.show import row_of, text_of
from radix import Index
from radix.changes import Stored
from tests.events.recorded import RECORDED, polled
from tests.fakes.wire import batch, stored

GOOD = [bytes.fromhex(line["payload_hex"]) for line in RECORDED]

numbers = st.one_of(st.integers(-(2**63), 2**64 - 1), st.sampled_from([0, 1, 4, -1, 2**31, 2**63]))
words = st.sampled_from(["", "a", "GPU", "cpu", "mamba", "BlockStored", "type", "\0"])
leaves = st.one_of(st.none(), st.booleans(), numbers, st.floats(), words, st.binary(max_size=9))
values = st.recursive(leaves, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=3)))
FIELDS = [
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"),
    *("group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "cache_salt", "lookahead_token_ids", "mm_keys"),
    "block_mm_infos",
]


def apply(payload: bytes) -> None:
    """Everything that a message goes through."""
    message = read(payload, 0)
    json.dumps(row_of(message))
    text_of(message)
    index = Index()
    holder = index.holder("r", 0)
    index.apply(holder, message.batch())
    index.digest(holder)


@settings(max_examples=250, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
def test_a_store_may_hold_anything_in_any_field(fields: dict[str, object]) -> None:
    """FC-07, edge cases 31, 34: whatever a field holds, the event is applied or skipped, and its neighbours are applied."""
    strange = stored([1, 2], None, range(8), 4) | fields
    payload = batch(stored([11], None, range(4), 4), strange, stored([12], 11, range(4), 4))
    events = decode(payload, 0).events
    assert [event.hashes for event in (events[0], events[-1]) if isinstance(event, Stored)] == [(11,), (12,)]
    apply(payload)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_real_messages_with_broken_bytes_are_refused_or_read(data: st.DataObject) -> None:
    """FC-07, edge case 35: cut short, overwritten, spliced; nothing but DecodeError comes out."""
    payload = bytearray(data.draw(st.sampled_from(GOOD)))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(payload)))
        payload[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        apply(bytes(payload))
    except DecodeError:
        pass


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.binary(max_size=40), st.lists(values, max_size=3).map(msgspec.json.encode), st.integers(0, 3000)))
def test_polled_answers_may_hold_anything(answer: bytes | int) -> None:
    """FC-07: also a real one that was cut off."""
    reader = PolledReader()
    try:
        messages = reader.read(answer if isinstance(answer, bytes) else polled()[:answer])
    except DecodeError:
        return
    for message in messages:
        message.batch()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["event_id", "window_size", "attention_dp_rank"]), values), max_size=4)
)
def test_polled_events_may_hold_anything_in_any_field(changes: list[tuple[int, str, object]]) -> None:
    """FC-07: events that cannot be read are counted."""
    answer = json.loads(polled())
    for place, name, value in changes:
        answer["events"][place][name] = value
    for message in PolledReader().read(msgspec.json.encode(answer)):
        message.batch()


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["type", "blocks", "parent_hash", "block_hash", "block_hashes", "cache_level"]), values))
def test_polled_data_may_hold_anything(data: dict[str, object]) -> None:
    """FC-07: the event before it is read."""
    events = [json.loads(polled())["events"][2], {"event_id": 3, "window_size": 4096, "data": data}]
    (message,) = PolledReader().read(msgspec.json.encode(events))
    assert message.events
    message.batch()


@pytest.mark.parametrize(
    "payload",
    [
        b"\x92\x00\xdd\xff\xff\xff\xff\x01",  # four billion events announced
        b"\x92\x00\x91\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 1_000_000,
        b"\x92\x00\x91\x81\x80\x02",  # a map as a key
        b"\xdb\xff\xff\xff\xff" * 1000,
        bytes(MAX_PAYLOAD_BYTES + 1),
    ],
    ids=["events", "fields", "bytes", "depth", "key", "text", "size"],
)
def test_lengths_and_depths_cost_nothing(payload: bytes) -> None:
    """FC-07: no memory is reserved for what is only announced."""
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="batch 3 "):
            decode(payload, 3)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
