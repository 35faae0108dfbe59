"""What a relay writes is read as it was meant, from the start and from any place in the middle; anything else is refused."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.errors import RelayDataError
from events.relay.entries import Decoder, Encoder, unpack_entry
from events.relay.frame import ENTRY, SNAPSHOT, Frame, unpack
from events.relay.held import Held
from events.relay.ops import Op
from events.relay.snapshot import pack_snapshot, unpack_snapshot
from events.relay.wire import Reader, put_int, put_uint
from events.types import Freshness
from radix.changes import Batch, Cleared, Event, Removed, Stored, as_tokens
from tests.events.relay.drawn import ANY, batches

EPOCH = b"an epoch"
OPS: st.SearchStrategy[Op] = st.one_of(batches(ANY), batches(ANY), st.sampled_from(list(Freshness)))


def same(one: Op | Event, other: Op | Event) -> bool:
    """Equal, arrays of tokens and times within a microsecond included."""
    if isinstance(one, Batch) and isinstance(other, Batch):
        heads = [(batch.seq, batch.skipped, len(batch.events)) for batch in (one, other)]
        events = zip(one.events, other.events, strict=True)
        return heads[0] == heads[1] and abs(one.ts - other.ts) < 2e-6 and all(same(*pair) for pair in events)
    if isinstance(one, Stored) and isinstance(other, Stored):
        names = [name for name in Stored.__slots__ if name != "tokens"]
        return all(getattr(one, name) == getattr(other, name) for name in names) and np.array_equal(one.tokens, other.tokens)
    return one == other


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(OPS, min_size=1, max_size=4), max_size=8))
def test_entries_say_what_was_written(entries: list[list[Op]]) -> None:
    writer = Encoder(EPOCH)
    reader = Decoder(EPOCH, writer.state())
    for ops in entries:
        read = reader.read(unpack_entry(writer.entry(ops)))
        assert len(read) == len(ops)
        assert all(map(same, read, ops))


@settings(max_examples=40, deadline=None)
@given(st.lists(batches(ANY), min_size=1, max_size=12), st.data())
def test_a_reader_that_joins_at_a_snapshot_reads_on_as_the_others_do(sent: list[Batch], data: st.DataObject) -> None:
    joins_at = data.draw(st.integers(0, len(sent) - 1))
    writer, held = Encoder(EPOCH), Held()
    for batch in sent[:joins_at]:
        held.apply(batch)
        writer.entry([batch])
    packed = pack_snapshot(EPOCH, Freshness.PARTIAL, False, held.inventory(), writer.state())
    snapshot = unpack_snapshot(packed)
    assert (snapshot.epoch, snapshot.freshness, snapshot.counting) == (EPOCH, Freshness.PARTIAL, False)
    reader = Decoder(snapshot.epoch, snapshot.codec)
    for batch in sent[joins_at:]:
        (read,) = reader.read(unpack_entry(writer.entry([batch])))
        assert same(read, batch)


def test_a_block_that_was_named_costs_a_byte_and_what_was_said_costs_little() -> None:
    rng = random.Random(5)
    tokens = as_tokens([rng.randrange(50_000) for _ in range(64 * 16)])
    hashes = tuple(rng.randrange(2**64) for _ in range(64))
    writer = Encoder(EPOCH)
    first = writer.entry([Batch(None, 0, 1e9, (Stored(hashes, None, tokens, 16),))])
    assert 64 * 8 + 64 * 16 * 2 * 0.95 < len(first) < 64 * 8 + 64 * 16 * 2 + 64
    assert len(writer.entry([Batch(None, 1, 1e9, (Removed(hashes[::-1]),))])) < 64
    again = writer.entry([Batch(None, 2, 1e9, (Stored(hashes, None, tokens, 16),))])
    assert len(again) < 64 * 8 + 100  # the tokens were said before


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_nobody_wrote_are_refused(data: bytes) -> None:
    for read in (unpack_entry, unpack_snapshot):
        with pytest.raises(RelayDataError):
            read(data)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=120), st.binary(max_size=64).map(lambda some: some[: len(some) // 8 * 8]))
def test_well_packed_nonsense_is_refused_or_means_something_and_never_crashes(body: bytes, hashes: bytes) -> None:
    packed = zlib.compressobj(6, zlib.DEFLATED, -15)
    content = packed.compress(body)
    entry = content + packed.copy().flush(zlib.Z_SYNC_FLUSH)[:-4]
    whole = content + packed.flush()
    readers = (
        lambda: Decoder(EPOCH, Encoder(EPOCH).state()).read(unpack_entry(Frame(ENTRY, EPOCH, 0, hashes, entry).pack())),
        lambda: unpack_snapshot(Frame(SNAPSHOT, EPOCH, 0, hashes, whole).pack()),
    )
    for read in readers:
        try:
            read()
        except RelayDataError:
            pass


@pytest.mark.parametrize("kind", ["entry", "snapshot"])
def test_any_flipped_bit_or_missing_end_is_noticed(kind: str) -> None:
    writer, held = Encoder(EPOCH), Held()
    batch = Batch(None, 3, 1.5, (Stored((1, 2), None, as_tokens(range(8)), 4), Cleared(), Stored((5,), 4, as_tokens([1] * 4), 4)))
    held.apply(batch)
    data = writer.entry([batch, Freshness.LIVE])
    read = unpack_entry
    if kind == "snapshot":
        data = pack_snapshot(EPOCH, Freshness.LIVE, True, held.inventory(), writer.state())
        read = unpack_snapshot  # type: ignore[assignment]
    read(data)
    for at in range(len(data) * 8):
        broken = bytearray(data)
        broken[at // 8] ^= 1 << at % 8
        with pytest.raises(RelayDataError):
            read(bytes(broken))
    for end in range(len(data)):
        with pytest.raises(RelayDataError):
            read(data[:end])


def test_an_entry_out_of_its_turn_is_refused() -> None:
    writer = Encoder(EPOCH)
    state = writer.state()
    first, second = writer.entry([Freshness.LIVE]), writer.entry([Freshness.GAP])
    with pytest.raises(RelayDataError, match="is not behind"):
        Decoder(EPOCH, state).read(unpack_entry(second))
    with pytest.raises(RelayDataError, match="is not behind"):
        Decoder(b"another!", state).read(unpack_entry(first))


def test_an_entry_is_not_a_snapshot() -> None:
    with pytest.raises(RelayDataError, match="want 0x12"):
        unpack(Encoder(EPOCH).entry([Freshness.LIVE]), SNAPSHOT)


def test_a_small_entry_that_opens_into_a_huge_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("events.relay.entries.MAX_ENTRY_BYTES", 1000)
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflate.compress(bytes(100_000)) + deflate.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(RelayDataError, match="more than 1000"):
        Decoder(EPOCH, Encoder(EPOCH).state()).read(Frame(ENTRY, EPOCH, 0, b"", bomb))


@given(st.lists(st.integers(-(2**66), 2**66)))
def test_numbers_of_either_sign_come_back(numbers: list[int]) -> None:
    out = bytearray()
    for number in numbers:
        put_int(out, number)
        put_uint(out, abs(number))
    reader = Reader(bytes(out))
    assert [(reader.signed(), reader.uint()) for _ in numbers] == [(number, abs(number)) for number in numbers]
    assert not reader.left
