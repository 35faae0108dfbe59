"""What names a root and a block in flat memory."""

from __future__ import annotations

from dataclasses import dataclass

from radix.namespace import Namespace
from radix.tree import RootKey


@dataclass(frozen=True, slots=True, eq=False)
class FlatRoot:
    """Where the prompts of one namespace begin. number: of its node."""

    namespace: Namespace
    key_in_namespace: RootKey
    block_tokens: int
    group: int
    number: int


class Spot:
    """One block, until the next change: the node it lies in or one below it, and the blocks before it below its root."""

    __slots__ = ("depth", "node", "root")

    def __init__(self, root: FlatRoot, node: int, depth: int) -> None:
        self.root = root
        self.node = node
        self.depth = depth
