"""Matches of hybrid models for all holders at once.

What a holder's cache groups can serve ends where each of them has what it needs there (`groups.servable`). Replicas of one model
have groups alike, and those of one engine name their blocks alike, so the question "who can go on at this block?" is answered for
all of them by a few operations on bits. Asked from the deepest block upwards, mostly the first answer is yes for everyone.

A block's name stands for the whole prompt up to it, so two holders that name one block alike name all alike: engines chain their
hashes, and another process may begin the chain with another seed. Who names alike is found out once per life of a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm

import numpy as np
import numpy.typing as npt

from radix.groups import Groups, Limit
from radix.holder import Holder
from radix.match import TIERS, Int32Array
from radix.presence import Presence, bits_of, mask_of
from radix.tree import AnyTree, Place

IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Walked:
    """A prompt followed below one root. reached: int32 [holders, TIERS], tokens; places: of the prompt's blocks."""

    tree: AnyTree
    group: int
    block_tokens: int
    reached: Int32Array
    places: Sequence[Place]


class Profile:
    """Holders in one tree whose cache groups are alike."""

    def __init__(self, holders: Sequence[Holder]) -> None:
        self.owners = {owner.number: owner for owner in holders}
        self.numbers = np.array(sorted(self.owners), np.intp)
        self.tree: AnyTree = holders[0].tree
        self.groups: Groups = holders[0].groups


def profiles(holders: Sequence[Holder]) -> tuple[list[Profile], list[Holder]]:
    """Holders by likeness, and those that have to be looked at one by one: blocks of their limiting groups lie in the tree."""
    alike: dict[tuple[object, ...], list[Holder]] = {}
    others: list[Holder] = []
    for owner in holders:
        groups = owner.groups
        if groups.has_full and not any(len(ledger) for limit in groups.limits for ledger in owner.ledgers.get(limit, ())):
            alike.setdefault((id(owner.tree), *groups.shape()), []).append(owner)
        else:
            others.append(owner)
    return [Profile(of_shape) for of_shape in alike.values()], others


class Alike:
    """Which holders give the same names, per cache group: a mask of bits for each way of naming that was seen."""

    def __init__(self) -> None:
        self._ways: dict[int, list[int]] = {}

    def of(self, group: int) -> Sequence[int]:
        """The ways known so far."""
        return self._ways.get(group, ())

    def forget(self, holder: int) -> None:
        """Its view starts anew, perhaps as that of another process."""
        for group, ways in self._ways.items():
            self._ways[group] = [left for way in ways if (left := way & ~(1 << holder))]

    def place(self, group: int, holder: int, there: int, names: Callable[[int], tuple[int, ...]]) -> int:
        """The way of a holder that has none yet. there: who has the same block. names: of it, by holder.

        A holder that can not be compared with every way stands alone, for now.
        """
        own = set(names(holder))
        ways = self._ways.setdefault(group, [])
        for at, way in enumerate(ways):
            if way & there and not own.isdisjoint(names(_lowest(way & there))):
                ways[at] |= 1 << holder
                return ways[at]
        if all(way & there for way in ways):
            ways.append(1 << holder)
        return 1 << holder


def serve(profile: Profile, walked: Sequence[Walked], presence: Presence, alike: Alike, depth: Int32Array) -> None:
    """Put into `depth` [holders, TIERS] how far each holder of a profile can serve a prompt."""
    numbers, groups = profile.numbers, profile.groups
    mine = [walk for walk in walked if walk.tree is profile.tree and walk.group in groups.credit]
    for tier in range(TIERS):
        if tier and not presence.uses(tier):
            above = [walk.reached[numbers, tier] == walk.reached[numbers, tier - 1] for walk in mine]
            if all(same.all() for same in above):
                depth[numbers, tier] = depth[numbers, tier - 1]
                continue
        reached = {group: np.zeros(len(numbers), np.int32) for group in groups.credit}
        for walk in mine:
            np.maximum(reached[walk.group], walk.reached[numbers, tier], out=reached[walk.group])
        deepest = np.minimum.reduce(list(reached.values()))
        for walk in mine:
            served = _Descent(profile, walk, tier, presence, alike, len(depth)).run(
                np.minimum(walk.reached[numbers, tier], deepest)
            )
            depth[numbers, tier] = np.maximum(depth[numbers, tier], served)


