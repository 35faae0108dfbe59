"""What the scanner of payloads promises beside equal views: what it tells, what it gives back, and its limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from events.decode import decode
from events.decode.engine_wire import MAX_PAYLOAD_BYTES
from events.errors import DecodeError
from radix.core import feed as desk
from radix.core.compiled import CompiledTree
from radix.errors import RadixError
from radix.ingest import Feed, Ingest, Run, Store, Taken
from tests.fakes.wire import CLEARED, as_array, batch, chain, removed, stored
from tests.radix.core.memory_check import check_memory

pytestmark = pytest.mark.xdist_group("jit")

GRAIN = 4


class Holder:
    """One holder of a small tree, with a ledger on device and host."""

    def __init__(self) -> None:
        self.tree = CompiledTree(huge_pages=False)
        self.root = self.tree.root(b"plain", GRAIN)
        self.ledgers = (self.tree.open(0, 0), self.tree.open(0, 1), -1, -1)
        self.feed = Feed(ledgers=self.ledgers, root=self.root, block_tokens=GRAIN)
        self.ingest = Ingest(self.tree)

    def start(self, *payloads: bytes) -> Run:
        """A run that has not begun."""
        return self.ingest.start(payloads)

    def take(self, *payloads: bytes) -> Taken:
        """All that is done in the first go, with a log."""
        return self.start(*payloads).go(self.feed, log=True)

    def hashes(self, tier: int = 0) -> set[int]:
        """What is held on a tier."""
        return {handle.hash for handle in self.tree.handles(self.ledgers[tier])}


@pytest.fixture
def holder() -> Holder:
    return Holder()


def encoded(events: Sequence[object], *more: object, ts: object = 1.0) -> bytes:
    return msgspec.msgpack.encode([ts, list(events), *more])


def test_what_was_done_is_told(holder: Holder) -> None:
    taken = holder.take(
        batch(chain(3, GRAIN), as_array(chain(2, GRAIN, first=3)), ts=2.5, rank=3),
        batch(removed(5), removed(4), removed(99), ts=3.5, rank=None),
        batch(stored([1], None, chain(1, GRAIN)["token_ids"], GRAIN, medium="CPU")),  # type: ignore[arg-type]
    )
    assert (taken.events, taken.stored, taken.removed, taken.unknown, taken.skipped) == (6, 6, 2, 1, 0)
    assert taken.batches == [(2.5, 3), (3.5, None), (1_767_225_600.25, 0)]
    assert taken.stores == [Store(holder.root, 0, 3), Store(holder.root, 3, 2), Store(holder.root, 0, 1)]
    assert taken.waiting is None
    assert (holder.hashes(), holder.hashes(1)) == ({1, 2, 3}, {1})


def test_a_hash_of_another_place_ends_its_store_and_is_counted(holder: Holder) -> None:
    """Edge case 15's weaker sister: the writer's rule is kept, blocks before it stay."""
    holder.take(batch(chain(2, GRAIN)))
    taken = holder.take(batch(stored([7, 2, 8], None, range(100, 112), GRAIN)))
    assert (taken.events, taken.stored, taken.skipped) == (1, 1, 1)
    assert holder.hashes() == {1, 2, 7}


ODD: dict[str, object] = {
    "clear": CLEARED,
    "unknown event": {"type": "BlockMoved"},
    "no type": {"block_hashes": [1]},
    "no event": 7,
    "empty event": [],
    "adapter at the root": chain(1, GRAIN) | {"lora_name": "ad"},
    "numbered adapter": chain(1, GRAIN) | {"lora_id": 0},
    "salt": chain(1, GRAIN) | {"cache_salt": "s"},
    "salt in an array": [*as_array(chain(1, GRAIN))[:7], {"cache_salt": "s"}],
    "extra keys": chain(1, GRAIN) | {"extra_keys": [["img"]]},
    "images": chain(1, GRAIN) | {"mm_keys": [[{"hash": "x"}]]},
    "lookahead": chain(1, GRAIN) | {"lookahead_token_ids": [[1]]},
    "a field to come": chain(1, GRAIN) | {"sharding": 1},
    "another group": chain(1, GRAIN) | {"group_idx": 1},
    "a kind not known of the group": chain(1, GRAIN) | {"kv_cache_spec_kind": "full_attention"},
    "a sparse kind": chain(1, GRAIN) | {"kv_cache_spec_kind": "mamba"},
    "another block size": chain(1, 8),
    "a block size that is not its tokens'": chain(1, GRAIN) | {"block_size": 8},
    "a block size of words": chain(1, GRAIN) | {"block_size": "4"},
    "half a block": chain(2, GRAIN) | {"block_hashes": [1]},
    "no hashes": chain(1, GRAIN) | {"block_hashes": []},
    "a placeholder": stored([1], None, [], 0),
    "a tier without ledger": chain(1, GRAIN) | {"medium": "DISK"},
    "an unknown medium": chain(1, GRAIN) | {"medium": "tape"},
    "an unknown parent": chain(1, GRAIN, first=70),
    "a hash twice": stored([1, 1], None, range(8), GRAIN),
    "a hash twice among many": stored([*range(40), 39], None, range(164), GRAIN),
    "its own parent": stored([8, 50], 50, range(8), GRAIN),
    "an empty hash": chain(1, GRAIN) | {"block_hashes": [b""]},
    "a truth for a hash": chain(1, GRAIN) | {"block_hashes": [True]},
    "a negative token": chain(1, GRAIN) | {"token_ids": [-1, 1, 2, 3]},
    "a large token": chain(1, GRAIN) | {"token_ids": [2**31, 1, 2, 3]},
    "a token of words": chain(1, GRAIN) | {"token_ids": ["a", 1, 2, 3]},
    "large tokens among many": stored(range(1, 9), None, [2**31] * 32, GRAIN),
    "huge tokens among many": stored(range(1, 9), None, [2**63] * 32, GRAIN),
    "a token of words among many": stored(range(1, 9), None, [*range(31), "a"], GRAIN),  # type: ignore[list-item]
    "a removal of no list": removed() | {"block_hashes": None},
    "a removal of another group": removed(50, group_idx=1),
    "an adapter beyond ASCII": chain(1, GRAIN) | {"lora_name": "\u00e9"},
}


@pytest.mark.parametrize("event", ODD.values(), ids=ODD)
def test_what_is_not_understood_comes_back_alone_and_changes_nothing(holder: Holder, event: object) -> None:
    """What stood before it is applied, what follows waits until it was dealt with."""
    holder.take(batch(stored([50], None, range(60, 64), GRAIN)))
    payload = batch(stored([10], None, range(4), GRAIN), event, stored([11], 10, range(4), GRAIN))
    run = holder.start(payload)
    first = run.go(holder.feed)
    assert (first.events, first.stored, first.batches) == (1, 1, [])
    assert holder.hashes() == {50, 10}
    assert first.waiting is not None
    waiting = msgspec.msgpack.decode(first.waiting)[1]
    assert waiting[0] == msgspec.msgpack.decode(payload)[1][1]
    then = run.go(holder.feed)
    if len(waiting) == 1:
        assert (then.events, then.stored, then.waiting) == (1, 1, None)
        assert then.batches == [(1_767_225_600.25, 0)]
        assert holder.hashes() == {50, 10, 11}
    else:  # where its end was not found
        assert (len(waiting), then.events, then.waiting) == (2, 0, None)


def test_a_field_that_comes_twice_is_left_to_the_decoder(holder: Holder) -> None:
    """Of two the last one counts there."""
    payload = batch(chain(1, GRAIN)).replace(b"\x88\xa4type", b"\x89\xaablock_size\x08\xa4type")
    assert holder.take(payload).waiting is not None
    assert holder.hashes() == set()


def test_what_a_namespace_says_behind_a_parent_is_nothing_new(holder: Holder) -> None:
    """A salted root's chain goes on under it; only a first block chooses its root."""
    salted = holder.tree.root(b"salted", GRAIN)
    holder.tree.store(holder.ledgers[0], salted, GRAIN, np.array([1], np.uint64), np.arange(4, dtype=np.int32))
    taken = holder.take(batch(stored([2], 1, range(4, 8), GRAIN, cache_salt="s", lora_name="ad", lora_id=[7])))
    assert taken.stores == [Store(salted, 1, 1)]
    narrow = Feed(ledgers=holder.ledgers, root=holder.root, block_tokens=GRAIN, other_roots=False)
    assert holder.start(batch(stored([3], 2, range(4), GRAIN))).go(narrow).waiting is not None
    other = holder.tree.root(b"salted", 8)
    holder.tree.store(holder.ledgers[0], other, 8, np.array([80], np.uint64), np.arange(8, dtype=np.int32))
    assert holder.take(batch(stored([4], 80, range(4), GRAIN))).waiting is not None


