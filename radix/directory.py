"""What a reader in another process has to know beside the shared tree: who the members are, and which roots to look for.

It is small and changes rarely: the holders with the cache groups that make their credit, and the shapes of roots. A root's key
follows from the namespace and the shape, so roots are not listed; there may be one per tenant.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from radix.core.naming import root_key
from radix.index import Index
from radix.match import Int32Array
from radix.roots import identity_of
from radix.tree import RootKey

if TYPE_CHECKING:
    from radix.flat import FlatTree


@dataclass(frozen=True, slots=True)
class SharedHolder:
    """One holder as the writer knows it. number: its member bits in the tree.

    credit, sizes: the cache groups whose blocks are matched with prompts, and their tokens per block. joint: all of these must
    have a hit. limited: other groups may end a hit earlier, so what is matched is an upper bound.
    """

    number: int
    replica: str
    rank: int
    credit: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    joint: bool = False
    limited: bool = False

    @property
    def block_tokens(self) -> int:
        """Tokens per block of what makes credit; 0 while unknown."""
        return max(self.sizes, default=0)


@dataclass(frozen=True, slots=True)
class Directory:
    """The holders, and (block tokens, group, leading tokens) of the roots there may be."""

    holders: tuple[SharedHolder, ...] = ()
    shapes: tuple[tuple[int, int, int], ...] = ()


def directory_of(index: Index, tree: FlatTree) -> Directory:
    """What the writer tells its readers now; costs O(holders)."""
    holders = []
    for holder in index.holders():
        groups = holder.groups
        sizes = tuple([groups.known[group].block_tokens for group in groups.credit])
        joint = groups.joint and len(groups.credit) > 1
        limited = bool(groups.limits)
        holders.append(SharedHolder(holder.number, holder.replica, holder.rank, groups.credit, sizes, joint, limited))
    return Directory(tuple(holders), tuple(sorted(tree.shapes)))


@lru_cache(maxsize=4096)
def shared_root_key(namespace: bytes, block_tokens: int, group: int, lead: bytes) -> Int32Array:
    """The 16 words of a root; namespace: `Namespace.key` without the model, lead: int32 bytes."""
    return root_key(identity_of(namespace, RootKey(block_tokens, group, lead)), block_tokens)