class _Descent:
    """One walk on one tier, from the deepest ends to the first that can be served."""

    def __init__(self, profile: Profile, walk: Walked, tier: int, presence: Presence, alike: Alike, size: int) -> None:
        groups = profile.groups
        self._profile = profile
        self._walk = walk
        self._tier = tier
        self._presence = presence
        self._alike = alike
        self._size = size
        self._limits = [Limit(number, groups.known[number], walk.block_tokens) for number in groups.limits]
        sizes = [groups.known[number].block_tokens or 1 for number in groups.credit]
        # Only at multiples of it do all groups have the end of a block.
        self._grain = lcm(walk.block_tokens, *sizes, *(limit.step for limit in self._limits))
        self._served = np.zeros(size, np.int32)

    def run(self, reached: Int32Array) -> Int32Array:
        """reached: tokens [holders of the profile]; returns the same for what can be served."""
        ends = reached - reached % self._grain
        pending = self._bits(ends > 0)
        for way in self._alike.of(self._walk.group):
            if pending & way:
                self._descend(ends, pending & way)
                pending &= ~way
        while pending:
            holder = _lowest(pending)
            end = int(ends[np.searchsorted(self._profile.numbers, holder)])
            way = self._alike.place(self._walk.group, holder, self._bits(ends >= end), partial(self._named, end))
            self._descend(ends, pending & way)
            pending &= ~way
        return self._served[self._profile.numbers]

    def _descend(self, ends: Int32Array, alike: int) -> None:
        """ends: the deepest end of each holder of the profile; alike: bits of those that are meant."""
        starts = {end: self._bits(ends == end) & alike for end in np.unique(ends[ends > 0]).tolist()}
        lookup = _Names(self._profile, self._walk, self._presence, self._tier)
        waiting = sorted((end for end, holders in starts.items() if holders), reverse=True)
        active, end = 0, 0
        while active or waiting:
            if not active:
                end = waiting[0]
            if waiting and waiting[0] == end:
                active |= starts[waiting.pop(0)]
            met = active
            for limit in self._limits:
                met &= lookup.run(limit, end, active)
                if not met:
                    break
            if met:
                self._served[mask_of(met, self._size)] = end
                active &= ~met
            end -= self._grain
            if end <= 0:
                active = 0

    def _named(self, end: int, holder: int) -> tuple[int, ...]:
        return self._profile.owners[holder].names(self._walk.places[end // self._walk.block_tokens - 1])

    def _bits(self, chosen: npt.NDArray[np.bool_]) -> int:
        """Of the holders of the profile for which `chosen` is true."""
        mask = np.zeros(self._size, np.bool_)
        mask[self._profile.numbers[chosen]] = True
        return bits_of(mask)


class _Names:
    """Who has the blocks of limiting groups along a prompt, among holders that name alike."""

    def __init__(self, profile: Profile, walk: Walked, presence: Presence, tier: int) -> None:
        self._profile = profile
        self._walk = walk
        self._presence = presence
        self._tier = tier
        self._names: dict[int, tuple[int, ...]] = {}
        self._runs: dict[tuple[int, int, int], int] = {}

    def run(self, limit: Limit, end: int, active: int) -> int:
        """Bits of those that have all that the limit needs for a hit that ends at `end`; active: some who have that block."""
        needed = limit.needed(end)
        if needed <= 0:
            return active
        power = needed.bit_length() - 1
        found = self._doubled(limit, power, end, active)
        rest = needed - (1 << power)
        return found & self._doubled(limit, power, end - rest * limit.step, active) if found and rest else found

    def _doubled(self, limit: Limit, power: int, end: int, active: int) -> int:
        """Who has the 2**power ends up to `end`; every run is worked out once, from two of half its length."""
        key = limit.number, power, end
        found = self._runs.get(key)
        if found is None:
            if power == 0:
                found = self._there(limit, end, active)
            else:
                found = self._doubled(limit, power - 1, end, active)
                if found:
                    found &= self._doubled(limit, power - 1, end - (limit.step << power - 1), active)
            self._runs[key] = found
        return found

    def _there(self, limit: Limit, end: int, active: int) -> int:
        names = self._names.get(end)
        if names is None:
            place = self._walk.places[end // self._walk.block_tokens - 1]
            names = self._names[end] = self._profile.owners[_lowest(active)].names(place)
        found = 0
        for name in names:
            found |= self._presence.of(self._tier, limit.number, name)
        return found


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
