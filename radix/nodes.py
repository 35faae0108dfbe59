"""What the plain tree is made of: places of blocks, runs of them, and the roots below which prompts begin."""

from __future__ import annotations

from typing import NamedTuple

from radix.namespace import Namespace

TOKEN_BYTES = 4  # int32, little-endian


class Block:
    """One block's place: the node it lies in now and its distance from the root, in blocks."""

    __slots__ = ("depth", "node")

    def __init__(self, node: Node, depth: int) -> None:
        self.node = node
        self.depth = depth

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


class RootKey(NamedTuple):
    """What sets apart the roots of one namespace.

    lead: the prompt's first tokens, int32 bytes, where blocks also depend on as many tokens behind them (`Stored.lead`).
    before, prefix: where an image begins behind the first block, the namespace without it and the tokens in front of it; the
    prompts of this root are those of that other one up to there.
    """

    block_tokens: int
    group: int
    lead: bytes = b""
    before: tuple[bytes, RootKey] | None = None  # of a `Namespace.key`
    prefix: bytes = b""


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


def path_of(block: Block) -> bytes:
    """All tokens from the prompt's start to the end of a block, int32 bytes, without those that only lead."""
    node = block.node
    parts = [bytes(node.tokens[: (block.index() + 1) * node.root.width])]
    while node.parent is not None:
        node = node.parent
        parts.append(bytes(node.tokens))
    parts.append(node.root.key_in_namespace.prefix)
    return b"".join(reversed(parts))


def above(block: Block) -> Block | None:
    """The block before this one; None for the first below its root."""
    node, at = block.node, block.index()
    if at:
        return node.blocks[at - 1]
    parent = node.parent
    assert parent is not None
    return parent.blocks[-1] if parent.blocks else None


def tokens_of(block: Block) -> bytes:
    """The block's own tokens, int32 bytes."""
    width, at = block.node.root.width, block.index()
    return bytes(block.node.tokens[at * width : (at + 1) * width])
