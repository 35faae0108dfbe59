"""The token tree in flat memory, for the index: what `plain` does with objects, done by the compiled code of `radix.core`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import overload

import numpy as np

from radix.core.compiled import CompiledTree
from radix.core.layout import ARENA, ARENA_UNITS, LENGTH, NODE_REGION, NODES, OFFSET, PARENT, PLACE, ROOT, SLACK_BITS, UNIT_WORDS
from radix.flat_ledger import FlatLedger
from radix.match import Int32Array
from radix.namespace import Namespace
from radix.roots import Roots, identity_of
from radix.spot import FlatRoot, Spot
from radix.tree import TOKEN_BYTES, Members, RootKey, TreeSizes, path_of


class FlatTree:
    """All roots and what hangs below them, over one `CompiledTree`."""

    def __init__(self, compiled: CompiledTree) -> None:
        self.compiled = compiled
        self.roots: Roots[FlatRoot] = Roots()
        self.shapes: set[tuple[int, int, int]] = set()  # block tokens, group and leading tokens of all roots ever made
        self.largest_block = 16  # tokens, of all roots ever made; no less, as a small block costs more than its tokens
        self.leads = 0  # roots whose blocks depend on tokens behind them
        self._by_number: dict[int, FlatRoot] = {}
        self._wanted: Members | None = None
        self._nodes = compiled.memory.halves(NODES, NODE_REGION >> 2)
        self._arena = compiled.memory.halves(ARENA, ARENA_UNITS * UNIT_WORDS)

    def roots_of(self, namespace: bytes) -> tuple[FlatRoot, ...]:
        """The roots of one namespace: the block sizes and groups that are present."""
        return self.roots.of(namespace)

    def root(self, namespace: Namespace, key: RootKey) -> FlatRoot:
        """A root of a namespace, made when missing; raises RadixError when the index is full."""
        found = self.roots.find(namespace.key(), key)
        if found is not None:
            return found
        if key.before is None:
            self.shapes.add((key.block_tokens, key.group, len(key.lead) // TOKEN_BYTES))
        self.largest_block = max(self.largest_block, key.block_tokens)
        number = self.compiled.root(identity_of(namespace.key(), key), key.block_tokens)
        self._by_number[number] = FlatRoot(namespace, key, key.block_tokens, key.group, number)
        self.leads += bool(key.lead)
        return self.roots.add(self._by_number[number])

    def branch(self, parent: Spot, namespace: Namespace) -> FlatRoot:
        """The root of what follows `parent` in another namespace."""
        before = (parent.root.namespace.key(), parent.root.key_in_namespace)
        return self.root(namespace, parent.root.key_in_namespace._replace(before=before, prefix=path_of(self, parent)))

    def ledger(self, holder: int, tier: int, *, counting: bool) -> FlatLedger:
        """An empty ledger of a holder."""
        return FlatLedger(self, holder, tier, counting=counting)

    def depths(self, root: FlatRoot, tokens: Int32Array, members: Members, out: Int32Array) -> bool:
        """Raise `out` [holders, TIERS] to the matched tokens; False when the tree was too busy changing."""
        if members is not self._wanted:
            self.compiled.matcher.want(members.holders)
            self._wanted = members
        key = root.key_in_namespace
        if key.lead or key.prefix:
            return self._depths_behind(root, tokens, members, out)
        return self.compiled.matcher.depths(root.number, root.block_tokens, tokens, out)

    def places_along(self, root: FlatRoot, tokens: Int32Array) -> Sequence[Spot]:
        """The places of a prompt's blocks, held by anybody or not, up to where it leaves the tree."""
        behind = self._behind_lead(root, tokens)
        if behind is None:
            return ()
        before: Sequence[Spot] = ()
        key = root.key_in_namespace
        if key.before is not None:
            base, prefix = self.roots.find(*key.before), _tokens(key.prefix)
            if base is None or not np.array_equal(behind[: len(prefix)], prefix):
                return ()
            before = self.places_along(base, tokens[: len(tokens) - len(behind) + len(prefix)])
            behind = behind[len(prefix) :]
        return _Along(before, root, self.compiled.edges_along(root.number, root.block_tokens, behind))

    def above(self, place: Spot) -> Spot | None:
        """The block before this one; None for the first below its root."""
        return Spot(place.root, place.node, place.depth - 1) if place.depth else None

    def edge_of(self, place: Spot) -> tuple[int, int]:
        """The node a block lies in now, and its position there."""
        node = place.node
        while place.depth < (start := self._field(node, PLACE) >> SLACK_BITS):
            node = self._field(node, PARENT)
        return node, place.depth - start

    def edge_above(self, edge: int) -> int | None:
        """The node before this one; None below the root."""
        parent = self._field(edge, PARENT)
        return None if parent in self._by_number else parent

    def tokens_in(self, edge: int) -> bytes:
        """All tokens of a node, int32 bytes."""
        first = self._field(edge, OFFSET)
        grain = self._by_number[self._field(edge, ROOT)].block_tokens
        return self._arena[first : first + self._field(edge, LENGTH) * grain].tobytes()

    def sizes(self) -> TreeSizes:
        """How large it is; bytes: memory in use."""
        sizes = self.compiled.sizes()
        return TreeSizes(sizes.nodes - len(self.roots), sizes.blocks, sizes.bytes)

    def root_above(self, node: int) -> FlatRoot:
        """The root of a node."""
        return self._by_number[self._field(node, ROOT)]

    def numbered(self, number: int) -> FlatRoot:
        """The root of a number."""
        return self._by_number[number]

    def shrink(self, limit_bytes: int, target_bytes: int) -> dict[int, int]:
        """Where it is above a limit, give up what was used longest ago; hashes lost by ledger number, full stores' too."""
        lost = self.compiled.take_evicted()
        if self.compiled.bytes_used > limit_bytes:
            lost += self.compiled.evict(target_bytes)
        if lost.dropped:
            self.tidy()
        return lost.dropped

    def tidy(self) -> None:
        """Drop the roots that a change left empty."""
        for number in self.compiled.emptied():
            self.drop_if_empty(self._by_number.get(number))

    def drop_if_empty(self, root: FlatRoot | None) -> None:
        """Drop a root that nothing hangs under."""
        if root is not None and root.number in self._by_number and self.compiled.drop_root(root.number):
            del self._by_number[root.number]
            self.leads -= bool(root.key_in_namespace.lead)
            self.roots.discard(root)

    def _field(self, node: int, offset: int) -> int:
        return int(self._nodes[(node * self.compiled.stride + offset) >> 2])

    def _behind_lead(self, root: FlatRoot, tokens: Int32Array) -> Int32Array | None:
        lead = _tokens(root.key_in_namespace.lead)
        return tokens[len(lead) :] if np.array_equal(tokens[: len(lead)], lead) else None

    def _depths_behind(self, root: FlatRoot, tokens: Int32Array, members: Members, out: Int32Array) -> bool:
        """The same where a prompt has to begin with certain tokens, held elsewhere."""
        behind = self._behind_lead(root, tokens)
        if behind is None:
            return True
        key = root.key_in_namespace
        matcher = self.compiled.matcher
        if key.before is None:
            return matcher.depths(root.number, root.block_tokens, behind, out)
        base, prefix = self.roots.find(*key.before), _tokens(key.prefix)
        if base is None or not np.array_equal(behind[: len(prefix)], prefix):
            return True
        reached, beyond = np.zeros_like(out), np.zeros_like(out)
        known = self.depths(base, tokens[: len(tokens) - len(behind) + len(prefix)], members, reached)
        known &= matcher.depths(root.number, root.block_tokens, behind[len(prefix) :], beyond)
        whole = (reached >= len(prefix)) & (beyond > 0)
        np.maximum(out, np.where(whole, beyond + np.int32(len(prefix)), 0), out=out)
        return known


class _Along(Sequence[Spot]):
    """The places along some edges, each made when it is asked for. edges: (node, blocks) of each."""

    def __init__(self, before: Sequence[Spot], root: FlatRoot, edges: list[tuple[int, int]]) -> None:
        self._before = before
        self._root = root
        self._nodes = [node for node, _ in edges]
        self._ends = list(accumulate(blocks for _, blocks in edges))

    def __len__(self) -> int:
        return len(self._before) + (self._ends[-1] if self._ends else 0)

    @overload
    def __getitem__(self, at: int) -> Spot: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Spot]: ...
    def __getitem__(self, at: int | slice) -> Spot | Sequence[Spot]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not 0 <= at < len(self):
            raise IndexError(at)
        below = at - len(self._before)
        if below < 0:
            return self._before[at]
        return Spot(self._root, self._nodes[bisect_right(self._ends, below)], below)


def _tokens(data: bytes) -> Int32Array:
    return np.frombuffer(data, np.int32)
