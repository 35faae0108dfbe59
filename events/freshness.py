"""How far one holder's view can be believed, and since when its engine owes us events. No clock: `now` is passed in."""

from __future__ import annotations

from events.types import Freshness


class Trust:
    """The freshness of one holder.

    What the stream says (`base`) is overlaid by SILENT once requests were answered that should have stored new full blocks and
    nothing came for `grace_s` (FC-05). Silence alone means nothing: an idle engine sends no events.
    """

    __slots__ = ("_base", "_owed_since", "grace_s", "silent")

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.silent = False
        self._base = Freshness.COLD
        self._owed_since: float | None = None

    @property
    def state(self) -> Freshness:
        """What the chooser should think of the view."""
        return Freshness.SILENT if self.silent else self._base

    @property
    def base(self) -> Freshness:
        """The same without regard to owed events."""
        return self._base

    def set(self, base: Freshness) -> bool:
        """What the stream says now; True when `state` changed by it."""
        before = self.state
        self._base = base
        return self.state is not before

    def heard(self) -> bool:
        """Events came; True when `state` changed by it."""
        self._owed_since = None
        changed, self.silent = self.silent, False
        return changed

    def answered(self, now: float) -> bool:
        """A request ended that should have stored new full blocks; True when `state` changed by it."""
        if self._owed_since is None:
            self._owed_since = now
        if self.silent or now - self._owed_since < self.grace_s:
            return False
        self.silent = True
        return True