def test_a_kind_that_is_known_of_the_group_is_understood(holder: Holder) -> None:
    full = Feed(ledgers=holder.ledgers, root=holder.root, block_tokens=GRAIN, full=True)
    for at, kind in enumerate(("full_attention", "mla_attention", "sink_full_attention")):
        event = stored([at], None, range(4), GRAIN, kv_cache_spec_kind=kind, kv_cache_spec_sliding_window=8)
        assert holder.start(batch(event)).go(full).waiting is None


def test_the_rest_can_be_asked_for(holder: Holder) -> None:
    """It decodes to what comes next, with timestamps and ranks of its messages."""
    payloads = [batch(chain(1, GRAIN), CLEARED, removed(1), removed(2), rank=4), batch(removed(3), ts=9.0), batch()]
    run = holder.start(*payloads)
    assert run.go(holder.feed).waiting is not None
    first, *others = run.rest()
    assert others == payloads[1:]
    read = decode(first, 0)
    assert (read.ts, read.rank, [event.hashes for event in read.events]) == (1_767_225_600.25, 4, [(1,), (2,)])  # type: ignore[union-attr]
    assert (run.rest(), run.go(holder.feed).events) == ([], 0)
    assert holder.start(*payloads).rest() == payloads


@pytest.mark.parametrize("frame", ["a map", "a whole number as time", "no events", "alone", "large"])
def test_a_frame_that_is_not_understood_comes_back_as_it_is(holder: Holder, frame: str) -> None:
    events = [chain(1, GRAIN)]
    payload = {
        "a map": msgspec.msgpack.encode({"ts": 1.0, "events": events}),
        "a whole number as time": encoded(events, ts=1),
        "no events": msgspec.msgpack.encode([1.0, None]),
        "alone": msgspec.msgpack.encode([1.0]),
        "large": encoded(events, 0, bytes(desk.MAX_PAYLOAD_BYTES)),
    }[frame]
    run = holder.start(payload, batch(chain(2, GRAIN)))
    assert run.go(holder.feed).waiting == payload
    assert run.go(holder.feed).stored == 2


