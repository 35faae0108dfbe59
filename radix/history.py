"""Our own history of who was sent what, for engines that tell us nothing: keyed by UTF-8 text or by tokens, with a byte budget.

A text is read as words of 4 bytes, so what it matches is counted in whole words: up to 3 bytes at the end do not count, and a
word may end inside a character. The tree knows members only, no handles: a prompt goes when it was not used for longest, or with
its holder. Needs the compiled index; for one thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from radix.core.compiled import CompiledTree
from radix.core.layout import MAX_DEPTH
from radix.errors import RadixError
from radix.match import Int32Array
from radix.namespace import Namespace

WORD_BYTES = 4
LEAST_BUDGET = 1 << 16
_PARTS = 16  # the part of the budget that is made free at once
_TEXT, _TOKENS = 0, 1  # groups of roots: equal words of the two have nothing to do with each other


class History:
    """Prompts by holder, the least recently used ones forgotten above `budget_bytes`."""

    def __init__(self, budget_bytes: int, *, holders: int = 64, huge_pages: bool = True, jit_folder: Path | None = None) -> None:
        """holders: room to start with, more comes by itself."""
        if budget_bytes < LEAST_BUDGET:
            raise RadixError(f"budget_bytes must be at least {LEAST_BUDGET}, got {budget_bytes}")
        self._tree = CompiledTree(holders=holders, huge_pages=huge_pages, jit_folder=jit_folder)
        self._tree.budget_bytes = budget_bytes
        self._budget = budget_bytes
        self._roots: tuple[dict[Namespace, int], dict[Namespace, int]] = ({}, {})
        self._ledgers: dict[int, int] = {}

    @property
    def bytes_used(self) -> int:
        """Memory in use for prompts, nodes and tables."""
        return self._tree.bytes_used

    @property
    def reserved_bytes(self) -> int:
        """The same with freed parts between."""
        return self._tree.sizes().reserved_bytes

    def insert(self, holder: int, namespace: Namespace, key: bytes | Int32Array) -> None:
        """The holder was sent this prompt. key: UTF-8 bytes, or tokens, int32 [n]."""
        group = _TEXT if isinstance(key, bytes) else _TOKENS
        root = self._roots[group].get(namespace) or self._make_root(namespace, group)
        ledger = self._ledgers.get(holder)
        if ledger is None:
            ledger = self._ledgers[holder] = self._tree.open(holder)
        words = key if isinstance(key, bytes) else _bytes_of(key)
        if len(words) > MAX_DEPTH * WORD_BYTES:
            words = words[: MAX_DEPTH * WORD_BYTES]
        if self._tree.place(ledger, root, 1, words):
            self._tree.evict(self._budget - self._budget // _PARTS)
            self._drop_empty_roots()

    def match(self, namespace: Namespace, key: bytes | Int32Array) -> dict[int, int]:
        """Leading bytes (of a text) or tokens that were sent before, by holder; who got none of it is not there."""
        if not isinstance(key, bytes):
            return self._match(self._roots[_TOKENS].get(namespace), key)
        words = np.frombuffer(key, np.int32, len(key) // WORD_BYTES)
        found = self._match(self._roots[_TEXT].get(namespace), words)
        return {holder: WORD_BYTES * count for holder, count in found.items()}

    def forget(self, holder: int) -> None:
        """The holder has lost its cache, or is gone."""
        ledger = self._ledgers.pop(holder, None)
        if ledger is not None:
            self._tree.forget(ledger)
            self._tree.close(ledger)
            self._drop_empty_roots()

    def _match(self, root: int | None, words: Int32Array) -> dict[int, int]:
        if root is None:
            return {}
        found = self._tree.matcher.holders(root, 1, words)
        assert found is not None  # nobody else writes
        return found

    def _make_root(self, namespace: Namespace, group: int) -> int:
        root = self._tree.root(namespace.key(), 1, group)
        self._roots[group][namespace] = root
        return root

    def _drop_empty_roots(self) -> None:
        if self._tree.empty_roots:
            for roots in self._roots:
                for namespace in [each for each, root in roots.items() if self._tree.drop_root(root)]:
                    del roots[namespace]


def _bytes_of(tokens: Int32Array) -> bytes:
    if tokens.dtype != np.int32:
        raise RadixError(f"tokens must be int32, got {tokens.dtype}")
    return tokens.tobytes()
