"""What a holder has, block by block, and a digest of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from radix.changes import Tier
from radix.ledger import Ledger
from radix.loose import Loose
from radix.namespace import Namespace
from radix.nodes import Block, Node, path_of

_NOWHERE = Namespace("")


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """One block of a holder. path: int32 bytes of all tokens from the prompt's start to the end of this block.

    The namespace has no model: that is the holder's. A block without a place has no path and no `block_tokens`; one that depends
    on tokens behind it has them at the end of its path.
    """

    tier: Tier
    group: int
    hash: int
    copies: int
    namespace: Namespace
    block_tokens: int
    path: bytes


def held_blocks(ledgers: Mapping[int, Sequence[Ledger]], loose: Loose) -> Iterator[HeldBlock]:
    """All blocks of one holder; paths are built one at a time."""
    for group, of_group in ledgers.items():
        for tier, ledger in zip(Tier, of_group, strict=True):
            for block_hash, block in ledger.blocks.items():
                root = block.node.root
                copies = ledger.copies(block_hash)
                path = root.key_in_namespace.lead + path_of(block)
                yield HeldBlock(tier, group, block_hash, copies, root.namespace, root.block_tokens, path)
    for group, tier, block_hash, copies in loose:
        yield HeldBlock(tier, group, block_hash, copies, _NOWHERE, 0, b"")


def digest_of(ledgers: Mapping[int, Sequence[Ledger]], loose: Loose) -> bytes:
    """The sum of one 128-bit digest per block, so that order and the cutting of edges do not matter."""
    chains: dict[Node, list[bytes]] = {}
    total = 0
    for group, of_group in ledgers.items():
        for tier, ledger in zip(Tier, of_group, strict=True):
            for block_hash, block in ledger.blocks.items():
                root = block.node.root
                head = f"{group} {tier} {block_hash} {ledger.copies(block_hash)} {root.block_tokens} ".encode()
                total += _number(head + root.namespace.key() + _chain(block, chains))
    for group, tier, block_hash, copies in loose:
        total += _number(f"{group} {tier} {block_hash} {copies} loose".encode())
    return (total % 2**128).to_bytes(16, "little")


def _number(entry: bytes) -> int:
    return int.from_bytes(blake2b(entry, digest_size=16).digest(), "little")


def _chain(block: Block, chains: dict[Node, list[bytes]]) -> bytes:
    """Digest of the path to a block; `chains` remembers those of whole nodes."""
    todo: list[Node] = []
    node: Node | None = block.node
    while node is not None and node not in chains:
        todo.append(node)
        node = node.parent
    for below in reversed(todo):
        key = below.root.key_in_namespace
        before = chains[below.parent] if below.parent is not None else []
        digest = before[-1] if before else key.lead + key.prefix
        width = below.root.width
        digests: list[bytes] = []
        for offset in range(0, len(below.tokens), width):
            digest = blake2b(digest + below.tokens[offset : offset + width], digest_size=16).digest()
            digests.append(digest)
        chains[below] = digests
    return chains[block.node][block.index()]
