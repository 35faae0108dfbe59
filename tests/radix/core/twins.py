"""The compiled tree and the plain one side by side: the same operations, and every answer compared."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from radix.core import layout as lay
from radix.core.compiled import CompiledTree, as_hashes
from radix.ledger import PlainLedger
from radix.match import TIERS
from radix.namespace import Namespace
from radix.plain import PlainTree
from radix.tree import Members, RootKey
from tests.radix.core.memory_check import check_memory, header

Path = tuple[int, ...]  # block letters from the prompt's start
LETTERS = 6


class Twins:
    """Some holders with ledgers under one root, in both trees. Blocks are letters; half of them differ in the last token only."""

    def __init__(
        self, tree: CompiledTree, plain: PlainTree, chance: random.Random, grain: int, members: list[tuple[int, int]]
    ) -> None:
        """members: (holder, tier) of each ledger."""
        self.tree, self.plain, self.chance, self.grain = tree, plain, chance, grain
        self.key = chance.randbytes(8)
        self.namespace = Namespace(self.key.hex())
        self.members = members
        self.counting = chance.random() < 0.6
        self.ledgers = [tree.open(holder, tier, counting=self.counting) for holder, tier in members]
        self.twins: list[PlainLedger] = [plain.ledger(holder, tier, counting=self.counting) for holder, tier in members]
        self.places: list[dict[int, Path]] = [{} for _ in members]
        self.copies: list[Counter[int]] = [Counter() for _ in members]
        self.salt = chance.getrandbits(64)
        rows = [[chance.randrange(5) for _ in range(grain)] for _ in range(LETTERS)]
        for letter in range(1, LETTERS):
            if chance.random() < 0.5:
                rows[letter] = list(rows[letter - 1])
            rows[letter][-1] = 10 + letter
        self.letters = np.array(rows, np.int32)
        self.holders = max(holder for holder, _ in members) + 1
        self.all_holders = Members(range(self.holders))

    def tokens(self, path: Path) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The tokens of a path."""
        return self.letters[list(path)].reshape(-1) if path else np.zeros(0, np.int32)

    def name(self, at: int, path: Path, variant: int = 0) -> int:
        """The engine's hash of a block."""
        return hash((self.salt, at, path, variant)) % (1 << 64)

    def step(self) -> None:
        """One random operation on both, and whatever it answers compared."""
        at = self.chance.randrange(len(self.members))
        luck = self.chance.random()
        if luck < 0.45:
            self._store(at)
        elif luck < 0.75:
            self._remove(at)
        elif luck < 0.753:
            self.clear(at)
        else:
            self._match()

    def _any_path(self) -> Path:
        places = self.places[self.chance.randrange(len(self.places))]
        return self.chance.choice(list(places.values())) if places else ()

    def _store(self, at: int) -> None:
        chance = self.chance
        places = self.places[at]
        parent = chance.choice(list(places)) if places and chance.random() < 0.6 else None
        start = places[parent] if parent is not None else ()
        wanted = chance.choice((1, 1, 1, 2, 3, 8, 20))
        other = self._any_path()
        path = list(other[len(start) : len(start) + wanted]) if chance.random() < 0.5 and other[: len(start)] == start else []
        path += [chance.randrange(LETTERS) for _ in range(wanted - len(path))]
        if len(start) + wanted > 60:
            return
        paths = [(*start, *path[: i + 1]) for i in range(wanted)]
        variant = 1 if chance.random() < 0.05 else 0
        hashes = [self.name(at, each, variant) for each in paths]
        if chance.random() < 0.03 and places:
            hashes[chance.randrange(wanted)] = chance.choice(list(places))  # mostly the name of another place
        if len(set(hashes)) < wanted or parent in hashes:
            return
        self._store_both(at, parent, hashes, paths, tuple(path))

    def _store_both(self, at: int, parent: int | None, hashes: list[int], paths: list[Path], path: Path) -> None:
        tokens = self.tokens(path)
        root = self.plain.root(self.namespace, RootKey(self.grain, 0))
        above = self.twins[at].blocks[parent] if parent is not None else None
        expected = self.twins[at].store(root, above, hashes, tokens.tobytes())
        named = (self.ledgers[at], parent) if parent is not None else None
        answer = self.tree.store(self.ledgers[at], self.root(), self.grain, as_hashes(hashes), tokens, named)
        assert answer is not None
        assert (answer.new, answer.rejected) == (expected.new, expected.rejected)
        for block_hash, place in list(zip(hashes, paths, strict=True))[: len(hashes) - expected.rejected]:
            self.places[at].setdefault(block_hash, place)
            self.copies[at][block_hash] = self.copies[at][block_hash] + 1 if self.counting else 1

    def root(self) -> int:
        """The compiled root, made when it was dropped."""
        return self.tree.root(self.key, self.grain)

    def _remove(self, at: int) -> None:
        chance = self.chance
        places = self.places[at]
        if not places:
            return
        kind = chance.random()
        if kind < 0.5:  # a run from the tail, in either direction
            path = chance.choice(list(places.values()))
            hashes = [self.name(at, path[: len(path) - i]) for i in range(min(len(path), chance.randrange(1, 6)))]
            if chance.random() < 0.3:
                hashes.reverse()
        else:
            hashes = [chance.choice(list(places)) for _ in range(1 if kind < 0.8 else chance.randrange(1, 10))]
        if chance.random() < 0.1:
            hashes.insert(chance.randrange(len(hashes) + 1), chance.getrandbits(64))
        removed, unknown = self.twins[at].remove(hashes)
        answer = self.tree.remove(self.ledgers[at], as_hashes(hashes))
        assert (answer[0], [hashes[i] for i in answer[1]]) == (removed, unknown)
        for block_hash in hashes:
            if block_hash in places:
                self.copies[at][block_hash] -= 1
                if not self.copies[at][block_hash]:
                    del places[block_hash]

    def clear(self, at: int) -> None:
        """Clear one ledger on both sides."""
        assert self.tree.clear(self.ledgers[at]) == self.twins[at].clear() == len(self.places[at])
        self.places[at] = {}
        self.copies[at].clear()

    def names_left(self, at: int) -> set[int]:
        """The hashes that the compiled ledger has."""
        return {handle.hash for handle in self.tree.handles(self.ledgers[at])}

    def lose(self, at: int, lost: set[int]) -> None:
        """Tell the plain side that these were evicted: all copies of each, and all that was behind it."""
        places = self.places[at]
        paths = {places[name] for name in lost}
        assert lost == {name for name, path in places.items() if any(path[:end] in paths for end in range(1, len(path) + 1))}
        for name in lost:
            removed, unknown = self.twins[at].remove([name] * self.copies[at][name])
            assert (removed, list(unknown)) == (1, [])
            del places[name], self.copies[at][name]

    def _match(self) -> None:
        path = self._any_path()
        if self.chance.random() < 0.5:
            path = path[: self.chance.randrange(len(path) + 1)]
        path += tuple(self.chance.randrange(LETTERS) for _ in range(self.chance.randrange(3)))
        tokens = np.append(self.tokens(path), np.int32(-1)) if self.chance.random() < 0.3 else self.tokens(path)
        seen = np.zeros((self.holders, TIERS), np.int32)
        root = self.tree.root(self.key, self.grain, make=False)
        if root:
            assert self.tree.matcher.depths(root, self.grain, tokens, seen)
        assert seen.tolist() == self._expected(path).tolist()
        if root:
            self._check_best(root, tokens, seen)
        theirs = np.zeros_like(seen)
        for plain_root in self.plain.roots_of(self.namespace.key()):
            self.plain.depths(plain_root, tokens, self.all_holders, theirs)
        assert theirs.tolist() == seen.tolist()

    def _expected(self, path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """What dictionaries say."""
        depths = np.zeros((self.holders, TIERS), np.int32)
        for holder in {holder for holder, _ in self.members}:
            for tier in range(TIERS):
                ledgers = [at for at, (who, where) in enumerate(self.members) if who == holder and where <= tier]
                held = {place for at in ledgers for place in self.places[at].values()}
                depth = 0
                while depth < len(path) and path[: depth + 1] in held:
                    depth += 1
                depths[holder, tier] = depth * self.grain
        return depths

    def _check_best(
        self, root: int, tokens: np.ndarray[tuple[int], np.dtype[np.int32]], seen: np.ndarray[tuple[int, int], np.dtype[np.int32]]
    ) -> None:
        best = self.tree.matcher.best(root, self.grain, tokens)
        assert best is not None
        deepest = int(seen.max())
        assert best[1] * self.grain == deepest
        assert best[0] == (int((seen.max(axis=1) == deepest).argmax()) if deepest else -1)
        fast = {holder: int(depth) // self.grain for holder, depth in enumerate(seen[:, 0]) if depth}
        assert self.tree.matcher.holders(root, self.grain, tokens) == fast


def evict_both(sides: list[Twins], keep: float) -> None:
    """Evict down to a part of what is in use, and let the plain trees and the dictionaries follow."""
    tree = sides[0].tree
    before = {(side, at): side.names_left(at) for side in sides for at in range(len(side.members))}
    target = int(tree.bytes_used * keep)
    used = tree.bytes_used
    evicted = tree.evict(target)
    assert tree.bytes_used <= target or tree.sizes().blocks == 0
    assert evicted.bytes == used - tree.bytes_used
    for (side, at), names in before.items():
        lost = names - side.names_left(at)
        assert evicted.dropped.get(side.ledgers[at], 0) == len(lost)
        side.lose(at, lost)


def compare_shapes(tree: CompiledTree, plain: PlainTree, sides: list[Twins]) -> None:
    """Node for node the same tree, and the compiled one's memory in order."""
    nodes = check_memory(tree)
    roots = sum(node.root == number for number, node in nodes.items())
    assert len(nodes) - roots == plain.nodes, (len(nodes), roots, plain.nodes)
    sizes = tree.sizes()
    assert sizes.blocks == plain.blocks
    assert sizes.handles == sum(len(ledger.blocks) for side in sides for ledger in side.twins)
    assert sizes.shares == sum(sum(ledger._shared.values()) for side in sides for ledger in side.twins)
    for side in sides:
        for at, ledger in enumerate(side.ledgers):
            copies = {handle.hash: handle.copies for handle in tree.handles(ledger)}
            assert copies == {name: side.twins[at].copies(name) for name in side.twins[at].blocks}


def assert_gone(tree: CompiledTree) -> None:
    """After everything was cleared: every counter at zero, all memory given back but the tables' own."""
    check_memory(tree)
    sizes = tree.sizes()
    assert (sizes.nodes, sizes.stubs, sizes.blocks, sizes.handles, sizes.shares) == (0, 0, 0, 0, 0)
    tables = sum((header(tree.memory, field) & 0xFFFFFFFF) // 4 for field in (lay.CHILDREN_TABLE, lay.SHARES_TABLE))
    assert header(tree.memory, lay.ARENA_USED) == tables
