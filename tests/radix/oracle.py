"""The index as dictionaries: slow, obvious, and compared with the real one after every step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, lcm

from radix.changes import Applied, Cleared, Event, GroupKind, NamespaceHint, Removed, Stored

Hint = tuple[str | None, str | None, tuple[bytes, ...]]
Path = tuple[tuple[tuple[bytes, ...], tuple[int, ...]], ...]  # images so far and tokens of each block, from the prompt's start
Key = tuple[int, int, int]  # tier, group, hash

_SPARSE = (GroupKind.WINDOW, GroupKind.CHUNK, GroupKind.STATE)


@dataclass(frozen=True)
class Place:
    """Where a block lies. lead: tokens before the path; its blocks then end with tokens behind them."""

    adapter: str | None
    salt: str | None
    grain: int
    lead: tuple[int, ...] = ()
    path: Path = ()

    def prefix(self, blocks: int) -> Place:
        """The place of an earlier block."""
        return Place(self.adapter, self.salt, self.grain, self.lead, self.path[:blocks])

    def then(self, block: tuple[int, ...], media: tuple[bytes, ...]) -> Place:
        """The place of the next block, which touches these images."""
        seen = self.path[-1][0] if self.path else ()
        seen += tuple(image for image in dict.fromkeys(media) if image not in seen)
        return Place(self.adapter, self.salt, self.grain, self.lead, (*self.path, (seen, block)))

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of them, the lead's too."""
        return self.lead + tuple(token for _, block in self.path for token in block)

    @property
    def hint(self) -> Hint:
        """The namespace of its last block."""
        return self.adapter, self.salt, self.path[-1][0] if self.path else ()


@dataclass
class Waiting:
    """One block without a known parent."""

    parent: int
    tokens: tuple[int, ...]
    grain: int
    media: tuple[bytes, ...]
    lead: int
    copies: int = 1


