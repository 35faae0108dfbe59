"""The block pool against a model so plain that it can be checked by reading, and its events against a consumer."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.types import Cleared, Event, NamespaceHint, Removed, Stored
from replicas.blocks import BlockPool, sha256
from replicas.errors import ReplicaError

BLOCK = 2
Content = tuple[str, tuple[int, ...]]  # salt and all tokens up to and including the block


def ids(*values: int) -> array[int]:
    return array("i", values)


def fill(pool: BlockPool, tokens: Sequence[int], salt: str | None = None) -> list[int]:
    """Take blocks for `tokens`, pretend their KV was written, and commit the complete ones."""
    hits = pool.lookup(ids(*tokens), salt)
    fresh = pool.allocate(pool.blocks_for(len(tokens)) - len(hits), hits)
    assert fresh is not None
    blocks = hits + fresh
    full = len(tokens) // pool.block_tokens
    if full > len(hits):
        pool.commit(blocks[:full], len(hits), ids(*tokens[len(hits) * pool.block_tokens : full * pool.block_tokens]), salt)
    return blocks


@dataclass
class Consumer:
    """A gateway's view, built from events alone: copies per hash, counted, and each hash's place in the tree of prompts."""

    copies: Counter[int] = field(default_factory=Counter)
    places: dict[tuple[object, tuple[int, ...]], int] = field(default_factory=dict)  # (parent hash or salt, tokens) -> hash

    def apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Stored):
                assert len(event.tokens) == len(event.hashes) * event.block_tokens
                parent: object = event.parent if event.parent is not None else f"salt:{event.namespace_hint.salt}"
                for number, name in enumerate(event.hashes):
                    tokens = tuple(event.tokens[number * event.block_tokens : (number + 1) * event.block_tokens].tolist())
                    self.places[parent, tokens] = name
                    self.copies[name] += 1
                    parent = name
            elif isinstance(event, Removed):
                for name in event.hashes:
                    assert self.copies[name] > 0, "a block was removed that was never announced"
                    self.copies[name] -= 1
                    if not self.copies[name]:
                        self.places = {place: held for place, held in self.places.items() if held != name}
            else:
                self.copies.clear()
                self.places.clear()

    def predict(self, tokens: Sequence[int], block_tokens: int, salt: str | None = None) -> int:
        """Tokens of a prompt that the engine will report as cached."""
        parent: object = f"salt:{salt}"
        count = 0
        for start in range(0, (len(tokens) - 1) // block_tokens * block_tokens, block_tokens):
            name = self.places.get((parent, tuple(tokens[start : start + block_tokens])))
            if name is None or not self.copies[name]:
                break
            count += block_tokens
            parent = name
        return count


class NaiveModel:
    """What every block holds and who uses it, searched from end to end."""

    def __init__(self, num_blocks: int) -> None:
        self.content: list[Content | None] = [None] * num_blocks
        self.users = [0] * num_blocks
        self.free = list(range(num_blocks))

    def hits(self, tokens: Sequence[int], salt: str) -> int:
        count = 0
        while (count + 1) * BLOCK < len(tokens) and (salt, tuple(tokens[: (count + 1) * BLOCK])) in self.content:
            count += 1
        return count

    def allocate(self, count: int, hits: Sequence[int]) -> list[int] | None:
        if len([block for block in self.free if block not in hits]) < count:
            return None
        for block in hits:
            self.users[block] += 1
            if block in self.free:
                self.free.remove(block)
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.users[block] = 1
            self.content[block] = None
        return taken

    def end(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                if self.content[block] is None:
                    self.free.insert(0, block)
                else:
                    self.free.append(block)


@dataclass
class Live:
    tokens: list[int]
    salt: str
    blocks: list[int]
    committed: int


prompts = st.lists(st.integers(1, 2), min_size=1, max_size=9) | st.lists(st.just(1), min_size=3, max_size=9)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("start"), prompts, st.sampled_from(["", "s"])),
        st.tuples(st.just("whole"), prompts, st.sampled_from(["", "s"])),
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("reset")),
    ),
    min_size=10,
    max_size=60,
)


@pytest.mark.parametrize("digest", [sha256, lambda data: bytes(8), lambda data: sha256(data)[:1] * 8])
@settings(max_examples=120, deadline=None)
@given(operations=operations, probes=st.lists(prompts, min_size=1, max_size=3))
def test_pool_equals_naive_model(digest: Callable[[bytes], bytes], operations: list[tuple], probes: list[list[int]]) -> None:
    """FC-65: hits are written content, by tokens and not by hash; FC-16: hashes are handles, and events explain every hit."""
    pool, model, consumer = BlockPool(6, BLOCK, digest=digest), NaiveModel(6), Consumer()
    live: list[Live] = []
    for operation in operations:
        if operation[0] in ("start", "whole"):
            before = len(live)
            _start(pool, model, live, operation[1], operation[2])
            if operation[0] == "whole" and len(live) > before:
                _write(pool, model, live[-1], 9)
                _end(pool, model, live, live[-1])
        elif operation[0] == "reset":
            assert pool.reset() is (not live)
            if not live:
                model = NaiveModel(6)
        elif operation[1] < len(live):
            one = live[operation[1]]
            if operation[0] == "write":
                _write(pool, model, one, operation[2])
            else:
                _end(pool, model, live, one)
        consumer.apply(pool.drain_events())
        assert pool.free_blocks == len(model.free)
        assert pool.idle_cached_blocks == sum(model.content[block] is not None for block in model.free)
        for tokens in probes:
            for salt in ("", "s"):
                found = pool.lookup(ids(*tokens), salt)
                assert len(found) == model.hits(tokens, salt)
                for number, block in enumerate(found):
                    assert model.content[block] == (salt, tuple(tokens[: (number + 1) * BLOCK]))
                assert consumer.predict(tokens, BLOCK, salt or None) == len(found) * BLOCK


def _start(pool: BlockPool, model: NaiveModel, live: list[Live], tokens: list[int], salt: str) -> None:
    hits = pool.lookup(ids(*tokens), salt)
    count = pool.blocks_for(len(tokens)) - len(hits)
    fresh = pool.allocate(count, hits)
    assert fresh == model.allocate(count, hits)  # the same blocks: the order of eviction is the same
    if fresh is not None:
        assert all(model.users[block] == 1 for block in fresh)
        live.append(Live(tokens, salt, hits + fresh, len(hits)))


def _write(pool: BlockPool, model: NaiveModel, one: Live, count: int) -> None:
    full = min(one.committed + count, len(one.tokens) // BLOCK)
    if full > one.committed:
        pool.commit(one.blocks[:full], one.committed, ids(*one.tokens[one.committed * BLOCK : full * BLOCK]), one.salt)
        for number in range(one.committed, full):
            model.content[one.blocks[number]] = (one.salt, tuple(one.tokens[: (number + 1) * BLOCK]))
        one.committed = full


def _end(pool: BlockPool, model: NaiveModel, live: list[Live], one: Live) -> None:
    live.remove(one)
    pool.free(one.blocks)
    model.end(one.blocks)


def test_the_last_token_is_never_a_hit() -> None:
    pool = BlockPool(8, 4)
    pool.free(fill(pool, range(8)))
    assert len(pool.lookup(ids(*range(8)))) == 1
    assert len(pool.lookup(ids(*range(9)))) == 2


def test_suffix_blocks_are_handed_out_before_their_prefix() -> None:
    pool = BlockPool(3, 2)
    blocks = fill(pool, [1, 2, 3, 4, 5, 6])
    pool.free(blocks)
    assert pool.allocate(1) == [blocks[2]]
    assert len(pool.lookup(ids(1, 2, 3, 4, 5, 6, 7))) == 2


def test_a_freed_block_stays_a_hit_until_it_is_handed_out() -> None:
    pool = BlockPool(2, 2)
    first = fill(pool, [1, 2])
    pool.free(first)
    assert pool.lookup(ids(1, 2, 3)) == first
    assert pool.allocate(1) != first  # the empty block goes first
    assert pool.allocate(1) == first
    assert pool.lookup(ids(1, 2, 3)) == []


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3, 2)
    pool.free(fill(pool, [1, 2]))
    pool.drain_events()
    hits = pool.lookup(ids(1, 2, 3))
    assert pool.allocate(3, hits) is None
    assert pool.allocate(2, hits, spare=1) is None
    assert pool.free_blocks == 3
    assert pool.drain_events() == []
    assert pool.allocate(2, hits) is not None


def test_each_copy_is_announced_and_removed_on_its_own() -> None:
    """FC-09: two sequences that computed the same block at once give two stores and later two removals of one hash."""
    pool = BlockPool(2, 2)
    blocks = [pool.allocate(1), pool.allocate(1)]
    for one in blocks:
        assert one is not None
        pool.commit(one, 0, ids(7, 8))
    first, second = pool.drain_events()
    assert isinstance(first, Stored)
    assert isinstance(second, Stored)
    assert first.hashes == second.hashes
    for one in blocks:
        assert one is not None
        pool.free(one)
    pool.allocate(1)
    assert pool.drain_events() == [Removed(first.hashes)]
    assert len(pool.lookup(ids(7, 8, 9))) == 1
    pool.allocate(1)
    assert pool.drain_events() == [Removed(first.hashes)]
    assert pool.lookup(ids(7, 8, 9)) == []


def test_a_child_is_a_hit_again_once_its_parent_is_stored_again() -> None:
    pool = BlockPool(4, 2)
    blocks = fill(pool, [1, 2, 3, 4])
    parent, child = blocks
    pool.free([parent])  # the parent alone goes, as when another prompt shares only the child's place
    while parent not in (taken := pool.allocate(1) or []):
        assert taken
    assert pool.lookup(ids(1, 2, 3, 4, 5)) == []
    pool.commit([parent], 0, ids(1, 2))
    assert pool.lookup(ids(1, 2, 3, 4, 5)) == [parent, child]


def test_events_carry_hash_chain_tokens_and_salt() -> None:
    pool = BlockPool(4, 2)
    fill(pool, [1, 2, 3, 4], "tenant")
    (first,) = pool.drain_events()
    assert isinstance(first, Stored)
    assert first.parent is None
    assert first.tokens.tolist() == [1, 2, 3, 4]
    assert first.namespace_hint == NamespaceHint(salt="tenant")
    root = sha256(b"tenant")
    digest = sha256(root + ids(1, 2).tobytes())
    assert first.hashes[0] == int.from_bytes(digest[-8:], "big")
    blocks = fill(pool, [1, 2, 3, 4, 5, 6], "tenant")
    (second,) = pool.drain_events()
    assert isinstance(second, Stored)
    assert second.parent == first.hashes[1]
    assert second.namespace_hint == NamespaceHint()
    assert len(blocks) == 3


def test_salts_do_not_share_blocks() -> None:
    """FC-20: the same tokens under another salt, or none, are another prompt; an empty salt is none."""
    pool = BlockPool(8, 2)
    fill(pool, [1, 2, 3], "a")
    assert pool.lookup(ids(1, 2, 3), "b") == []
    assert pool.lookup(ids(1, 2, 3)) == []
    assert len(pool.lookup(ids(1, 2, 3), "a")) == 1
    fill(pool, [1, 2, 3], "")
    assert len(pool.lookup(ids(1, 2, 3))) == 1


def test_reset_is_refused_while_a_block_is_in_use() -> None:
    pool = BlockPool(4, 2)
    blocks = fill(pool, [1, 2, 3, 4])
    pool.drain_events()
    assert not pool.reset()
    assert pool.drain_events() == []
    pool.free(blocks)
    assert pool.reset()
    assert pool.drain_events() == [Cleared()]
    assert pool.lookup(ids(1, 2, 3)) == []


def test_nothing_is_kept_for_evicted_prompts() -> None:
    """FC-15: the pool's tables follow its blocks, however many prompts and salts went by."""
    pool = BlockPool(4, 2)
    for number in range(500):
        pool.free(fill(pool, [number, 1, number, 2], f"salt {number}"))
        pool.drain_events()
    assert len(pool._named) <= 4
    assert len(pool._roots) <= 4


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ReplicaError, match="num_blocks=0"):
        BlockPool(0, 16)
