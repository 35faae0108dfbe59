"""Random operations on the index and on plain dictionaries; every answer must be the same after every step."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix import Batch, Cleared, Event, Namespace, NamespaceHint, Removed, Stored, Tier
from radix.changes import GroupKind
from tests.radix.oracle import Hint, Place, View
from tests.radix.shape import assert_empty, check_shape
from tests.radix.trees import KINDS, new_index

HINTS: list[Hint] = [(None, None, ()), ("a", None, ()), (None, "a", ()), ("a", "a", ()), (None, None, (b"a",))]

# Cache groups of one model: (kind, window in tokens) by group.
Layout = dict[int, tuple[GroupKind, int]]
PLAIN: Layout = {0: (GroupKind.UNSTATED, 0), 2: (GroupKind.UNSTATED, 0)}
LAYOUTS: list[Layout] = [
    {0: (GroupKind.STATE, 0), 3: (GroupKind.FULL, 0)},
    {0: (GroupKind.FULL, 0), 1: (GroupKind.WINDOW, 5), 2: (GroupKind.NOTHING, 0)},
    {0: (GroupKind.WINDOW, 4), 1: (GroupKind.CHUNK, 4)},
    {0: (GroupKind.FULL, 0), 1: (GroupKind.FULL, 0), 2: (GroupKind.CHUNK, 3)},
    {0: (GroupKind.UNSTATED, 0), 1: (GroupKind.WINDOW, 3)},
]


pytestmark = pytest.mark.xdist_group("compiled")


class Run:
    """One random life of an index beside its oracle."""

    def __init__(
        self,
        seed: int,
        *,
        holders: int,
        grains: list[int],
        honest: bool,
        kind: str,
        layout: Layout | None = None,
        richness: float = 0.0,
        strays: float = 1.0,
    ) -> None:
        self.random = random.Random(seed)
        self.index = new_index(kind)
        self.views: dict[int, View] = {}
        self.grains = grains
        self.layout = layout or PLAIN
        self.richness = richness  # how often leads, images behind the first block and placeholders come up
        self.strays = strays  # how often parents are unknown and tokens missing, of how often that usually is
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
            self.apply(holder, view, events)
        self.compare()

    def apply(self, holder: int, view: View, events: tuple[Event, ...]) -> None:
        assert self.index.apply(holder, Batch(0, 0, 0.0, events)) == view.apply(events), events

    def compare(self) -> None:
        check_shape(self.index)
        assert self.index.stats().blocks == sum(len(view.places) for view in self.views.values())
        assert self.index.stats().orphans == sum(len(view.waiting) for view in self.views.values())
        assert self.index.stats().loose == sum(len(view.loose) for view in self.views.values())
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
                key: (Namespace("", *place.hint).key(), place.grain, place.tokens, view.counts[key])
                for key, place in view.places.items()
            } | {key: (Namespace("").key(), 0, (), copies) for key, copies in view.loose.items()}

    def finish(self) -> None:
        """Remove every copy one by one, in random order, then nothing may be left."""
        for holder, view in self.views.items():
            keys = [key for key, copies in view.counts.items() for _ in range(copies)]
            keys += [key for key, orphan in view.waiting.items() for _ in range(orphan.copies)]
            keys += [key for key, copies in view.loose.items() for _ in range(copies)]
            self.random.shuffle(keys)
            for tier, group, block_hash in keys:
                self.apply(holder, view, (Removed((block_hash,), Tier(tier), group),))
            check_shape(self.index)
        assert_empty(self.index)

    def _event(self, view: View) -> Event:
        draw = self.random.random()
        known = [*view.places, *view.waiting, *view.loose]
        if draw < 0.35 and known:
            tier, group, block_hash = self.random.choice(known)
            return Removed(self._run_of(view, tier, group, block_hash), Tier(tier), group)
        if draw < 0.37:
            return Cleared()
        if draw < 0.40:
            return Removed((self.random.randrange(40),), Tier(self.random.randrange(2)))
        if known and self.random.random() < self.richness:
            return self._echo(self.random.choice(known)[2])
        return self._store(view)

    def _run_of(self, view: View, tier: int, group: int, block_hash: int) -> tuple[int, ...]:
        """A few hashes of the holder, often neighbours on one path."""
        place = view.places.get((tier, group, block_hash))
        if place is None or self.random.random() < 0.5:
            return (block_hash,)
        size = len(place.path)
        near = [h for (t, g, h), p in view.places.items() if t == tier and g == group and p.prefix(size) == place]
        return tuple(self.random.sample(near, min(len(near), self.random.randint(1, 4))))

    def _group(self) -> tuple[int, GroupKind, int]:
        group = self.random.choice(list(self.layout))
        kind, window = self.layout[group]
        return (group, kind, window) if self.random.random() < 0.9 else (group, GroupKind.UNSTATED, 0)

    def _echo(self, block_hash: int) -> Stored:
        """A known name again: without tokens on another tier, or in another group that left out all blocks but this one."""
        rnd = self.random
        group, kind, window = self._group()
        tokens = np.array([1] * (0 if self.honest and kind is GroupKind.FULL else rnd.choice([0, 0, 4, 5])), np.int32)
        grain = rnd.choice(self.grains) if len(tokens) else 0
        return Stored(
            (block_hash,), None, tokens, grain, tier=Tier(rnd.randrange(3)), group=group, kind=kind, window_tokens=window
        )

    def _store(self, view: View) -> Stored:
        rnd = self.random
        group, kind, window = self._group()
        tier = Tier(rnd.choice([0, 0, 0, 1, 3]))
        adapter, salt, media = rnd.choice(HINTS)
        lead = (rnd.choice([1, 2]),) if rnd.random() < self.richness / 2 else ()
        base = Place(adapter, salt, rnd.choice(self.grains), lead)
        parent: int | None = None
        known = [(key, place) for key, place in view.places.items() if key[1] == group]
        if known and rnd.random() < 0.6:
            (_, _, parent), base = rnd.choice(known)
            media = (rnd.choice([b"a", b"b"]),) if rnd.random() < max(0.05, self.richness / 2) else ()
        elif rnd.random() < 0.2 * self.strays:
            parent = rnd.choice([h for _, _, h in [*view.places, *view.waiting, (0, 0, 99)]])
        blocks = [tuple(rnd.choice([1, 2]) for _ in range(base.grain)) for _ in range(rnd.choice([1, 1, 2, 3, 6]))]
        hashes: list[int] = []
        for i, block in enumerate(blocks):
            before_it = (
                hashes[-1] if hashes else hash((base.adapter, base.salt, base.grain, base.lead)) if parent is None else parent
            )
            hashes.append(hash((before_it, block, media if i == 0 else ())) % 2**64 if self.honest else rnd.randrange(40))
        tokens = [token for block in blocks for token in block]
        if rnd.random() < 0.05 * self.strays:
            tokens = tokens[: rnd.randint(0, len(tokens))]
        hint = NamespaceHint(base.adapter, base.salt, media)
        keeps_lead = rnd.random() < 0.98 or (self.honest and parent is None)  # else one place would have two names
        before = base.lead if keeps_lead else ()
        return Stored(tuple(hashes), parent, np.array(tokens, np.int32), base.grain, hint, tier, group, kind, window, before)

    def _prompts(self) -> list[tuple[Hint, tuple[int, ...]]]:
        rnd = self.random
        prompts: list[tuple[Hint, tuple[int, ...]]] = [(rnd.choice(HINTS), tuple(rnd.choice([1, 2]) for _ in range(12)))]
        places = [place for view in self.views.values() for place in view.places.values()]
        for place in rnd.sample(places, min(2, len(places))):
            whole = place.tokens
            rest = tuple(rnd.choice([1, 2]) for _ in range(rnd.randint(0, 5)))
            prompts.append((place.hint, whole[: rnd.randint(0, len(whole))] + rest))
            prompts.append((place.hint, whole + rest))
        return prompts


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    holders=st.sampled_from([1, 2, 3, 9]),
    grains=st.sampled_from([[1], [2], [1, 2], [3, 16], [4]]),
    honest=st.booleans(),
    richness=st.sampled_from([0.0, 0.3]),
    kind=st.sampled_from(KINDS),
)
def test_index_equals_dictionaries(seed: int, holders: int, grains: list[int], honest: bool, richness: float, kind: str) -> None:
    """FC-15: after every step of a random run the tree says what plain dictionaries say, and nothing is left at the end."""
    run = Run(seed, holders=holders, grains=grains, honest=honest, richness=richness, kind=kind)
    for _ in range(40):
        run.step()
    run.compare_dumps()
    run.finish()


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    holders=st.sampled_from([2, 5]),
    layout=st.sampled_from(LAYOUTS),
    grains=st.sampled_from([[1], [2], [1, 2]]),
    richness=st.sampled_from([0.1, 0.5]),
    kind=st.sampled_from(KINDS),
)
def test_hybrid_models_equal_dictionaries(
    seed: int, holders: int, layout: Layout, grains: list[int], richness: float, kind: str
) -> None:
    """FC-13: whatever the order, a hit ends where every cache group can go on."""
    run = Run(seed, holders=holders, grains=grains, honest=True, layout=layout, richness=richness, kind=kind)
    for _ in range(40):
        run.step()
    run.compare_dumps()
    run.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_long_life_with_many_holders(seed: int, kind: str) -> None:
    """FC-15: the same, longer, so that splits, joins, holes and copies pile up."""
    run = Run(seed, holders=5, grains=[1], honest=True, kind=kind)
    for _ in range(250):
        run.step()
    run.compare_dumps()
    run.finish()
