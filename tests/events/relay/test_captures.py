"""What a relay makes of the events of real engines: how few bytes, and that nothing is lost."""

from __future__ import annotations

import pytest

from events.decode import decode
from events.relay.entries import Decoder, Encoder, unpack_entry
from events.relay.held import Held
from events.relay.snapshot import pack_snapshot, unpack_snapshot
from events.types import Freshness
from radix import Index
from radix.changes import Batch
from tests.events.relay.recorded import CAPTURES, messages

EPOCH = b"an epoch"


def epochs(capture: str) -> list[list[Batch]]:
    """Its batches, a list for each life of the engine."""
    lives: list[list[Batch]] = [[]]
    for message in messages(capture):
        if lives[-1] and message.seq < lives[-1][-1].seq:
            lives.append([])
        lives[-1].append(decode(message.payload, message.seq))
    return lives


@pytest.mark.parametrize("together", [1, 16])
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_relay_sends_less_than_six_tenths_of_what_the_engine_sent(capture: str, together: int) -> None:
    """With every engine's hash in full once, and also when each batch is an entry of its own."""
    sent = 0
    for life in epochs(capture):
        encoder = Encoder(EPOCH)
        sent += len(encoder.entry([Freshness.LIVE]))
        sent += sum(len(encoder.entry(life[at : at + together])) for at in range(0, len(life), together))
    assert sent <= 0.35 * sum(len(message.payload) for message in messages(capture))


@pytest.mark.parametrize("capture", CAPTURES)
def test_views_by_relay_equal_direct_ones_all_along(capture: str) -> None:
    """FC-09, FC-12: digests are equal after each batch, for who follows and for who joins by a snapshot just taken."""
    for life in epochs(capture):
        index = Index()
        direct, followed, joined = (index.holder(name, 0) for name in ("direct", "followed", "joined"))
        encoder, held = Encoder(EPOCH), Held()
        decoder = Decoder(EPOCH, encoder.state())
        for number, batch in enumerate(life):
            index.apply(direct, batch)
            held.apply(batch)
            for op in decoder.read(unpack_entry(encoder.entry([batch]))):
                assert isinstance(op, Batch)
                index.apply(followed, op)
            if number % 20 == 0:
                snapshot = unpack_snapshot(pack_snapshot(EPOCH, Freshness.LIVE, True, held.inventory(), encoder.state()))
                index.clear(joined)
                index.apply(joined, Batch(None, 0, 0.0, tuple(snapshot.events)))
                decoder = Decoder(EPOCH, snapshot.codec)
                assert index.digest(direct) == index.digest(followed) == index.digest(joined)
        assert index.digest(direct) == index.digest(followed)
