"""One replica's circuit breaker: failures in a row open it for a growing while, then one request is let through on trial.

What counts as a failure is for the caller to say: that the replica could not be reached, died before it answered, or answered
with a 5xx that is not a polite 'full'. Requests that are wrong (4xx) say nothing against it (FC-30, FC-31).
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Of a breaker; the value is shown on the control plane."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"  # the next request is the trial
    TRIAL = "trial"  # it is on its way


class Breaker:
    """No clock of its own. `failed` and `succeeded` tell whether the state changed."""

    __slots__ = ("_failures", "_limit", "_most_s", "_open_s", "opened", "state", "until")

    def __init__(self, failures: int, open_s: float, most_s: float) -> None:
        """failures: in a row. open_s: how long it stays open at first; doubled each time a trial fails, up to most_s."""
        self._limit = failures
        self._open_s = open_s
        self._most_s = most_s
        self._failures = 0
        self.state = State.CLOSED
        self.opened = 0  # times in a row
        self.until = 0.0

    def failed(self, now: float) -> bool:
        """The replica failed a request."""
        self._failures += 1
        if self.state is State.TRIAL or (self.state is State.CLOSED and self._failures >= self._limit):
            self.state = State.OPEN
            self.until = now + min(self._most_s, self._open_s * 2.0 ** min(self.opened, 30))
            self.opened += 1
            return True
        return False

    def succeeded(self) -> bool:
        """The replica answered a request."""
        self._failures = 0
        if self.state is not State.TRIAL:  # an answer to what was sent before it opened closes nothing
            return False
        self.state, self.opened = State.CLOSED, 0
        return True

    def look(self, now: float) -> bool:
        """Whether it is time for a trial now."""
        if self.state is not State.OPEN or now < self.until:
            return False
        self.state = State.HALF_OPEN
        return True

    def try_out(self) -> None:
        """A request is sent on trial."""
        self.state = State.TRIAL

    def undecided(self) -> bool:
        """The trial ended without a verdict, as when its client left: the next request is one, too."""
        if self.state is not State.TRIAL:
            return False
        self.state = State.HALF_OPEN
        return True
