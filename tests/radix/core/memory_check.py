"""Reads a compiled tree's memory back and says whether it holds together: nothing lost, nothing twice, nothing left over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from radix.core import layout as lay
from radix.core.compiled import CompiledTree
from radix.core.memory import Memory


@dataclass(frozen=True)
class SeenNode:
    """One live node as it stands in memory."""

    number: int
    offset: int
    length: int
    start: int
    slack: int
    parent: int
    children: int
    only: int
    refs: int
    root: int
    members: tuple[int, ...]
    grain: int

    @property
    def units(self) -> range:
        """The arena units of its tokens."""
        first = self.offset // lay.UNIT_WORDS
        words = self.offset % lay.UNIT_WORDS + self.length * self.grain
        return range(first, first - (-words // lay.UNIT_WORDS) + self.slack)


def header(memory: Memory, field: int) -> int:
    """One header word."""
    return int(memory.words(field, 1)[0])


def live_nodes(memory: Memory) -> dict[int, SeenNode]:
    """All nodes that are neither stubs nor free, roots included."""
    stride = header(memory, lay.STRIDE)
    width = header(memory, lay.WORDS) * header(memory, lay.TIERS_USED)
    found = {}
    for number in range(1, header(memory, lay.NODE_NEXT)):
        at = lay.NODES + number * stride
        offset, length, place, parent, children, only, refs, root = memory.halves(at, 8).tolist()
        if root:
            members = tuple(memory.words(at + lay.MEMBERS, width).tolist())
            grain = int(memory.words(lay.NODES + root * stride + lay.ROOT_GRAIN, 1)[0])
            found[number] = SeenNode(
                number, offset, length, place >> 11, place & 2047, parent, children, only, refs, root, members, grain
            )
    return found


def table_entries(memory: Memory, table: int) -> list[tuple[int, int]]:
    """The (key, value) pairs of a table, without marks."""
    unit, size = table >> 32, table & 0xFFFFFFFF
    entries = memory.words(lay.ARENA + unit * lay.UNIT, 2 * size).reshape(-1, 2).tolist()
    return [(key, value) for key, value in entries if key not in (0, lay.GONE)]


def check_memory(tree: CompiledTree) -> dict[int, SeenNode]:
    """Everything that must hold between two operations; returns the live nodes."""
    memory = tree.memory
    nodes = live_nodes(memory)
    assert len(nodes) == tree.sizes().nodes
    inner = {number: node for number, node in nodes.items() if node.root != number}
    children: dict[int, list[int]] = {}
    for number, node in nodes.items():
        children.setdefault(node.parent, []).append(number)
    for node in inner.values():
        above = nodes[node.parent]
        assert node.length > 0 and node.root == above.root
        assert node.start == above.start + above.length
        assert any(node.members) or node.children, "a node nobody needs"
        single = above.root != above.number and above.children == 1 and above.members == node.members
        assert not single or (above.length + node.length) * node.grain > lay.JOIN_UNITS * lay.UNIT_WORDS, "two that should be one"
    for number, node in nodes.items():
        below = children.get(number, [])
        assert node.children == len(below)
        assert node.only == int(np.bitwise_xor.reduce(np.array(below or [0])))
    assert sum(node.length for node in inner.values()) == tree.sizes().blocks
    _check_references(tree, nodes)
    _check_arena(tree, nodes)
    return nodes


def _check_references(tree: CompiledTree, nodes: dict[int, SeenNode]) -> None:
    memory = tree.memory
    named = np.zeros(header(memory, lay.NODE_NEXT), np.int64)
    handles = 0
    for ledger in tree._ledgers:
        entries = table_entries(memory, header(memory, lay.LEDGERS + ledger * 64))
        assert len(entries) == header(memory, lay.LEDGERS + ledger * 64 + lay.LEDGER_USED)
        assert len(entries) <= header(memory, lay.LEDGERS + ledger * 64 + lay.LEDGER_FILLED)
        handles += len(entries)
        for _, value in entries:
            named[(value & (1 << 64) - 1) >> lay.HANDLE_NODE] += 1
    shares = table_entries(memory, header(memory, lay.SHARES_TABLE))
    assert (handles, len(shares)) == (tree.sizes().handles, tree.sizes().shares)
    for _, value in shares:
        named[(value & (1 << 64) - 1) >> lay.HANDLE_NODE] += 1
    stride = header(memory, lay.STRIDE)
    stubs = 0
    free = set()
    number = header(memory, lay.NODE_FREE)
    while number:
        free.add(number)
        number = int(memory.halves(lay.NODES + number * stride + lay.PARENT, 1)[0])
    for number in range(1, len(named)):
        if number not in nodes and number not in free:
            stubs += 1
            named[int(memory.halves(lay.NODES + number * stride + lay.PARENT, 1)[0])] += 1
    assert stubs == tree.sizes().stubs
    for number in range(1, len(named)):
        refs = int(memory.halves(lay.NODES + number * stride + lay.REFS, 1)[0])
        assert named[number] == (0 if number in free else refs), number
    assert len(table_entries(memory, header(memory, lay.CHILDREN_TABLE))) == len(nodes) == header(memory, lay.CHILDREN_USED)


def _check_arena(tree: CompiledTree, nodes: dict[int, SeenNode]) -> None:
    memory = tree.memory
    top = header(memory, lay.ARENA_TOP)
    owners = np.zeros(top, np.int8)
    owners[0] = 1
    for node in nodes.values():
        units = node.units if node.root != node.number else range(node.offset // 16, node.offset // 16 + 1)
        owners[units.start : units.stop] += 1
    tables = [header(memory, lay.CHILDREN_TABLE), header(memory, lay.SHARES_TABLE)]
    tables += [header(memory, lay.LEDGERS + ledger * 64) for ledger in tree._ledgers]
    for table in tables:
        owners[table >> 32 : (table >> 32) + (table & 0xFFFFFFFF) // 4] += 1
    assert int(owners.sum()) == header(memory, lay.ARENA_USED) + 1
    tags = np.zeros(top + 1, np.uint8)
    for number in range(64 * lay.CLASS_WORDS):
        unit, previous = header(memory, lay.FREE_HEADS + 8 * number), 0
        assert bool(unit) == bool(header(memory, lay.FREE_CLASSES + number // 64 * 8) >> number % 64 & 1)
        while unit:
            following, before, units = memory.halves(lay.ARENA + unit * lay.UNIT, 3).tolist()
            assert before == previous
            assert units == memory.halves(lay.ARENA + (unit + units - 1) * lay.UNIT, 4)[3]
            assert unit + units < top, "the top should have sunk"
            owners[unit : unit + units] += 1
            tags[unit] |= 1
            tags[unit + units - 1] |= 2
            unit, previous = following, unit
    assert (owners == 1).all(), "a unit lost or owned twice"
    assert not (tags[:-1] & 2 & tags[1:] << 1).any(), "two free runs that should be one"
    assert np.array_equal(tags, memory.bytes(lay.TAGS, top + 1))
