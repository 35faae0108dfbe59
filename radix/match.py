"""The answer of a match: how many leading tokens each holder has, per tier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
TIERS = 4


@dataclass(frozen=True, slots=True)
class Match:
    """Matched tokens per holder.

    depth: int32 [holders, TIERS]; `depth[h, t]` = leading tokens that holder h has on tier t or a faster one, so a row never
    falls from left to right. Holder numbers beyond the array hold nothing. known: False when the index could not answer in
    time; then the chooser goes by load.
    guessed: bool [holders]; the credit rests on our own choice, no event has confirmed it yet.
    """

    depth: Int32Array
    guessed: npt.NDArray[np.bool_]
    known: bool = True

    def tokens(self, holder: int, tier: int = 0) -> int:
        """Matched tokens of one holder; 0 for a holder the index does not know."""
        return int(self.depth[holder, tier]) if holder < len(self.depth) else 0

    def best(self) -> tuple[int, int] | None:
        """(holder, tokens) of the deepest device match, the lowest holder number on a tie; None when nobody holds anything."""
        if not len(self.depth):
            return None
        holder = int(self.depth[:, 0].argmax())
        tokens = int(self.depth[holder, 0])
        return (holder, tokens) if tokens else None


EMPTY = Match(np.zeros((0, TIERS), np.int32), np.zeros(0, np.bool_))
