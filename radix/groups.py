"""Hybrid models: several cache groups keep different things of one prompt, and a hit may only end where all of them can go on.

Which groups make credit and which only limit it follows from what their stores say. Where nothing is said (older engines), every
group is taken for full attention and the longest one counts: an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import lcm

from radix.changes import GroupKind, Stored, Tier

_SPARSE = (GroupKind.WINDOW, GroupKind.CHUNK, GroupKind.STATE)
Has = Callable[[int, int], bool]  # (group, hash): it is there
Names = Callable[[int], Iterable[int]]  # the hashes of a prompt's nth block


@dataclass(slots=True)
class Group:
    """One cache group of a holder. sizes: tokens of the largest block that was stored on each tier."""

    kind: GroupKind = GroupKind.UNSTATED
    window_tokens: int = 0
    sizes: dict[Tier, int] = field(default_factory=dict)

    @property
    def block_tokens(self) -> int:
        """Tokens per block; 0 until a store said it."""
        return self.sizes.get(Tier.DEVICE) or max(self.sizes.values(), default=0)

    def resize(self, tier: Tier, block_tokens: int) -> bool:
        """A block of this size was stored; True when `block_tokens` is another one now."""
        if self.sizes.get(tier, 0) >= block_tokens:
            return False
        before = self.block_tokens
        self.sizes[tier] = block_tokens
        return self.block_tokens != before


@dataclass(slots=True)
class Groups:
    """The cache groups of one holder and their parts.

    credit: groups whose blocks are matched with prompts. joint: all of them must have a hit, else one is enough. limits: those
    that must have what the hit's end needs.
    """

    known: dict[int, Group] = field(default_factory=dict)
    credit: tuple[int, ...] = ()
    joint: bool = False
    limits: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """The longest match of any credit group is the answer."""
        return not self.limits and (not self.joint or len(self.credit) == 1)

    @property
    def has_full(self) -> bool:
        """A group is known that keeps everything."""
        return self.joint

    @property
    def block_tokens(self) -> int:
        """Tokens per block of what makes credit; 0 while unknown."""
        return max((self.known[group].block_tokens for group in self.credit), default=0)

    def learn(self, event: Stored) -> bool:
        """Take in what a store says about its group; True when the parts changed."""
        group = self.known.get(event.group)
        if group is None:
            group = self.known[event.group] = Group()
        elif event.kind in (GroupKind.UNSTATED, group.kind):  # offload tiers and removals do not repeat it
            return False
        group.kind, group.window_tokens = event.kind, event.window_tokens
        before = (self.credit, self.joint, self.limits)
        self._assign()
        return (self.credit, self.joint, self.limits) != before

    def shape(self) -> tuple[tuple[object, ...], ...]:
        """Equal for holders whose groups are alike."""
        return tuple(
            [(number, group.kind, group.window_tokens, group.block_tokens) for number, group in sorted(self.known.items())]
        )

    def sparse(self, group: int) -> bool:
        """Whether a group keeps less than every block."""
        known = self.known.get(group)
        return known is not None and known.kind in (*_SPARSE, GroupKind.NOTHING)

    def _assign(self) -> None:
        by_kind: dict[GroupKind, list[int]] = {}
        for number, group in sorted(self.known.items()):
            by_kind.setdefault(group.kind, []).append(number)
        sparse = sorted(number for kind in _SPARSE for number in by_kind.get(kind, ()))
        full = by_kind.get(GroupKind.FULL, [])
        # A model of windows only: one of them stands for the prefix, and credits it as long as nothing slid out.
        credit = full or by_kind.get(GroupKind.UNSTATED, []) or sparse[:1]
        self.credit, self.joint = tuple(credit), bool(full)
        self.limits = tuple([number for number in sparse if number not in credit])


def servable(groups: Groups, names: Names, blocks: int, block_tokens: int, depth: dict[int, int], has: Has) -> int:
    """The deepest point, in tokens, where every group has what it needs; usually one of the first that are tried.

    blocks: of the prompt that are held, of `block_tokens` tokens each. depth: tokens matched in each credit group. has: of the
    limiting groups.
    """
    limits = [_Presence(Limit(number, groups.known[number], block_tokens), names, block_tokens, has) for number in groups.limits]
    deepest = (min if groups.joint else max)(depth.values(), default=0)
    sizes = [groups.known[number].block_tokens or 1 for number in groups.credit] if groups.joint else []
    for block in range(min(blocks, deepest // block_tokens), 0, -1):
        end = block * block_tokens
        if not any(end % size for size in sizes) and all(limit.met(end) for limit in limits):
            return end
    return 0


class Limit:
    """What one group needs for a hit to end somewhere, among blocks of `block_tokens`."""

    __slots__ = ("_kind", "_window", "number", "step")

    def __init__(self, number: int, group: Group, block_tokens: int) -> None:
        self.number = number
        self._kind = group.kind
        self._window = group.window_tokens
        # Where both groups have the end of a block, and so a common hash.
        self.step = lcm(block_tokens, group.block_tokens or block_tokens)

    def needed(self, end: int) -> int:
        """Ends in a row that have to be there, this one included. end: tokens from the prompt's start, a multiple of `step`."""
        if self._kind is GroupKind.STATE:
            return 1
        if self._kind is GroupKind.CHUNK and self._window:
            return -(-(end % self._window) // self.step)
        return min(-(-(self._window - 1) // self.step) if self._window > 1 else 1, end // self.step)


class _Presence:
    """Whether one group of one holder can go on at the ends of a prompt's blocks."""

    def __init__(self, limit: Limit, names: Names, block_tokens: int, has: Has) -> None:
        self._limit = limit
        self._names = names
        self._block_tokens = block_tokens
        self._has = has
        self._there: dict[int, bool] = {}

    def met(self, end: int) -> bool:
        """end: tokens from the prompt's start, the end of a block."""
        step = self._limit.step
        if end % step:
            return False
        return all(self._is_there(end - back * step) for back in range(self._limit.needed(end)))

    def _is_there(self, end: int) -> bool:
        known = self._there.get(end)
        if known is None:
            names = self._names(end // self._block_tokens - 1)
            known = self._there[end] = any(self._has(self._limit.number, name) for name in names)
        return known