def test_no_payload_is_taken_that_is_too_large_to_decode() -> None:
    assert desk.MAX_PAYLOAD_BYTES <= MAX_PAYLOAD_BYTES


@pytest.mark.parametrize(("ts", "rank"), [(math.nan, True), (math.inf, "r"), (-math.inf, None), (-1.5, -2), (1e9, 2**63 - 1)])
def test_times_and_ranks_are_told_as_the_decoder_reads_them(holder: Holder, ts: float, rank: object) -> None:
    payload = encoded([], rank, "more", ts=ts)
    assert holder.take(payload).batches == [(decode(payload, 0).ts, decode(payload, 0).rank)]


def test_a_rank_beyond_63_bits_is_left_to_the_decoder(holder: Holder) -> None:
    taken = holder.take(encoded([chain(1, GRAIN)], 2**63))
    assert (taken.events, taken.batches) == (1, [])
    assert taken.waiting is not None
    assert (decode(taken.waiting, 0).rank, decode(taken.waiting, 0).events) == (2**63, ())


def broken(payload: bytes) -> list[bytes]:
    """Cut short anywhere, and with one byte too many."""
    return [payload[:size] for size in range(len(payload))] + [payload + b"\xc0"]


def test_a_broken_payload_is_never_taken_and_a_cleared_holder_shows_nothing_of_it(holder: Holder) -> None:
    """FC-07, edge case 35: events before the damage may be applied, the decoder refuses, and the session clears the view."""
    good = batch(chain(3, GRAIN), removed(2), as_array(chain(1, GRAIN, first=1)), removed(3, medium="CPU"), chain(20, GRAIN))
    assert holder.take(good).waiting is None
    done = set()
    for payload in broken(good):
        run = holder.start(payload)
        taken = run.go(holder.feed)
        assert taken.waiting is not None
        with pytest.raises(DecodeError):
            decode(taken.waiting, 0)
        assert taken.batches == []
        done.add(taken.events)
        for ledger in holder.ledgers[:2]:
            holder.tree.clear(ledger)
        sizes = holder.tree.sizes()
        assert (sizes.blocks, sizes.handles, sizes.nodes, sizes.stubs) == (0, 0, 1, 0)
    assert done == set(range(6))
    check_memory(holder.tree)


