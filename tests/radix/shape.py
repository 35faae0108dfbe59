"""What must hold inside the tree after every step, whatever happened."""

from __future__ import annotations

from radix.flat import FlatTree
from radix.index import Index
from radix.plain import Node, PlainTree
from tests.radix.core.memory_check import check_memory


def check_shape(index: Index) -> None:
    """Every node is needed, nothing that could be one node is two, and the counters tell the truth; of all its trees."""
    for tree in index._trees:
        if isinstance(tree, FlatTree):
            nodes = check_memory(tree.compiled)
            assert {number for number, node in nodes.items() if node.root == number} == {root.number for root in tree.roots}
            assert tree.compiled.empty_roots == 0, "an empty root stays"
        else:
            assert isinstance(tree, PlainTree)
            _check_plain(tree)


def _check_plain(tree: PlainTree) -> None:
    nodes = blocks = size = 0
    for root in tree.roots:
        assert root.children, "an empty root stays"
        todo: list[Node] = list(root.children.values())
        while todo:
            node = todo.pop()
            parent = node.parent
            assert parent is not None and parent.children[node.key()] is node
            assert node.members or node.children, "a node nobody needs"
            assert len(node.tokens) == len(node.blocks) * root.width > 0
            first = parent.blocks[-1].depth + 1 if parent.blocks else 0
            assert [block.depth for block in node.blocks] == list(range(first, first + len(node.blocks)))
            assert all(block.node is node for block in node.blocks)
            alike = parent.blocks and len(parent.children) == 1 and parent.members == node.members
            assert not alike, "two nodes that should be one"
            nodes, blocks, size = nodes + 1, blocks + len(node.blocks), size + len(node.tokens)
            todo.extend(node.children.values())
    assert (tree.nodes, tree.blocks, tree.token_bytes) == (nodes, blocks, size)


def assert_empty(index: Index) -> None:
    """Nothing is left of anything."""
    stats = index.stats()
    assert (stats.nodes, stats.blocks, stats.guesses, stats.orphans, stats.loose) == (0, 0, 0, 0, 0)
    assert (len(index._presence.loose), len(index._presence.waiting)) == (0, 0)
    check_shape(index)
    for tree in index._trees:
        assert (tree.sizes().nodes, tree.sizes().blocks) == (0, 0)
        assert not len(tree.roots)