@dataclass
class View:
    """What one holder has. places: hash -> where, per tier and group; counts: copies of it; loose: those without a place."""

    counting: bool = True
    places: dict[Key, Place] = field(default_factory=dict)
    counts: dict[Key, int] = field(default_factory=dict)
    waiting: dict[Key, Waiting] = field(default_factory=dict)
    loose: dict[Key, int] = field(default_factory=dict)
    kinds: dict[int, tuple[GroupKind, int]] = field(default_factory=dict)  # by group, with the window
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)  # by group and tier

    def apply(self, events: tuple[Event, ...]) -> Applied:
        """The same rules as `Index.apply`, one block at a time."""
        applied = Applied()
        for event in events:
            match event:
                case Stored():
                    self._store(event, applied)
                case Removed():
                    for block_hash in event.hashes:
                        self._remove((int(event.tier), event.group, block_hash), applied)
                case Cleared():
                    applied.removed += len(self.places)
                    self.clear()
        return applied

    def clear(self) -> None:
        """Forget everything."""
        self.__init__(self.counting)  # type: ignore[misc]

    def grain_of(self, group: int) -> int:
        """Tokens per block of a group."""
        sizes = [size for (of, _), size in self.sizes.items() if of == group]
        return self.sizes.get((group, 0), 0) or max(sizes, default=0)

    def credit(self) -> list[int]:
        """The groups that are matched: those with everything, else those that say nothing, else the first with something."""
        for wanted in ((GroupKind.FULL,), (GroupKind.UNSTATED,)):
            found = [group for group, (kind, _) in self.kinds.items() if kind in wanted]
            if found:
                return found
        return sorted(group for group, (kind, _) in self.kinds.items() if kind in _SPARSE)[:1]

    def depth(self, hint: Hint, prompt: tuple[int, ...], tier: int) -> int:
        """Leading tokens of a prompt that can be served."""
        credit = self.credit()
        joint = any(self.kinds[group][0] is GroupKind.FULL for group in credit)
        limits = [group for group, (kind, _) in self.kinds.items() if kind in _SPARSE and group not in credit]
        ends = {group: self._ends(group, hint, prompt, tier) for group in credit}
        deepest = {group: max((len(end.path) * end.grain for end in found), default=0) for group, found in ends.items()}
        if not limits and len(credit) < 2:
            return max(deepest.values(), default=0)
        best = 0
        for end in (end for found in ends.values() for end in found):
            for blocks in range(1, len(end.path) + 1):
                at = blocks * end.grain
                if joint and any(at > deepest[group] or at % self.grain_of(group) for group in credit):
                    continue
                if all(self._can_go_on(group, end.prefix(blocks), tier) for group in limits):
                    best = max(best, at)
        return best

    def _ends(self, group: int, hint: Hint, prompt: tuple[int, ...], tier: int) -> list[Place]:
        """Every place on the prompt's way that this group holds without a hole, and that saw exactly the prompt's images."""
        held = {place for (at, of, _), place in self.places.items() if at <= tier and of == group}
        return [
            place
            for place in held
            if place.hint == hint
            and prompt[: len(place.tokens)] == place.tokens
            and all(place.prefix(i) in held for i in range(1, len(place.path)))
        ]

    def _can_go_on(self, group: int, place: Place, tier: int) -> bool:
        kind, window = self.kinds[group]
        step = lcm(place.grain, self.grain_of(group) or place.grain)
        at = len(place.path) * place.grain
        if at % step:
            return False
        if kind is GroupKind.CHUNK and window:
            wanted = range(at, at - at % window, -step)
        else:
            blocks = ceil((window - 1) / step) if kind is not GroupKind.STATE and window > 1 else 1
            wanted = range(at, max(at - blocks * step, 0), -step)
        return all(self._present(group, place.prefix(end // place.grain), tier) for end in wanted)

    def _present(self, group: int, place: Place, tier: int) -> bool:
        credit = self.credit()
        names = {block_hash for (_, of, block_hash), at in self.places.items() if of in credit and at == place}
        there = [*self.places, *self.waiting, *self.loose]
        return any(of == group and at <= tier and block_hash in names for at, of, block_hash in there)

    def _find(self, group: int, block_hash: int) -> Place | None:
        found = (self.places.get((tier, group, block_hash)) for tier in range(4))
        return next((place for place in found if place is not None), None)

    def _sparse(self, group: int) -> bool:
        return self.kinds[group][0] in (*_SPARSE, GroupKind.NOTHING)

    def _store(self, event: Stored, applied: Applied) -> None:
        if event.group not in self.kinds or event.kind not in (GroupKind.UNSTATED, self.kinds[event.group][0]):
            self.kinds[event.group] = event.kind, event.window_tokens
        hashes, tier, group = event.hashes, int(event.tier), event.group
        if len(set(hashes)) < len(hashes) or event.parent in hashes:
            applied.skipped += 1
            return
        if not len(event.tokens):
            for block_hash in hashes:
                self._hold((tier, group, block_hash), applied)
            return
        sparse = self._sparse(group)
        if sparse:
            self._resize(group, tier, event.block_tokens)
        whole = len(event.tokens) // event.block_tokens if event.block_tokens else 0
        if whole > len(hashes) or (sparse and any(kind is GroupKind.FULL for kind, _ in self.kinds.values())):
            whole = 0
        placed = self._settle(event, whole, applied) if whole else 0
        applied.skipped += placed < len(hashes) and not sparse
        for block_hash in hashes[placed:]:
            self._loosen((tier, group, block_hash))

    def _settle(self, event: Stored, whole: int, applied: Applied) -> int:
        grain, tier, group = event.block_tokens, int(event.tier), event.group
        if grain < self.sizes.get((group, tier), 0):
            return 0
        tokens = event.tokens.tolist()
        blocks = [tuple(tokens[i * grain : (i + 1) * grain]) for i in range(whole)]
        hint = event.namespace_hint
        base: Place | None = Place(hint.adapter, hint.salt, grain, event.lead)
        if event.parent is not None:
            base = self._find(group, event.parent)
            if base is None:
                if self._sparse(group):
                    return 0
                # Only up to the first that has a place: those behind it are placed.
                waiting = next((i + 1 for i in range(whole) if self._find(group, event.hashes[i]) is not None), whole)
                self._wait(event, blocks[:waiting], applied)
                if waiting == whole:
                    return whole
                hashes, rest = event.hashes[waiting:], event.tokens[waiting * grain :]
                behind = replace(event, hashes=hashes, parent=event.hashes[waiting - 1], tokens=rest)
                return waiting + self._settle(behind, whole - waiting, applied)
            if base.grain != grain or len(base.lead) != len(event.lead):
                return 0
        assert base is not None
        self._resize(group, tier, grain)
        hashes = event.hashes[:whole]
        for media, block_hash, block in zip([hint.media] + [()] * whole, hashes, blocks, strict=False):
            base = base.then(block, media)
            if not self._place((tier, group, block_hash), base, applied):
                break
        for block_hash in hashes:
            self._take_in(group, block_hash, applied)
        self._adopt(group, list(hashes), applied)
        return whole

    def _place(self, key: Key, place: Place, applied: Applied) -> bool:
        known = self.places.get(key)
        if known is not None and known != place:
            applied.skipped += 1
            return False
        if known is None:
            self.places[key], self.counts[key] = place, 1
            applied.stored += 1
        elif self.counting:
            self.counts[key] += 1
        return True

    def _hold(self, key: Key, applied: Applied) -> None:
        place = self._find(key[1], key[2])
        if place is None:
            self._loosen(key)
        elif self.places.get(key) in (None, place):
            self._place(key, place, applied)

    def _loosen(self, key: Key) -> None:
        self.loose[key] = self.loose.get(key, 0) + 1 if self.counting else 1

    def _take_in(self, group: int, block_hash: int, applied: Applied) -> None:
        if self._find(group, block_hash) is None:
            return
        for key in [key for key in self.loose if key[1:] == (group, block_hash)]:
            for _ in range(self.loose.pop(key)):
                self._hold(key, applied)

    def _resize(self, group: int, tier: int, grain: int) -> None:
        self.sizes[group, tier] = max(self.sizes.get((group, tier), 0), grain)

    def _wait(self, event: Stored, blocks: list[tuple[int, ...]], applied: Applied) -> None:
        parent = event.parent
        assert parent is not None
        for block_hash, block in zip(event.hashes, blocks, strict=False):
            key = (int(event.tier), event.group, block_hash)
            if key not in self.waiting:
                media = event.namespace_hint.media
                self.waiting[key] = Waiting(parent, block, event.block_tokens, media, len(event.lead))
                applied.orphans += 1
            elif self.counting:
                self.waiting[key].copies += 1
            parent = block_hash

    def _adopt(self, group: int, arrived: list[int], applied: Applied) -> None:
        while arrived:
            parent = arrived.pop()
            base = self._find(group, parent)
            if base is None:
                continue
            for key in [key for key, orphan in self.waiting.items() if orphan.parent == parent and key[1] == group]:
                orphan = self.waiting.pop(key)
                arrived.append(key[2])
                if base.grain != orphan.grain or len(base.lead) != orphan.lead:
                    applied.skipped += 1
                    for _ in range(orphan.copies):
                        self._loosen(key)
                    continue
                for _ in range(orphan.copies):
                    self._place(key, base.then(orphan.tokens, orphan.media), applied)
                self._take_in(group, key[2], applied)

    def _remove(self, key: Key, applied: Applied) -> None:
        if key in self.places:
            self.counts[key] -= 1
            if not self.counting or self.counts[key] == 0:
                del self.places[key], self.counts[key]
                applied.removed += 1
        elif key in self.waiting:
            self.waiting[key].copies -= 1
            if not self.counting or self.waiting[key].copies == 0:
                del self.waiting[key]
        elif key in self.loose:
            self.loose[key] -= 1
            if self.loose[key] == 0:
                del self.loose[key]
        else:
            applied.unknown += 1


def hint_of(hint: Hint) -> NamespaceHint:
    """The hint an event carries for a namespace."""
    return NamespaceHint(*hint)