def test_a_text_that_is_none_is_left_to_the_decoder(holder: Holder) -> None:
    """What it would refuse must not be skipped over: bytes that are no UTF-8, extensions, keys that are lists."""
    event = chain(1, GRAIN) | {"session_id": "aaaa"}
    for bad in (b"\xa4aa\xff\xfe", b"\xd4\x05a\xc0\xc0", b"\x81\x91\x01\xa1b", b"\xc1\xc0\xc0\xc0\xc0"):
        payload = batch(event).replace(b"\xa4aaaa", bad)
        assert holder.take(payload).waiting is not None
    assert holder.hashes() == set()


def test_more_stores_than_the_log_holds_are_all_told(holder: Holder) -> None:
    count = desk.MAX_STORES + 10
    events = [chain(1, GRAIN, first=at) for at in range(count)]
    taken = holder.take(batch(*events[:100]), batch(*events[100:]), batch(removed(count)))
    assert taken.stores == [Store(holder.root, at, 1) for at in range(count)]
    assert (taken.events, taken.stored, taken.removed) == (count + 1, count, 1)
    assert len(taken.batches) == 3


def test_any_number_of_payloads_is_taken_in_order(holder: Holder) -> None:
    count = 2 * desk.MAX_PAYLOADS + 5
    payloads = [batch(chain(1, GRAIN, first=at), ts=float(at)) for at in range(count)]
    payloads.insert(desk.MAX_PAYLOADS + 7, batch(CLEARED))
    run = holder.start(*payloads)
    first, then = run.go(holder.feed), run.go(holder.feed)
    assert (first.stored, then.stored) == (desk.MAX_PAYLOADS + 7, desk.MAX_PAYLOADS - 2)
    assert [ts for ts, _ in then.batches] == [1_767_225_600.25, *map(float, range(desk.MAX_PAYLOADS + 7, count))]
    assert holder.start().go(holder.feed) == Taken(0, 0, 0, 0, 0, [], [], None, to_the_end=False)


def test_what_does_not_fit_the_buffers_is_left_to_the_decoder(holder: Holder) -> None:
    for fits, blocks in ((True, desk.MAX_BLOCKS), (False, desk.MAX_BLOCKS + 1)):
        hashes = list(range(1, blocks + 1))
        assert (holder.take(batch(stored(hashes, None, [5] * blocks * GRAIN, GRAIN))).waiting is None) == fits
        assert (holder.take(batch(removed(*hashes))).waiting is None) == fits
        assert fits or holder.take(batch(*([removed(*hashes[:40_000])] * 5))).unknown == 200_000
    assert holder.take(batch(stored([1], None, [5] * (desk.MAX_TOKENS + 1), GRAIN))).waiting is not None
    assert holder.hashes() == set()


def test_a_feed_must_name_what_exists(holder: Holder) -> None:
    for ledgers, root in (((5, -1, -1, -1), holder.root), (holder.ledgers, 99)):
        with pytest.raises(RadixError, match=r"no such (ledger: 5|root: 99)"):
            holder.start(batch()).go(Feed(ledgers=ledgers, root=root, block_tokens=GRAIN))
    rootless = Feed(ledgers=holder.ledgers, root=0, block_tokens=GRAIN)
    assert holder.start(batch(chain(1, GRAIN))).go(rootless).waiting is not None
