"""Token prefixes and who holds them: the index every routing decision reads."""

from __future__ import annotations

from radix.changes import Applied, Batch, Cleared, Event, NamespaceHint, Removed, Stored, Tier
from radix.errors import RadixError
from radix.index import GuessId, Index, IndexStats
from radix.match import Int32Array, Match
from radix.namespace import Namespace

__all__ = [
    "Applied",
    "Batch",
    "Cleared",
    "Event",
    "GuessId",
    "Index",
    "IndexStats",
    "Int32Array",
    "Match",
    "Namespace",
    "NamespaceHint",
    "RadixError",
    "Removed",
    "Stored",
    "Tier",
]
