"""The index as dictionaries: slow, obvious, and compared with the real one after every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from radix.changes import Applied, Cleared, Event, NamespaceHint, Removed, Stored

Path = tuple[tuple[int, ...], ...]  # the tokens of each block, from the prompt's start
Hint = tuple[str | None, str | None, tuple[bytes, ...]]
Place = tuple[Hint, int, Path]  # namespace without model, block_tokens, path
Key = tuple[int, int, int]  # tier, group, hash


@dataclass
class Waiting:
    """One block without a known parent."""

    parent: int
    tokens: tuple[int, ...]
    grain: int
    media: tuple[bytes, ...]
    copies: int = 1


@dataclass
class View:
    """What one holder has. places: hash -> where, per tier and group; counts: copies of it."""

    counting: bool = True
    places: dict[Key, Place] = field(default_factory=dict)
    counts: dict[Key, int] = field(default_factory=dict)
    waiting: dict[Key, Waiting] = field(default_factory=dict)
    grain: int = 0

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
        self.places, self.counts, self.waiting = {}, {}, {}

    def paths(self, tier: int) -> set[Place]:
        """Places of the main group on this tier or a faster one."""
        return {place for (at, group, _), place in self.places.items() if at <= tier and group == 0}

    def depth(self, hint: Hint, prompt: tuple[int, ...], tier: int) -> int:
        """Leading tokens of a prompt that are held without a hole."""
        paths = self.paths(tier)
        best = 0
        for grain in {grain for _, grain, _ in paths}:
            blocks = tuple(prompt[i : i + grain] for i in range(0, len(prompt) - grain + 1, grain))
            whole = 0
            while whole < len(blocks) and (hint, grain, blocks[: whole + 1]) in paths:
                whole += 1
            best = max(best, whole * grain)
        return best

    def _find(self, group: int, block_hash: int) -> Place | None:
        found = (self.places.get((tier, group, block_hash)) for tier in range(4))
        return next((place for place in found if place is not None), None)

    def _store(self, event: Stored, applied: Applied) -> None:
        if not event.hashes:
            return
        grain = event.block_tokens
        whole = len(event.tokens) // grain if grain > 0 else 0
        hashes = event.hashes
        if not whole or whole > len(hashes) or len(set(hashes)) < len(hashes) or event.parent in hashes:
            applied.skipped += 1
            return
        applied.skipped += whole < len(hashes)
        tokens = event.tokens.tolist()
        blocks = [tuple(tokens[i * grain : (i + 1) * grain]) for i in range(whole)]
        hint = (event.namespace_hint.adapter, event.namespace_hint.salt, event.namespace_hint.media)
        base: Place | None = (hint, grain, ())
        if event.parent is not None:
            base = self._find(event.group, event.parent)
            if base is None:
                self._wait(event, blocks, applied)
                return
            if base[1] != grain or not set(hint[2]) <= set(base[0][2]):
                applied.skipped += 1
                return
        self._place(int(event.tier), event.group, hashes[:whole], blocks, base, applied)
        if event.group == 0:
            self.grain = grain
        self._adopt(event.group, list(hashes[:whole]), applied)

    def _place(
        self, tier: int, group: int, hashes: tuple[int, ...], blocks: list[tuple[int, ...]], base: Place, applied: Applied
    ) -> None:
        hint, grain, path = base
        for block_hash, block in zip(hashes, blocks, strict=True):
            path = (*path, block)
            key = (tier, group, block_hash)
            known = self.places.get(key)
            if known is not None and known != (hint, grain, path):
                applied.skipped += 1
                return
            if known is None:
                self.places[key], self.counts[key] = (hint, grain, path), 1
                applied.stored += 1
            elif self.counting:
                self.counts[key] += 1

    def _wait(self, event: Stored, blocks: list[tuple[int, ...]], applied: Applied) -> None:
        parent = event.parent
        assert parent is not None
        for block_hash, block in zip(event.hashes, blocks, strict=False):
            key = (int(event.tier), event.group, block_hash)
            if key not in self.waiting:
                self.waiting[key] = Waiting(parent, block, event.block_tokens, event.namespace_hint.media)
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
                if base[1] != orphan.grain or not set(orphan.media) <= set(base[0][2]):
                    applied.skipped += 1
                    continue
                for _ in range(orphan.copies):
                    self._place(key[0], group, (key[2],), [orphan.tokens], base, applied)
                arrived.append(key[2])

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
        else:
            applied.unknown += 1


def hint_of(hint: Hint) -> NamespaceHint:
    """The hint an event carries for a namespace."""
    return NamespaceHint(*hint)
