"""Hybrid models on many holders: asked all at once, the answers are those of asking one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from radix import Batch, Event, Index, Namespace, Removed, Stored, Tier
from radix import lookup as lookup_module
from radix.changes import GroupKind
from radix.holder import Holder
from radix.hybrid import Profile
from radix.match import Int32Array
from radix.tree import Place
from tests.radix.trees import KINDS, new_index

pytestmark = pytest.mark.xdist_group("compiled")

MODEL = Namespace("m")
BLOCK = 4
BLOCKS = 24
PROMPT = np.arange(BLOCK * BLOCKS, dtype=np.int32) + 7
OTHER = np.concatenate([PROMPT[: BLOCK * 9], PROMPT[: BLOCK * 6] + 500])
# (kind, window tokens, tokens per block) of each group; group 0 keeps everything
LAYOUTS = [
    {0: (GroupKind.FULL, 0, BLOCK), 1: (GroupKind.WINDOW, 3 * BLOCK + 2, BLOCK)},
    {0: (GroupKind.FULL, 0, BLOCK), 1: (GroupKind.STATE, 0, 2 * BLOCK)},
    {0: (GroupKind.FULL, 0, BLOCK), 1: (GroupKind.CHUNK, 5 * BLOCK, BLOCK), 2: (GroupKind.WINDOW, 1, BLOCK)},
    {0: (GroupKind.FULL, 0, BLOCK), 1: (GroupKind.WINDOW, 9 * BLOCK, BLOCK), 2: (GroupKind.FULL, 0, 2 * BLOCK)},
]


def names(seed: int, prompt: Int32Array, size: int) -> list[int]:
    """Chained hashes of a prompt's blocks, equal at the boundaries that two sizes share; another seed is another process."""
    return [hash((seed, prompt[:end].tobytes())) & (1 << 63) - 1 for end in range(size, len(prompt) + 1, size)]


class Fleet:
    """Holders of one layout, each with some of two prompts."""

    def __init__(self, kind: str, layout: dict[int, tuple[GroupKind, int, int]], seed: int, holders: int) -> None:
        self.chance = random.Random(seed)
        self.layout = layout
        self.index: Index = new_index(kind)
        self.numbers = [self.index.holder(f"r{number}", 0, model="m") for number in range(holders)]
        for holder in self.numbers:
            self.fill(holder)

    def fill(self, holder: int) -> None:
        """A life of it: what an engine keeps of two prompts, with what it gave up since."""
        chance = self.chance
        engine = chance.choice([1, 1, 1, 2])
        for prompt in (PROMPT, OTHER):
            depth = chance.choice([0, 5, 9, 15, 15, len(prompt) // BLOCK])
            for group, (kind, window, size) in self.layout.items():
                whole = names(engine, prompt[: depth * BLOCK], size)
                tier = chance.choice([Tier.DEVICE, Tier.DEVICE, Tier.HOST])
                if kind is GroupKind.FULL:
                    kept = list(range(len(whole)))
                else:
                    kept = [at for at in range(len(whole)) if chance.random() < chance.choice([0.5, 0.95])]
                for first, last in _runs(kept):
                    tokens = prompt[first * size : last * size]
                    parent = whole[first - 1] if first else None
                    self.tell(
                        holder,
                        Stored(
                            tuple(whole[first:last]),
                            parent,
                            tokens,
                            size,
                            tier=tier,
                            group=group,
                            kind=kind,
                            window_tokens=window,
                        ),
                    )
                if kept and chance.random() < 0.5:
                    self.tell(holder, Removed(tuple(whole[kept[-1] :]), tier, group))

    def tell(self, holder: int, event: Event) -> None:
        self.index.apply(holder, Batch(0, 0, 0.0, (event,)))


def _runs(kept: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for at in kept:
        if runs and runs[-1][1] == at:
            runs[-1] = runs[-1][0], at + 1
        else:
            runs.append((at, at + 1))
    return runs


def one_by_one(holders: Sequence[Holder]) -> tuple[list[Profile], list[Holder]]:
    return [], list(holders)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_all_at_once_and_one_by_one_agree(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-13: several processes that name alike and not alike, windows that slid out, states here and there, two tiers."""
    fleet = Fleet(kind, LAYOUTS[seed % len(LAYOUTS)], seed, holders=30)
    served = set()
    for step in range(6):
        for prompt in (PROMPT, OTHER, PROMPT[: BLOCK * 11 + 3], OTHER[: BLOCK * 12]):
            together = fleet.index.match(MODEL, prompt).depth
            with monkeypatch.context() as patched:
                patched.setattr(lookup_module, "profiles", one_by_one)
                fleet.index._lookup.forget()
                assert np.array_equal(fleet.index.match(MODEL, prompt).depth, together)
            fleet.index._lookup.forget()
            assert np.array_equal(fleet.index.match(MODEL, prompt).depth, together)
            served |= set(together[:, 0].tolist())
        for holder in fleet.chance.sample(fleet.numbers, 5):
            fleet.index.clear(holder)
            if step % 2:
                fleet.fill(holder)
    assert len(served) > 4
    for holder in fleet.numbers:
        fleet.index.drop(holder)
    presence = fleet.index._presence
    assert (len(presence.loose), len(presence.waiting)) == (0, 0)


def test_alike_holders_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: one of them names the blocks for all."""
    fleet = Fleet("plain", LAYOUTS[0], 3, holders=0)
    whole = names(1, PROMPT, BLOCK)
    for number in range(40):
        holder = fleet.index.holder(f"r{number}", 0, model="m")
        for group, (kind, window, size) in LAYOUTS[0].items():
            fleet.tell(holder, Stored(tuple(whole), None, PROMPT, size, group=group, kind=kind, window_tokens=window))
    asked: list[int] = []
    of_holder = Holder.names

    def names_of(owner: Holder, place: Place) -> tuple[int, ...]:
        asked.append(owner.number)
        return of_holder(owner, place)

    monkeypatch.setattr(Holder, "names", names_of)
    assert (fleet.index.match(MODEL, PROMPT).depth == len(PROMPT)).all()
    assert len(set(asked)) == 40  # the first time each of them is compared
    asked.clear()
    assert (fleet.index.match(MODEL, PROMPT).depth == len(PROMPT)).all()
    assert set(asked) == {0}
    assert len(asked) == 4  # blocks of the window
    fleet.index.clear(0)
    assert fleet.index.match(MODEL, PROMPT).depth[:, 0].tolist() == [0] + [len(PROMPT)] * 39


def test_a_window_on_a_slower_tier_serves_there() -> None:
    """Nobody's prefix is on the host tier, and still a hit is slower there than on the device: none against all of it."""
    index = new_index("plain")
    whole = tuple(names(1, PROMPT, BLOCK))
    for number in range(3):
        holder = index.holder(f"r{number}", 0, model="m")
        full = Stored(whole, None, PROMPT, BLOCK, kind=GroupKind.FULL)
        window = Stored(whole, None, PROMPT, BLOCK, tier=Tier.HOST, group=1, kind=GroupKind.WINDOW, window_tokens=8)
        index.apply(holder, Batch(0, 0, 0.0, (full, window)))
    assert index.match(MODEL, PROMPT).depth.tolist() == [[0, len(PROMPT), len(PROMPT), len(PROMPT)]] * 3
