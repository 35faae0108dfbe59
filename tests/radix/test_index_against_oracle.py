"""Random operations on the index and on plain dictionaries; every answer must be the same after every step."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix import Batch, Cleared, Event, Index, Namespace, Removed, Stored, Tier
from tests.radix.oracle import Hint, View, hint_of
from tests.radix.shape import assert_empty, check_shape, tree_of

HINTS: list[Hint] = [(None, None, ()), ("a", None, ()), (None, "a", ()), ("a", "a", ()), (None, None, (b"a",))]


class Run:
    """One random life of an index beside its oracle."""

    def __init__(self, seed: int, *, holders: int, grains: list[int], honest: bool) -> None:
        self.random = random.Random(seed)
        self.index = Index()
        self.views: dict[int, View] = {}
        self.grains = grains
        self.honest = honest  # hashes follow from place, as engines make them; else they are drawn from a small pool
        for i in range(holders):
            counting = i % 3 != 2
            self.views[self.index.holder(f"r{i}", 0, model="m", counting=counting)] = View(counting=counting)

    def step(self) -> None:
        holder = self.random.choice(list(self.views))
        view = self.views[holder]
        if self.random.random() < 0.02:
            assert self.index.clear(holder) == len(view.places)
            view.clear()
        else:
            events = tuple(self._event(view) for _ in range(self.random.choice([1, 1, 1, 2, 5])))
            assert self.index.apply(holder, Batch(0, 0, 0.0, events)) == view.apply(events), events
        self.compare()

    def compare(self) -> None:
        check_shape(tree_of(self.index))
        assert self.index.stats().blocks == sum(len(view.places) for view in self.views.values())
        assert self.index.stats().orphans == sum(len(view.waiting) for view in self.views.values())
        for hint, prompt in self._prompts():
            match = self.index.match(Namespace("m", *hint), np.array(prompt, np.int32))
            for holder, view in self.views.items():
                want = [view.depth(hint, prompt, tier) for tier in range(4)]
                assert match.depth[holder].tolist() == want, (hint, prompt, holder)
            assert not match.guessed.any()

    def compare_dumps(self) -> None:
        for holder, view in self.views.items():
            dumped = {
                (int(block.tier), block.group, block.hash): (
                    block.namespace.key(),
                    block.block_tokens,
                    tuple(np.frombuffer(block.path, np.int32).tolist()),
                    block.copies,
                )
                for block in self.index.dump(holder)
            }
            assert dumped == {
                key: (Namespace("", *hint).key(), grain, tuple(token for block in path for token in block), view.counts[key])
                for key, (hint, grain, path) in view.places.items()
            }

    def finish(self) -> None:
        """Remove every copy one by one, in random order, then nothing may be left."""
        for holder, view in self.views.items():
            keys = [key for key, copies in view.counts.items() for _ in range(copies)]
            keys += [key for key, orphan in view.waiting.items() for _ in range(orphan.copies)]
            self.random.shuffle(keys)
            for tier, group, block_hash in keys:
                event = Removed((block_hash,), Tier(tier), group)
                assert self.index.apply(holder, Batch(0, 0, 0.0, (event,))) == view.apply((event,))
            check_shape(tree_of(self.index))
        assert_empty(self.index)

    def _event(self, view: View) -> Event:
        draw = self.random.random()
        known = [*view.places, *view.waiting]
        if draw < 0.35 and known:
            tier, group, block_hash = self.random.choice(known)
            return Removed(self._run_of(view, tier, group, block_hash), Tier(tier), group)
        if draw < 0.37:
            return Cleared()
        if draw < 0.40:
            return Removed((self.random.randrange(40),), Tier(self.random.randrange(2)))
        return self._store(view)

    def _run_of(self, view: View, tier: int, group: int, block_hash: int) -> tuple[int, ...]:
        """A few hashes of the holder, often neighbours on one path."""
        place = view.places.get((tier, group, block_hash))
        if place is None or self.random.random() < 0.5:
            return (block_hash,)
        path = place[2]
        near = [h for (t, g, h), (_, _, p) in view.places.items() if t == tier and g == group and p[: len(path)] == path]
        return tuple(self.random.sample(near, min(len(near), self.random.randint(1, 4))))

    def _store(self, view: View) -> Stored:
        rnd = self.random
        tier, group = rnd.choice([0, 0, 0, 1, 3]), rnd.choice([0, 0, 0, 0, 2])
        hint = rnd.choice(HINTS)
        grain = rnd.choice(self.grains)
        parent: int | None = None
        path: tuple[tuple[int, ...], ...] = ()
        known = [(key, place) for key, place in view.places.items() if key[1] == group]
        if known and rnd.random() < 0.6:
            (_, _, parent), (hint, grain, path) = rnd.choice(known)
        elif rnd.random() < 0.2:
            parent = rnd.choice([h for _, _, h in [*view.places, *view.waiting, (0, 0, 99)]])
        blocks = [tuple(rnd.choice([1, 2]) for _ in range(grain)) for _ in range(rnd.choice([1, 1, 2, 3, 6]))]
        hashes = []
        for i in range(len(blocks)):
            whole = (hint, grain, path + tuple(blocks[: i + 1]))
            hashes.append(hash(whole) % 2**64 if self.honest and (parent is None or path) else rnd.randrange(40))
        tokens = [token for block in blocks for token in block]
        if rnd.random() < 0.05:
            tokens = tokens[: rnd.randint(0, len(tokens))]
        hint_media = hint if rnd.random() < 0.95 else (hint[0], hint[1], (b"b",))
        return Stored(tuple(hashes), parent, np.array(tokens, np.int32), grain, hint_of(hint_media), Tier(tier), group)

    def _prompts(self) -> list[tuple[Hint, tuple[int, ...]]]:
        rnd = self.random
        prompts: list[tuple[Hint, tuple[int, ...]]] = [(rnd.choice(HINTS), tuple(rnd.choice([1, 2]) for _ in range(12)))]
        places = [place for view in self.views.values() for place in view.places.values()]
        for hint, _, path in rnd.sample(places, min(2, len(places))):
            tokens = tuple(token for block in path for token in block)
            prompts.append(
                (hint, tokens[: rnd.randint(0, len(tokens))] + tuple(rnd.choice([1, 2]) for _ in range(rnd.randint(0, 5))))
            )
        return prompts


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    holders=st.sampled_from([1, 2, 3, 9]),
    grains=st.sampled_from([[1], [2], [1, 2], [3, 16], [4]]),
    honest=st.booleans(),
)
def test_index_equals_dictionaries(seed: int, holders: int, grains: list[int], honest: bool) -> None:
    """FC-15: after every step of a random run the tree says what plain dictionaries say, and nothing is left at the end."""
    run = Run(seed, holders=holders, grains=grains, honest=honest)
    for _ in range(40):
        run.step()
    run.compare_dumps()
    run.finish()


@pytest.mark.parametrize("seed", range(3))
def test_long_life_with_many_holders(seed: int) -> None:
    """FC-15: the same, longer, so that splits, joins, holes and copies pile up."""
    run = Run(seed, holders=5, grains=[1], honest=True)
    for _ in range(250):
        run.step()
    run.compare_dumps()
    run.finish()
