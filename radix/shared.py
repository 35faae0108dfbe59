"""The index as a worker has it: the tree of the index process, read in shared memory, and guesses of its own.

Numbers of holders are this process's own; the directory says which member of the tree each one is. What differs from `Index`:
- Guesses are local. What another worker just sent somewhere is not seen until the replica announces it.
- Of models whose sparse cache groups limit a hit, the credit is what the other groups have: an upper bound, counted in
  `upper_bounds`. Which blocks the sparse groups have is known under engine hashes only, which are not shared.
- Prompts with images are matched up to the first image that begins behind the first block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from radix.directory import Directory, SharedHolder, shared_root_key
from radix.errors import RadixError
from radix.guess import Guesses
from radix.index import GuessId, IndexStats
from radix.match import TIERS, Int32Array, Match
from radix.namespace import Namespace

if TYPE_CHECKING:
    from radix.core.shared_matcher import SharedMatcher

_MOST_PLANS = 4096  # salts make namespaces without end


@dataclass(frozen=True, slots=True)
class _Walk:
    """One root and the members to look at. root: its key; None where that depends on the prompt's first `lead` tokens."""

    namespace: bytes
    block_tokens: int
    group: int
    lead: int
    members: tuple[int, ...]
    root: Int32Array | None

    def key(self, tokens: Int32Array) -> Int32Array:
        """The root's key for a prompt."""
        if self.root is not None:
            return self.root
        return shared_root_key(self.namespace, self.block_tokens, self.group, tokens[: self.lead].tobytes())


@dataclass(slots=True)
class _Crew:
    """The holders of one model.

    plain, joint: members by cache group, of those that need one group and of those that need several. agreeing: the latter.
    mine, theirs: the numbers of all, here and in the tree; equal: they agree. limited: see `SharedHolder`.
    """

    plain: dict[int, tuple[int, ...]]
    joint: dict[int, tuple[int, ...]]
    agreeing: list[SharedHolder]
    mine: list[int]
    theirs: list[int]
    equal: bool
    limited: bool


@dataclass(slots=True)
class _Plan:
    """What a match in one namespace walks, for holders that need one group and for those that need several."""

    crew: _Crew
    walks: list[_Walk]
    joint_walks: list[_Walk]


