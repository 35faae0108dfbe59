"""Bytes given to the compiled index leave what the decoder and the plain index leave, counts and guesses included."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np
import pytest

from events.decode import decode
from events.errors import DecodeError
from radix import Batch, Index, Namespace
from radix.changes import Heard
from tests.events.recorded import RECORDED
from tests.fakes.wire import removed, stored
from tests.radix.core.engine_streams import FORMS, Stream
from tests.radix.shape import check_shape
from tests.radix.trees import new_index

pytestmark = pytest.mark.xdist_group("compiled")
T = TypeVar("T")
MODEL = Namespace("m")


def read(place: int, payload: bytes) -> Batch:
    return decode(payload, place)


class Pair:
    """The same holder in two indexes; one takes bytes."""

    def __init__(self, *, counting: bool = True) -> None:
        self.flat, self.plain = new_index("flat"), Index()
        self.holder = self.each(lambda index: index.holder("r", 0, model="m", counting=counting))

    def each(self, action: Callable[[Index], T]) -> T:
        ours, theirs = action(self.flat), action(self.plain)
        assert ours == theirs
        return ours

    def take(self, *payloads: bytes) -> Heard:
        """Some payloads that come together, up to one that cannot be decoded: a stream drops its view then."""
        ours, theirs = self._taken(self.flat, payloads), self._taken(self.plain, payloads)
        assert ours.batches == theirs.batches
        if len(ours.batches) == len(payloads):
            assert ours == theirs
        else:
            with pytest.raises(DecodeError):
                read(0, payloads[len(ours.batches)])
            self.flat.clear(self.holder)
            self.plain.clear(self.holder)
        return ours

    def _taken(self, index: Index, payloads: tuple[bytes, ...]) -> Heard:
        """In as many calls as it takes."""
        total = Heard()
        while len(total.batches) < len(payloads):
            heard = Heard()
            try:
                index.apply_payloads(self.holder, payloads[len(total.batches) :], read, heard)
            except DecodeError:
                total.batches += heard.batches
                break
            assert heard.batches, "no call is in vain"
            total.events += heard.events
            total.batches += heard.batches
            for name in ("stored", "removed", "orphans", "unknown", "skipped"):
                setattr(total.applied, name, getattr(total.applied, name) + getattr(heard.applied, name))
        return total

    def compare(self) -> None:
        self.each(lambda index: index.digest(self.holder))
        stats = self.each(lambda index: (index.stats().blocks, index.stats().orphans, index.stats().loose))
        check_shape(self.flat)
        assert stats[0] >= 0


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: line["id"])
def test_every_recorded_message_leaves_the_same(line: dict) -> None:
    """FC-06: whatever of it the scanner takes."""
    pair = Pair(counting=line["id"].startswith("v"))
    for _ in range(2):
        pair.take(bytes.fromhex(line["payload_hex"]))
        pair.compare()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counting", [True, False])
def test_random_streams_leave_the_same(form: str, counting: bool) -> None:
    for seed in range(3):
        chance = random.Random(f"{form} {counting} {seed}")
        pair, stream = Pair(counting=counting), Stream(chance, form, counting=counting)
        for step in range(40):
            payloads = [stream.payload() for _ in range(chance.choice((1, 1, 3, 8)))]
            assert len(pair.take(*payloads).batches) == len(payloads)
            if step % 9 == 0:
                pair.compare()
        pair.compare()


def test_a_stream_that_is_no_longer_plain_goes_on_event_by_event() -> None:
    """Edge cases 19, 23: blocks that wait, and blocks without a place, in the middle of a payload."""
    pair = Pair()
    first = stored([1], None, range(16), 16)
    orphan = stored([9], 8, range(16), 16)
    more = [stored([2], 1, range(16, 32), 16), orphan, stored([3], 2, range(32, 48), 16), removed(2)]
    heard = pair.take(*(msgspec.msgpack.encode(message) for message in ([1.0, [first]], [2.0, more, 5], [2.5, []])))
    assert (heard.applied.stored, heard.applied.orphans, heard.applied.removed) == (3, 1, 1)
    assert (heard.events, heard.batches) == (5, [(1.0, None), (2.0, 5), (2.5, None)])
    pair.compare()
    pair.take(msgspec.msgpack.encode([3.0, [stored([8], 1, range(90, 106), 16)]]))
    assert pair.flat.stats().orphans == 0
    pair.compare()


@pytest.mark.parametrize("broken", [b"\xc1", msgspec.msgpack.encode([3.0, [stored([3], 2, range(32, 48), 16)]])[:-5]])
def test_of_payloads_that_come_together_those_before_one_that_is_broken_are_told(broken: bytes) -> None:
    """FC-07: the one that failed is known, and none behind it was touched."""
    pair = Pair()
    good = [msgspec.msgpack.encode([float(n), [stored([n], n - 1 or None, range(16 * n, 16 * n + 16), 16)]]) for n in range(1, 6)]
    pair.take(good[0])
    heard = Heard()
    with pytest.raises(DecodeError):
        pair.flat.apply_payloads(pair.holder, [good[1], broken, good[3], good[4]], read, heard)
    assert heard.batches == [(2.0, None)]
    assert {block.hash for block in pair.flat.dump(pair.holder)} <= {1, 2, 3}


def test_a_scanned_store_ends_the_guess_it_fulfils() -> None:
    """FC-28: what was guessed and is stored and removed again is believed to be gone."""
    pair = Pair()
    pair.take(msgspec.msgpack.encode([1.0, [stored([7], None, range(500, 516), 16)]]))
    prompt = np.arange(40, dtype=np.int32)
    pair.each(lambda index: int(index.guess(pair.holder, MODEL, prompt, 1e9)))
    depths = lambda: pair.each(lambda index: index.match(MODEL, prompt).tokens(pair.holder))  # noqa: E731
    assert depths() == 32
    pair.take(msgspec.msgpack.encode([2.0, [stored([1, 2], None, range(32), 16)]]))
    assert pair.each(lambda index: index.stats().guesses) == 0
    pair.take(msgspec.msgpack.encode([3.0, [removed(2)]]))
    assert depths() == 16


def test_many_roots_of_a_scanned_view_leave_nothing_behind() -> None:
    """FC-14: a root goes with its last block, and comes back with the next one."""
    pair = Pair()
    for _ in range(3):
        pair.take(msgspec.msgpack.encode([1.0, [stored([1], None, range(16), 16)]]))
        pair.take(msgspec.msgpack.encode([1.0, [removed(1)]]))
        pair.compare()
        assert pair.flat.stats().nodes == 0
