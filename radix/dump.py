"""What a holder has, block by block, and a digest of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from radix.changes import Tier
from radix.ledger import Ledger
from radix.namespace import Namespace
from radix.plain import Block, Node


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """One block of a holder. path: int32 bytes of all tokens from the prompt's start to the end of this block.

    The namespace has no model: that is the holder's.
    """

    tier: Tier
    group: int
    hash: int
    copies: int
    namespace: Namespace
    block_tokens: int
    path: bytes


def held_blocks(ledgers: Mapping[int, Sequence[Ledger]]) -> Iterator[HeldBlock]:
    """All blocks of one holder; paths are built one at a time."""
    for group, of_group in ledgers.items():
        for tier, ledger in zip(Tier, of_group, strict=True):
            for block_hash, block in ledger.blocks.items():
                root = block.node.root
                copies = ledger.copies(block_hash)
                yield HeldBlock(tier, group, block_hash, copies, root.namespace, root.block_tokens, _path(block))


def digest_of(ledgers: Mapping[int, Sequence[Ledger]]) -> bytes:
    """The sum of one 128-bit digest per block, so that order and the cutting of edges do not matter."""
    chains: dict[Node, list[bytes]] = {}
    total = 0
    for group, of_group in ledgers.items():
        for tier, ledger in zip(Tier, of_group, strict=True):
            for block_hash, block in ledger.blocks.items():
                root = block.node.root
                head = f"{group} {tier} {block_hash} {ledger.copies(block_hash)} {root.block_tokens} ".encode()
                entry = blake2b(head + root.namespace.key() + _chain(block, chains), digest_size=16).digest()
                total += int.from_bytes(entry, "little")
    return (total % 2**128).to_bytes(16, "little")


def _path(block: Block) -> bytes:
    node = block.node
    parts = [bytes(node.tokens[: (block.index() + 1) * node.root.width])]
    while node.parent is not None:
        node = node.parent
        parts.append(bytes(node.tokens))
    return b"".join(reversed(parts))


def _chain(block: Block, chains: dict[Node, list[bytes]]) -> bytes:
    """Digest of the path to a block; `chains` remembers those of whole nodes."""
    todo: list[Node] = []
    node: Node | None = block.node
    while node is not None and node not in chains:
        todo.append(node)
        node = node.parent
    for below in reversed(todo):
        digest = chains[below.parent][-1] if below.parent is not None and chains[below.parent] else b""
        width = below.root.width
        digests: list[bytes] = []
        for start in range(0, len(below.tokens), width):
            digest = blake2b(digest + below.tokens[start : start + width], digest_size=16).digest()
            digests.append(digest)
        chains[below] = digests
    return chains[block.node][block.index()]
