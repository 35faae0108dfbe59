"""Words of the event stream; the changes themselves are the index's (`radix.changes`) and re-exported here."""

from __future__ import annotations

from enum import Enum

from radix.changes import Batch, Cleared, Event, NamespaceHint, Removed, Stored, Tier

__all__ = ["Batch", "Cleared", "Event", "EventsError", "Freshness", "NamespaceHint", "Removed", "Stored", "Tier"]


class EventsError(Exception):
    """Root of what can go wrong with an event stream."""


class Freshness(Enum):
    """How far the view of one holder can be believed."""

    LIVE = "live"
    GAP = "gap"  # something was missed and is being healed
    PARTIAL = "partial"  # joined late or lost a gap: what is known is true, but not all of it is known
    COLD = "cold"  # nothing heard yet
    SILENT = "silent"  # requests were answered that should have stored blocks, and no event came
