"""What a token tree does for the index, whichever way it keeps its blocks: `plain` objects or `flat` memory.

A `Root` is where the prompts of one namespace, block size and cache group begin; a `Place` names one block until the next change
of the tree; a `Ledger` is what one holder has on one tier in one group, under the engine's own block hashes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from radix.match import TIERS, Int32Array
from radix.namespace import Namespace

TOKEN_BYTES = 4  # int32, little-endian


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


class Root(Protocol):
    """Where prompts begin."""

    @property
    def namespace(self) -> Namespace: ...
    @property
    def key_in_namespace(self) -> RootKey: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def group(self) -> int: ...


class Place(Protocol):
    """One block of a tree. depth: blocks before it below its root."""

    @property
    def depth(self) -> int: ...
    @property
    def root(self) -> Root: ...


class Members:
    """The holders a match looks at. Made once for many matches: trees keep what they derive from it."""

    __slots__ = ("bits", "holders")

    def __init__(self, holders: Collection[int]) -> None:
        self.holders = tuple(sorted(holders))
        self.bits = sum(((1 << TIERS) - 1) << holder * TIERS for holder in self.holders)


@dataclass(slots=True)
class Placed:
    """What a store did. new: hashes that were not there before. rejected: blocks whose hash already names another place."""

    new: int
    rejected: int


@dataclass(frozen=True, slots=True)
class TreeSizes:
    """nodes: without roots. blocks: places in the tree, holes included. bytes: an estimate, or what is really in use."""

    nodes: int
    blocks: int
    bytes: int


R = TypeVar("R", bound=Root)
P = TypeVar("P", bound=Place)
R_contra = TypeVar("R_contra", bound=Root, contravariant=True)


class Ledger(Protocol[R_contra, P]):
    """Hash -> block of one (holder, tier, group)."""

    def __len__(self) -> int: ...

    def find(self, block_hash: int) -> P | None:
        """Where a block lies."""

    def copies(self, block_hash: int) -> int:
        """How often a present block was stored and not removed."""

    def names(self, place: P) -> tuple[int, ...]:
        """The hashes of a place; the first call costs as much as there are blocks, and makes the ledger remember them."""

    def store(self, root: R_contra, parent: P | None, hashes: Sequence[int], data: bytes) -> Placed:
        """Hold `data` (int32 bytes) below `parent`, or at the root, one hash a block."""

    def remove(self, hashes: Sequence[int]) -> tuple[int, Sequence[int]]:
        """One copy less of each: (blocks that are gone now, hashes that were not here)."""

    def clear(self) -> int:
        """Forget everything, for good; returns the number of hashes that were here."""

    def held(self) -> Iterator[tuple[int, P, int]]:
        """(hash, place, copies) of each, in no particular order."""


class Tree(Protocol[R, P]):
    """All roots and what hangs below them."""

    def roots_of(self, namespace: bytes) -> tuple[R, ...]:
        """The roots under a `Namespace.key`; the same tuple until one of them comes or goes."""

    def root(self, namespace: Namespace, key: RootKey) -> R:
        """A root of a namespace, made when missing."""

    def branch(self, parent: P, namespace: Namespace) -> R:
        """The root of what follows `parent` in another namespace."""

    def ledger(self, holder: int, tier: int, *, counting: bool) -> Ledger[R, P]:
        """An empty ledger of a holder."""

    def depths(self, root: R, tokens: Int32Array, members: Members, out: Int32Array) -> bool:
        """Raise `out` [holders, TIERS] to the matched tokens; False when the tree was too busy changing."""

    def places_along(self, root: R, tokens: Int32Array) -> Sequence[P]:
        """The places of a prompt's blocks, held by anybody or not, up to where it leaves the tree."""

    def above(self, place: P) -> P | None:
        """The block before this one; None for the first below its root."""

    def edge_of(self, place: P) -> tuple[Hashable, int]:
        """The edge a block lies in now, and its position there, in blocks."""

    def edge_above(self, edge: Any) -> Hashable | None:
        """The edge before this one; None below the root."""

    def tokens_in(self, edge: Any) -> bytes:
        """All tokens of an edge, int32 bytes."""

    def sizes(self) -> TreeSizes:
        """How large it is."""


AnyTree = Tree[Any, Any]
AnyLedger = Ledger[Any, Any]


def width_of(root: Root) -> int:
    """Bytes per block."""
    return root.block_tokens * TOKEN_BYTES


def path_of(tree: AnyTree, place: Place) -> bytes:
    """All tokens from the prompt's start to the end of a block, int32 bytes, without those that only lead."""
    edge, at = tree.edge_of(place)
    parts = [tree.tokens_in(edge)[: (at + 1) * width_of(place.root)]]
    above = tree.edge_above(edge)
    while above is not None:
        parts.append(tree.tokens_in(above))
        above = tree.edge_above(above)
    parts.append(place.root.key_in_namespace.prefix)
    return b"".join(reversed(parts))


def tokens_of(tree: AnyTree, place: Place) -> bytes:
    """The block's own tokens, int32 bytes."""
    edge, at = tree.edge_of(place)
    width = width_of(place.root)
    return tree.tokens_in(edge)[at * width : (at + 1) * width]
