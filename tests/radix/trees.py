"""The indexes every test of the index runs on: over the plain tree, and over the compiled one."""

from __future__ import annotations

from radix import Index
from radix.core.compiled import CompiledTree
from radix.flat import FlatTree

KINDS = ("plain", "flat")


def new_index(kind: str, *, orphan_limit: int = 8192) -> Index:
    """An empty index whose holders lie in one kind of tree."""
    index = Index(orphan_limit=orphan_limit)
    if kind == "flat":
        index.work_on(FlatTree(CompiledTree(huge_pages=False)))
        assert not index.move()
    return index
