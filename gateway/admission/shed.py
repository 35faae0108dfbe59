"""When this process itself can not keep up: who is refused, so that the others are still served.

A loop that runs late delays every stream it carries. While its lag stays above a bound, requests below the usual priority are
refused; above twice the bound those of the usual priority, too, and above four times all but the highest.
"""

from __future__ import annotations

USUAL_PRIORITY = 0
URGENT_PRIORITY = 100  # refused last
_CALM_SHARE = 0.5  # of the bound, below which all are taken again


class Shedder:
    """Turns lag into the least priority that is taken. `least` is None while all are."""

    def __init__(self, bound_s: float | None) -> None:
        """bound_s: None never refuses."""
        self._bound_s = bound_s
        self.least: int | None = None

    def look(self, steady_s: float, last_s: float) -> bool:
        """steady_s: what the lag did not fall below of late. Whether `least` changed."""
        before = self.least
        if self._bound_s is None:
            return False
        if steady_s >= 4 * self._bound_s:
            self.least = URGENT_PRIORITY
        elif steady_s >= 2 * self._bound_s:
            self.least = USUAL_PRIORITY + 1
        elif steady_s >= self._bound_s:
            self.least = USUAL_PRIORITY
        elif last_s < self._bound_s * _CALM_SHARE:
            self.least = None
        return self.least != before
