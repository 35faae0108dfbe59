"""What routing asks of an index, whether it is kept in this process (`Index`) or in another one (`SharedIndex`)."""

from __future__ import annotations

from typing import Protocol

from radix.index import GuessId, IndexStats
from radix.match import Int32Array, Match
from radix.namespace import Namespace


class ReadableIndex(Protocol):
    """Holders, matches and guesses."""

    def holder(self, replica: str, rank: int) -> int:
        """The number of a (replica, rank): the one it has, else the lowest free one."""

    def set_model(self, holder: int, model: str) -> None:
        """Say which model a holder serves."""

    def block_tokens(self, holder: int) -> int:
        """Tokens per block as its events say; 0 until the first store."""

    def match(self, namespace: Namespace, tokens: Int32Array, *, now: float | None = None) -> Match:
        """How many leading tokens of a prompt each holder has."""

    def guess(self, holder: int, namespace: Namespace, tokens: Int32Array, expires_at: float) -> GuessId:
        """Credit a holder with a prompt it was just given."""

    def withdraw(self, guess: GuessId) -> None:
        """Take a guess back; nothing happens when it has ended already."""

    def expire(self, now: float) -> int:
        """End the guesses whose time is over; returns their number."""

    def clear(self, holder: int) -> int:
        """Forget what a holder has."""

    def drop(self, holder: int) -> None:
        """Forget a holder altogether; its number may be given to another one."""

    def stats(self) -> IndexStats:
        """Sizes now."""
