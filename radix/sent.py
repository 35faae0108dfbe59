"""An index of what was sent where, for fleets whose engines tell nothing: a prompt counts as held by whom it was given to.

It knows no removals, so it believes too much; how far it may be believed is learned from what engines report as cached. What was
not used for longest is forgotten first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from radix.index import GuessId, IndexStats
from radix.match import EMPTY, TIERS, Int32Array, Match
from radix.namespace import Namespace
from radix.reading import ReadableIndex

if TYPE_CHECKING:
    from radix.history import History  # brings Numba

_NO_GUESS = GuessId(-1)


class SentPrompts:
    """Answers from a `History`, and numbers holders as the index it stands in front of does. history: None until it is ready."""

    def __init__(self, index: ReadableIndex, history: History | None = None) -> None:
        self.history = history
        self._index = index

    def holder(self, replica: str, rank: int) -> int:
        """See `ReadableIndex`."""
        return self._index.holder(replica, rank)

    def set_model(self, holder: int, model: str) -> None:
        """See `ReadableIndex`."""
        self._index.set_model(holder, model)

    def block_tokens(self, holder: int) -> int:
        """See `ReadableIndex`; 0 where no event says."""
        return self._index.block_tokens(holder)

    def match(self, namespace: Namespace, tokens: Int32Array, *, now: float | None = None) -> Match:
        """How many leading tokens each holder was sent before; nothing until the history is ready."""
        found = self.history.match(namespace, tokens) if self.history is not None else {}
        if not found:
            return EMPTY
        depth = np.zeros((max(found) + 1, TIERS), np.int32)
        holders = np.fromiter(found, np.intp, len(found))
        depth[holders] = np.fromiter(found.values(), np.int32, len(found))[:, None]
        return Match(depth, depth[:, 0] > 0)

    def guess(self, holder: int, namespace: Namespace, tokens: Int32Array, expires_at: float) -> GuessId:
        """Remember that the holder was sent this prompt, for as long as there is room."""
        if self.history is not None:
            self.history.insert(holder, namespace, tokens)
        return _NO_GUESS

    def withdraw(self, guess: GuessId) -> None:
        """Nothing: whether the engine kept what it was sent is not known here."""

    def expire(self, now: float) -> int:
        """Nothing ends by the clock."""
        return 0

    def clear(self, holder: int) -> int:
        """Forget what a holder was sent; returns what the index in front of which this stands knew of it."""
        self.forget(holder)
        return self._index.clear(holder)

    def forget(self, holder: int) -> None:
        """Forget only what a holder was sent."""
        if self.history is not None:
            self.history.forget(holder)

    def drop(self, holder: int) -> None:
        """Forget a holder altogether."""
        self.forget(holder)
        self._index.drop(holder)

    def stats(self) -> IndexStats:
        """Of the index in front of which this stands."""
        return self._index.stats()
