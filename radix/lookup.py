"""How far each holder has a prompt: which roots have to be walked for a namespace, and what their answers add up to.

What has to be done for a namespace is planned once and kept until a root, a model or a cache group changes, so that a match of a
plain model costs one walk per block size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from radix.changes import Tier
from radix.groups import Names, servable
from radix.holder import Holder
from radix.hybrid import Alike, Profile, Walked, profiles, serve
from radix.match import TIERS, Int32Array
from radix.namespace import Namespace
from radix.presence import Presence
from radix.tree import AnyTree, Members, Place

_MOST_PLANS = 4096  # salts and images make namespaces without end


@dataclass(frozen=True, slots=True)
class _Walk:
    tree: AnyTree
    root: Any
    members: Members


@dataclass(slots=True)
class _Plan:
    """plain: walks whose longest answer is the credit. joint: walks of holders whose groups have to agree: those of `profiles`
    are looked at together, `others` one by one.

    key, seen: the roots it was made for, per tree.
    """

    key: bytes
    seen: list[tuple[Any, ...]]
    plain: list[_Walk] = field(default_factory=list)
    joint: list[_Walk] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    others: list[Holder] = field(default_factory=list)


class Lookup:
    """Answers prompts from the trees that holders lie in."""

    def __init__(self, trees: Sequence[AnyTree], presence: Presence) -> None:
        self._trees = trees
        self._presence = presence
        self._alike = Alike()
        self._sizes: Int32Array | None = None
        self._plans: dict[Namespace, _Plan] = {}
        self._parts: dict[tuple[str, int, int], tuple[Members, Members]] = {}  # (model, tree, group) -> plain, joint

    def forget(self) -> None:
        """Holders, models, groups or trees are not what they were."""
        self._plans.clear()
        self._parts.clear()
        self._sizes = None

    def block_tokens(self, holders: Sequence[Holder | None]) -> Int32Array:
        """Tokens per block of what makes credit, int32 [holders]; 0 while unknown."""
        if self._sizes is None:
            self._sizes = np.array([0 if owner is None else owner.groups.block_tokens for owner in holders], np.int32)
        return self._sizes

    def cleared(self, holder: int) -> None:
        """A holder's view starts anew."""
        self._alike.forget(holder)
        self.forget()

    def match(self, namespace: Namespace, tokens: Int32Array, holders: Iterable[Holder], depth: Int32Array) -> bool:
        """Raise `depth` [holders, TIERS] to the matched tokens; False when a tree was too busy changing.

        namespace: with its model. holders: all there are.
        """
        plan = self._plans.get(namespace)
        if plan is None or [tree.roots_of(plan.key) for tree in self._trees] != plan.seen:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[namespace] = self._plan(namespace, holders)
        known = True
        for walk in plan.plain:
            known &= walk.tree.depths(walk.root, tokens, walk.members, depth)
        return known & self._match_hybrids(plan, tokens, depth) if plan.joint else known

    def _plan(self, namespace: Namespace, holders: Iterable[Holder]) -> _Plan:
        key = namespace.without_model().key()
        plan = _Plan(key, [tree.roots_of(key) for tree in self._trees])
        if not any(plan.seen):
            return plan
        of_model = [holder for holder in holders if holder.model == namespace.model]
        for number, tree in enumerate(self._trees):
            for root in plan.seen[number]:
                part = (namespace.model, number, root.group)
                if part not in self._parts:
                    self._parts[part] = _parted([holder for holder in of_model if holder.tree is tree], root.group)
                plain, joint = self._parts[part]
                if plain.holders:
                    plan.plain.append(_Walk(tree, root, plain))
                if joint.holders:
                    plan.joint.append(_Walk(tree, root, joint))
        if plan.joint:
            plan.profiles, plan.others = profiles([holder for holder in of_model if not holder.groups.plain])
        return plan

    def _match_hybrids(self, plan: _Plan, tokens: Int32Array, depth: Int32Array) -> bool:
        walked: list[Walked] = []
        known = True
        for walk in plan.joint:
            reached = np.zeros((len(depth), TIERS), np.int32)
            known &= walk.tree.depths(walk.root, tokens, walk.members, reached)
            places = walk.tree.places_along(walk.root, tokens)
            walked.append(Walked(walk.tree, walk.root.group, walk.root.block_tokens, reached, places))
        for profile in plan.profiles:
            serve(profile, walked, self._presence, self._alike, depth)
        if plan.others:
            named = [_NamesAlong(walk.places) for walk in walked]
            for owner in plan.others:
                mine = [
                    (walk.group, walk.block_tokens, walk.reached[owner.number].tolist(), names.of(owner))
                    for walk, names in zip(walked, named, strict=True)
                    if walk.tree is owner.tree and walk.group in owner.groups.credit
                ]
                depth[owner.number] = _servable_by(owner, mine)
        return known


def _parted(holders: list[Holder], group: int) -> tuple[Members, Members]:
    """Who is credited for a cache group: those whose longest match is their credit, and those whose groups have to agree."""
    credited = [holder for holder in holders if group in holder.groups.credit]
    plain = Members([holder.number for holder in credited if holder.groups.plain])
    return plain, Members([holder.number for holder in credited if not holder.groups.plain])


def _servable_by(owner: Holder, walked: list[tuple[int, int, list[int], Names]]) -> list[int]:
    """Per tier, how far all cache groups of a holder can serve a prompt; walked: (group, block_tokens, tokens by tier, names)."""
    groups = owner.groups
    depths: list[int] = []
    for tier in Tier:
        if depths and not owner.uses(tier):
            depths.append(depths[-1])
            continue
        reached = dict.fromkeys(groups.credit, 0)
        for group, _, tiers, _ in walked:
            reached[group] = max(reached[group], tiers[tier])
        has = partial(owner.has, tier=tier)
        points = [
            servable(groups, names, tiers[tier] // block_tokens, block_tokens, reached, has)
            for _, block_tokens, tiers, names in walked
        ]
        depths.append(max(points, default=0))
    return depths


class _NamesAlong:
    """The hashes of a prompt's blocks, as one holder after the other names them; looked up where they are asked for."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places

    def of(self, owner: Holder) -> Names:
        """Names by number of the block."""
        own: dict[int, tuple[int, ...]] = {}

        def names(at: int) -> tuple[int, ...]:
            if at not in own:
                own[at] = owner.names(self._places[at])
            return own[at]

        return names
