"""The token tree in plain Python objects: who holds which run of blocks, under one root per `RootKey` of each namespace.

An edge (`Node`) is a run of blocks that has the same members all along, cut on block boundaries only. `Block` objects name a
place for good: splits and merges re-point the smaller half, so a handle never has to be resolved through stale nodes, and no
stub has to outlive its content. A node without members but with children is a hole: matching stops there, what lies below is
kept. Members are one integer per node, bit 4 * holder + tier, so a match intersects all holders at once.

This tree is the reference for faster ones, and serves while they load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from radix.ledger import PlainLedger
from radix.match import TIERS, Int32Array
from radix.namespace import Namespace
from radix.nodes import Block, Node, Root
from radix.roots import Roots
from radix.tree import TOKEN_BYTES, Members, RootKey, TreeSizes, path_of


class PlainTree:
    """All roots, and the three things that happen to them: `extend`, `release`, `match`."""

    def __init__(self) -> None:
        self.roots: Roots[Root] = Roots()
        self._spread = Spread(0)
        self.nodes = 0
        self.blocks = 0  # places in the tree, holes included
        self.token_bytes = 0

    def root(self, namespace: Namespace, key: RootKey) -> Root:
        """A root of a namespace, made when missing."""
        found = self.roots.find(namespace.key(), key)
        return found if found is not None else self.roots.add(Root(namespace, key))

    def branch(self, parent: Block, namespace: Namespace) -> Root:
        """The root of what follows `parent` in another namespace."""
        root = parent.node.root
        before = (root.namespace.key(), root.key_in_namespace)
        return self.root(namespace, root.key_in_namespace._replace(before=before, prefix=path_of(self, parent)))

    def roots_of(self, namespace: bytes) -> tuple[Root, ...]:
        """The roots of one namespace: the block sizes and groups that are present."""
        return self.roots.of(namespace)

    def ledger(self, holder: int, tier: int, *, counting: bool) -> PlainLedger:
        """An empty ledger of a holder."""
        if holder >= self._spread.holders:
            self._spread = Spread(holder + 1)
        return PlainLedger(self, 1 << holder * TIERS + tier, counting=counting)

    def extend(self, root: Root, parent: Block | None, data: bytes, bit: int) -> tuple[list[Block], list[Block]]:
        """Add a member to the blocks of `data` below `parent` (None = at the root).

        Returns these blocks in order, and those among them that had the member before.
        """
        width = root.width
        node, at = (root, 0) if parent is None else (parent.node, parent.index() + 1)
        placed: list[Block] = []
        held: list[Block] = []
        touched: list[Node] = []
        offset = 0
        while offset < len(data):
            if at == len(node.blocks):
                child = node.children.get(data[offset : offset + width])
                if child is None:
                    node = self._append(node, data[offset:], bit, placed)
                    touched.append(node)
                    break
                node, at = child, 0
            same = common_blocks(node.tokens, at * width, data, offset, width)
            if not same:
                node, _ = self._split(node, at)  # the prompts part inside this edge
                touched.append(node)
                continue
            if node.members & bit:
                held += node.blocks[at : at + same]
            else:
                node, at = self._isolate(node, at, at + same), 0
                node.members |= bit
            placed += node.blocks[at : at + same]
            touched.append(node)
            at += same
            offset += same * width
        self._rejoin(touched)
        return placed, held

    def release(self, blocks: list[Block], bit: int) -> None:
        """Take a member away from blocks that have it, in any order; empty ends are trimmed, equal neighbours joined."""
        blocks.sort(key=lambda block: (id(block.node), -block.depth))  # tails first: no hole is made only to be removed
        i = 0
        while i < len(blocks):
            node, high = blocks[i].node, blocks[i].index() + 1
            run = 1
            while i + run < len(blocks) and blocks[i + run].node is node and blocks[i + run].depth == blocks[i].depth - run:
                run += 1
            self._release_run(node, high - run, high, bit)
            i += run

    def release_nodes(self, nodes: Iterable[Node], bit: int) -> None:
        """Take a member away from whole nodes."""
        for node in sorted(nodes, key=lambda node: node.blocks[0].depth, reverse=True):
            if node.blocks:  # not joined to another one meanwhile
                self._release_run(node, 0, len(node.blocks), bit)

    def depths(self, root: Root, tokens: Int32Array, members: Members, out: Int32Array) -> bool:
        """Raise `out` [holders, TIERS] to the matched tokens; always True."""
        flat = out.reshape(-1)
        size = -(-len(flat) // 8)
        for bits, matched in self.match(root, tokens.tobytes(), members.bits):
            ended = np.unpackbits(np.frombuffer(bits.to_bytes(size, "little"), np.uint8), bitorder="little", count=len(flat))
            np.maximum(flat, ended * np.int32(matched // TOKEN_BYTES), out=flat)
        return True

    def match(self, root: Root, query: bytes, alive: int) -> list[tuple[int, int]]:
        """Follow a prompt from its start: (bits of `alive` that end here, bytes matched so far), from short to long.

        Costs one comparison of memory per edge. Bits that have nothing in the root's own namespace are left out.
        """
        lead = root.key_in_namespace.lead
        return self._follow(root, query[len(lead) :], alive) if query.startswith(lead) else []

    def places_along(self, root: Root, tokens: Int32Array) -> Sequence[Block]:
        """The places of a prompt's blocks, held by anybody or not, up to where it leaves the tree."""
        return self._blocks_along(root, tokens.tobytes())

    def above(self, place: Block) -> Block | None:
        """The block before this one; None for the first below its root."""
        node, at = place.node, place.index()
        if at:
            return node.blocks[at - 1]
        parent = node.parent
        assert parent is not None
        return parent.blocks[-1] if parent.blocks else None

    def edge_of(self, place: Block) -> tuple[Node, int]:
        """The node a block lies in now, and its position there."""
        return place.node, place.index()

    def edge_above(self, edge: Node) -> Node | None:
        """The node before this one; None below the root."""
        return edge.parent if edge.parent is not None and edge.parent.blocks else None

    def tokens_in(self, edge: Node) -> bytes:
        """All tokens of a node, int32 bytes."""
        return bytes(edge.tokens)

    def sizes(self) -> TreeSizes:
        """How large it is; bytes as measured with tracemalloc on CPython 3.11: a node with its containers, a place."""
        return TreeSizes(self.nodes, self.blocks, self.nodes * 375 + self.blocks * 56 + self.token_bytes)

    def _blocks_along(self, root: Root, query: bytes) -> list[Block]:
        key = root.key_in_namespace
        if not query.startswith(key.lead):
            return []
        query = query[len(key.lead) :]
        blocks: list[Block] = []
        if key.before is not None:
            base = self.roots.find(*key.before)
            if base is None or not query.startswith(key.prefix):
                return []
            blocks = self._blocks_along(base, key.lead + key.prefix)
        offset = len(key.prefix)
        child = root.children.get(query[offset : offset + root.width])
        while child is not None:
            same = common_blocks(child.tokens, 0, query, offset, root.width)
            blocks += child.blocks[:same]
            offset += same * root.width
            child = child.children.get(query[offset : offset + root.width]) if same == len(child.blocks) else None
        return blocks

    def _follow(self, root: Root, query: bytes, alive: int) -> list[tuple[int, int]]:
        key = root.key_in_namespace
        if key.before is not None:
            base = self.roots.find(*key.before)
            if base is None or not query.startswith(key.prefix):
                return []
            rows = self._follow(base, key.prefix, alive)
            alive = rows[-1][0] if rows and rows[-1][1] == len(key.prefix) else 0
        return self._walk(root, query, len(key.prefix), alive)

    def _walk(self, root: Root, query: bytes, start: int, alive: int) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        node: Node = root
        width = root.width
        offset = start
        while alive:
            child = node.children.get(query[offset : offset + width])
            if child is None:
                break
            holding = alive & self._spread(child.members)
            if holding != alive and offset > start:
                rows.append((alive & ~holding, offset))
            alive = holding
            if not alive:
                return rows
            if not query.startswith(child.tokens, offset):
                offset += common_blocks(child.tokens, 0, query, offset, width) * width
                break
            offset += len(child.tokens)
            node = child
        if offset > start and alive:
            rows.append((alive, offset))
        return rows

    def _append(self, node: Node, data: bytes, bit: int, placed: list[Block]) -> Node:
        """New blocks behind `node`: in place where it is a leaf of this member alone, else as a new child."""
        start = node.blocks[-1].depth + 1 if node.blocks else 0
        leaf = node
        if not node.blocks or node.children or node.members != bit:
            leaf = Node(node.root, node, bit)
            node.children[data[: node.root.width]] = leaf
            self.nodes += 1
        before = len(leaf.blocks)
        leaf.grow(data, start)
        self.blocks += len(leaf.blocks) - before
        self.token_bytes += len(data)
        placed += leaf.blocks[before:]
        return leaf

    def _release_run(self, node: Node, low: int, high: int, bit: int) -> None:
        if low and high == len(node.blocks) and node.members == bit and not node.children:
            self._forget(node, low)  # the usual eviction: the tail of a leaf nobody else holds
            return
        node = self._isolate(node, low, high)
        node.members &= ~bit
        self._settle(node)

    def _settle(self, node: Node) -> None:
        """Restore the tree's shape around a node that lost members."""
        while not node.members and not node.children and node.parent is not None:
            parent = node.parent
            del parent.children[node.key()]
            self._forget(node, 0)
            self.nodes -= 1
            node = parent
        if node.parent is None:
            if not node.children:
                self._drop_root(node.root)
            return
        self._rejoin([node])

    def _drop_root(self, root: Root) -> None:
        self.roots.discard(root)
        del root.root  # it names itself; without that cycle it is freed at once

    def _forget(self, node: Node, keep: int) -> None:
        self.blocks -= len(node.blocks) - keep
        self.token_bytes -= len(node.tokens) - keep * node.root.width
        del node.blocks[keep:]
        del node.tokens[keep * node.root.width :]

    def _isolate(self, node: Node, low: int, high: int) -> Node:
        """The node that consists of exactly the blocks low..high-1 of `node`."""
        if high < len(node.blocks):
            node, _ = self._split(node, high)
        if low:
            _, node = self._split(node, low)
        return node

    def _split(self, node: Node, cut: int) -> tuple[Node, Node]:
        """Cut before block `cut`; the smaller half becomes the new node, so that few blocks are re-pointed."""
        width = node.root.width
        parent = node.parent
        assert parent is not None
        self.nodes += 1
        if cut * 2 <= len(node.blocks):
            upper, lower = Node(node.root, parent, node.members), node
            upper.tokens, upper.blocks = node.tokens[: cut * width], node.blocks[:cut]
            del node.tokens[: cut * width], node.blocks[:cut]
            moved = upper
            parent.children[upper.key()] = upper
        else:
            upper, lower = node, Node(node.root, node, node.members)
            lower.tokens, lower.blocks = node.tokens[cut * width :], node.blocks[cut:]
            del node.tokens[cut * width :], node.blocks[cut:]
            moved = lower
            _adopt(lower, node.children)
        for block in moved.blocks:
            block.node = moved
        lower.parent = upper
        upper.children = {lower.key(): lower}
        return upper, lower

    def _rejoin(self, nodes: list[Node]) -> None:
        """Join each node, and the last one's only child, to its parent where nothing sets them apart any more."""
        for node in nodes:
            self._join(node)
        last = nodes[-1]
        while not last.blocks and last.parent is not None:
            last = last.parent  # where it was joined to
        if len(last.children) == 1:
            self._join(next(iter(last.children.values())))

    def _join(self, node: Node) -> None:
        parent = node.parent
        if parent is None or not parent.blocks or not node.blocks:
            return
        if len(parent.children) != 1 or parent.members != node.members:
            return
        self.nodes -= 1
        if len(parent.blocks) <= len(node.blocks):
            keep, gone = node, parent
            node.tokens[0:0] = parent.tokens
            node.blocks[0:0] = parent.blocks
            node.parent = parent.parent
            assert node.parent is not None
            node.parent.children[node.key()] = node
        else:
            keep, gone = parent, node
            parent.tokens += node.tokens
            parent.blocks += node.blocks
            _adopt(parent, node.children)
        for block in gone.blocks:
            block.node = keep
        gone.blocks = []
        gone.parent = keep  # only for `_rejoin`, which may still hold it


def _adopt(node: Node, children: dict[bytes, Node]) -> None:
    node.children = children
    for child in children.values():
        child.parent = node


def common_blocks(edge: bytearray, start: int, query: bytes, offset: int, width: int) -> int:
    """Leading blocks that `edge[start:]` and `query[offset:]` share; all positions in bytes."""
    size = min(len(edge) - start, len(query) - offset)
    size -= size % width
    ours, theirs = edge[start : start + size], query[offset : offset + size]
    if ours == theirs:
        return size // width
    differs = np.frombuffer(ours, np.int32) != np.frombuffer(theirs, np.int32)
    return int(differs.argmax()) * TOKEN_BYTES // width


class Spread:
    """Turns 'held on tier t' into 'held on tier t or a faster one', for all holders of a member set at once."""

    __slots__ = ("_above_first", "_above_second", "holders")

    def __init__(self, holders: int) -> None:
        self.holders = holders
        assert TIERS == 4  # one hex digit per holder
        self._above_first = int("e" * holders or "0", 16)
        self._above_second = int("c" * holders or "0", 16)

    def __call__(self, members: int) -> int:
        members |= members << 1 & self._above_first
        return members | members << 2 & self._above_second
