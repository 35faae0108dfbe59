"""What a holder has, block by block, and a digest of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from radix.changes import Tier
from radix.holder import Holder
from radix.namespace import Namespace
from radix.tree import AnyTree, Place, path_of, width_of

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


def held_blocks(owner: Holder) -> Iterator[HeldBlock]:
    """All blocks of one holder; paths are built one at a time."""
    for group, of_group in owner.ledgers.items():
        for tier, ledger in zip(Tier, of_group, strict=True):
            for block_hash, place, copies in ledger.held():
                root = place.root
                path = root.key_in_namespace.lead + path_of(owner.tree, place)
                yield HeldBlock(tier, group, block_hash, copies, root.namespace, root.block_tokens, path)
    for group, tier, block_hash, copies in owner.loose:
        yield HeldBlock(tier, group, block_hash, copies, _NOWHERE, 0, b"")


def digest_of(owner: Holder) -> bytes:
    """The sum of one 128-bit digest per block, so that order and the cutting of edges do not matter."""
    chains: dict[Hashable, list[bytes]] = {}
    total = 0
    for group, of_group in owner.ledgers.items():
        for tier, ledger in zip(Tier, of_group, strict=True):
            for block_hash, place, copies in ledger.held():
                root = place.root
                head = f"{group} {tier} {block_hash} {copies} {root.block_tokens} ".encode()
                total += _number(head + root.namespace.key() + _chain(owner.tree, place, chains))
    for group, tier, block_hash, copies in owner.loose:
        total += _number(f"{group} {tier} {block_hash} {copies} loose".encode())
    return (total % 2**128).to_bytes(16, "little")


def _number(entry: bytes) -> int:
    return int.from_bytes(blake2b(entry, digest_size=16).digest(), "little")


def _chain(tree: AnyTree, place: Place, chains: dict[Hashable, list[bytes]]) -> bytes:
    """Digest of the path to a block; `chains` remembers those of whole edges."""
    own, at = tree.edge_of(place)
    todo: list[Hashable] = []
    edge: Hashable | None = own
    while edge is not None and edge not in chains:
        todo.append(edge)
        edge = tree.edge_above(edge)
    key = place.root.key_in_namespace
    digest = chains[edge][-1] if edge is not None else key.lead + key.prefix
    width = width_of(place.root)
    for below in reversed(todo):
        tokens = tree.tokens_in(below)
        digests = chains[below] = []
        for offset in range(0, len(tokens), width):
            digest = blake2b(digest + tokens[offset : offset + width], digest_size=16).digest()
            digests.append(digest)
    return chains[own][at]
