"""What the plain tree is made of: places of blocks, runs of them, and the roots below which prompts begin."""

from __future__ import annotations

from radix.namespace import Namespace
from radix.tree import TOKEN_BYTES, RootKey


class Block:
    """One block's place: the node it lies in now and its distance from the root, in blocks."""

    __slots__ = ("depth", "node")

    def __init__(self, node: Node, depth: int) -> None:
        self.node = node
        self.depth = depth

    @property
    def root(self) -> Root:
        """Where its prompt begins."""
        return self.node.root

    def index(self) -> int:
        """Position inside its node, in blocks."""
        return self.depth - self.node.blocks[0].depth


class Node:
    """One run of blocks and everyone who holds all of it; `blocks` is empty for a root and for a node that is gone."""

    __slots__ = ("blocks", "children", "members", "parent", "root", "tokens")

    def __init__(self, root: Root | None, parent: Node | None, members: int) -> None:
        self.root = root if root is not None else self._as_root()
        self.parent = parent
        self.members = members
        self.tokens = bytearray()
        self.blocks: list[Block] = []
        self.children: dict[bytes, Node] = {}  # by the bytes of the child's first block

    def _as_root(self) -> Root:
        assert isinstance(self, Root)
        return self

    def grow(self, data: bytes, start: int) -> None:
        """Append blocks; `start` is the depth of the first one."""
        self.tokens += data
        self.blocks += [Block(self, start + i) for i in range(len(data) // self.root.width)]

    def key(self) -> bytes:
        """What the parent calls this node: its first block."""
        return bytes(self.tokens[: self.root.width])


class Root(Node):
    """Where the prompts of one namespace begin. width: bytes per block."""

    __slots__ = ("block_tokens", "group", "key_in_namespace", "namespace", "width")

    def __init__(self, namespace: Namespace, key: RootKey) -> None:
        super().__init__(None, None, 0)
        self.namespace = namespace
        self.key_in_namespace = key
        self.block_tokens = key.block_tokens
        self.group = key.group
        self.width = key.block_tokens * TOKEN_BYTES