class SharedIndex:
    """Which holder has which token prefixes, as another process knows it. Not for use from several threads."""

    def __init__(self) -> None:
        self._owners: list[tuple[str, int] | None] = []  # by number
        self._models: list[str] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self._guesses = Guesses()
        self._sizes: Int32Array | None = None
        self._matcher: SharedMatcher | None = None
        self._directory = Directory()
        self._known: dict[tuple[str, int], SharedHolder] = {}
        self._plans: dict[Namespace, _Plan] = {}
        self._crews: dict[str, _Crew] = {}  # by model
        self._wanted: tuple[int, ...] | None = None
        self._stats = IndexStats(0, 0, 0, 0, 0, 0)
        self.upper_bounds = 0  # matches

    def adopt(self, matcher: SharedMatcher, directory: Directory) -> None:
        """Read another tree from now on."""
        self._matcher, self._wanted = matcher, None
        self.learn(directory)

    def learn(self, directory: Directory) -> None:
        """The writer tells something new of the tree that is read."""
        self._directory = directory
        self._known = {(holder.replica, holder.rank): holder for holder in directory.holders}
        self._forget_plans()

    def note(self, stats: IndexStats) -> None:
        """How large the writer says that its index is."""
        self._stats = stats

    def lose(self) -> None:
        """What the tree says is too old: until another one is adopted, only guesses count."""
        self._matcher = None
        self.learn(Directory())

    @property
    def reads(self) -> bool:
        """There is a tree."""
        return self._matcher is not None

    def holder(self, replica: str, rank: int) -> int:
        """The number of a (replica, rank) in this process: the one it has, else the lowest free one."""
        found = self._numbers.get((replica, rank))
        if found is not None:
            return found
        number = next((i for i, owner in enumerate(self._owners) if owner is None), len(self._owners))
        if number == len(self._owners):
            self._owners.append(None)
            self._models.append("")
        self._owners[number], self._models[number] = (replica, rank), ""
        self._numbers[replica, rank] = number
        self._forget_plans()
        return number

    def owner(self, holder: int) -> tuple[str, int]:
        """The (replica, rank) behind a number; raises RadixError when it is not in use."""
        found = self._owners[holder] if 0 <= holder < len(self._owners) else None
        if found is None:
            raise RadixError(f"holder {holder} is not in use")
        return found

    def set_model(self, holder: int, model: str) -> None:
        """Say which model a holder serves."""
        self.owner(holder)
        self._models[holder] = model
        self._forget_plans()

    def block_tokens(self, holder: int) -> int:
        """Tokens per block as its events say; 0 until the first store."""
        known = self._known.get(self.owner(holder))
        return known.block_tokens if known is not None else 0

    def guess(self, holder: int, namespace: Namespace, tokens: Int32Array, expires_at: float) -> GuessId:
        """Credit a holder with a prompt it was just given, until `withdraw` or `expires_at`."""
        self.owner(holder)
        return GuessId(self._guesses.add(holder, namespace, _as_query(tokens), expires_at))

    def withdraw(self, guess: GuessId) -> None:
        """Take a guess back; nothing happens when it has ended already."""
        self._guesses.withdraw(guess)

    def expire(self, now: float) -> int:
        """End the guesses whose time is over; returns their number."""
        return self._guesses.expire(now)

    def clear(self, holder: int) -> int:
        """Forget the guesses of a holder; what the tree says of it is not ours to forget. Returns 0."""
        self.owner(holder)
        self._guesses.forget(holder)
        return 0

    def drop(self, holder: int) -> None:
        """Forget a holder; its number may be given to another one."""
        self.clear(holder)
        del self._numbers[self.owner(holder)]
        self._owners[holder] = None
        self._forget_plans()

    def match(self, namespace: Namespace, tokens: Int32Array, *, now: float | None = None) -> Match:
        """How many leading tokens of a prompt each holder has; guesses that end at or before `now` do not count."""
        if now is not None:
            self._guesses.expire(now)
        query = _as_query(tokens)
        depth = np.zeros((len(self._owners), TIERS), np.int32)
        guessed = np.zeros(len(self._owners), np.bool_)
        known = self._matcher is not None and self._match_known(self._matcher, namespace, query, depth)
        if len(self._guesses):
            self._guesses.credit(namespace, query.tobytes(), self._sizes_now(), depth, guessed)
        return Match(depth, guessed, known)

    def stats(self) -> IndexStats:
        """Sizes as the writer last told; the guesses are those of this process."""
        return replace(self._stats, guesses=len(self._guesses))

    def _sizes_now(self) -> Int32Array:
        """Tokens per block, int32 [holders]."""
        if self._sizes is None:
            known = [self._known.get(owner) if owner is not None else None for owner in self._owners]
            self._sizes = np.array([0 if holder is None else holder.block_tokens for holder in known], np.int32)
        return self._sizes

    def _forget_plans(self) -> None:
        """Holders, models or groups are not what they were."""
        self._sizes = None
        self._plans.clear()
        self._crews.clear()

    def _match_known(self, matcher: SharedMatcher, namespace: Namespace, tokens: Int32Array, depth: Int32Array) -> bool:
        plan = self._plans.get(namespace)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[namespace] = self._plan(namespace)
        crew = plan.crew
        out = depth if crew.equal else np.zeros((max(crew.theirs) + 1, TIERS), np.int32)
        known = True
        for walk in plan.walks:
            known &= self._follow(matcher, walk, tokens, out)
        if crew.agreeing:
            known &= self._match_joint(matcher, plan, tokens, out)
        if not crew.equal:
            depth[crew.mine] = out[crew.theirs]
        self.upper_bounds += crew.limited and bool(out.any())
        return known

    def _follow(self, matcher: SharedMatcher, walk: _Walk, tokens: Int32Array, out: Int32Array) -> bool:
        if len(tokens) < walk.lead + walk.block_tokens:
            return True
        if walk.members is not self._wanted:
            matcher.want(walk.members)
            self._wanted = walk.members
        behind = tokens[walk.lead :] if walk.lead else tokens
        return matcher.depths_by_key(walk.key(tokens), walk.block_tokens, behind, out)

    def _match_joint(self, matcher: SharedMatcher, plan: _Plan, tokens: Int32Array, out: Int32Array) -> bool:
        """Holders of which several groups keep everything: a hit ends where all of them have the end of a block."""
        reached: dict[int, Int32Array] = {}
        known = True
        for walk in plan.joint_walks:
            known &= self._follow(matcher, walk, tokens, reached.setdefault(walk.group, np.zeros_like(out)))
        nothing = np.zeros(TIERS, np.int32)
        for holder in plan.crew.agreeing:
            rows = [reached[group][holder.number] if group in reached else nothing for group in holder.credit]
            common = np.minimum.reduce(rows)
            out[holder.number] = common - common % max(lcm(*holder.sizes), 1)
        return known

    def _plan(self, namespace: Namespace) -> _Plan:
        crew = self._crews.get(namespace.model)
        if crew is None:
            crew = self._crews[namespace.model] = self._crew(namespace.model)
        key = namespace.without_model().key()
        return _Plan(crew, self._walks(key, crew.plain), self._walks(key, crew.joint))

    def _crew(self, model: str) -> _Crew:
        pairs = [
            (number, self._known[owner])
            for number, owner in enumerate(self._owners)
            if owner in self._known and self._models[number] == model
        ]
        pairs = [(number, holder) for number, holder in pairs if holder.credit]
        mine, theirs = [number for number, _ in pairs], [holder.number for _, holder in pairs]
        plain = [holder for _, holder in pairs if not holder.joint]
        joint = [holder for _, holder in pairs if holder.joint]
        limited = any(holder.limited for _, holder in pairs)
        return _Crew(_by_group(plain), _by_group(joint), joint, mine, theirs, mine == theirs, limited)

    def _walks(self, namespace: bytes, members: dict[int, tuple[int, ...]]) -> list[_Walk]:
        """Through every root there may be of the groups that somebody is credited for."""
        walks = []
        for block_tokens, group, lead in self._directory.shapes:
            if group in members:
                root = None if lead else shared_root_key(namespace, block_tokens, group, b"")
                walks.append(_Walk(namespace, block_tokens, group, lead, members[group], root))
        return walks


def _by_group(holders: list[SharedHolder]) -> dict[int, tuple[int, ...]]:
    groups = {group for holder in holders for group in holder.credit}
    return {group: tuple([holder.number for holder in holders if group in holder.credit]) for group in groups}


def _as_query(tokens: Int32Array) -> Int32Array:
    return np.ascontiguousarray(tokens, np.int32)
