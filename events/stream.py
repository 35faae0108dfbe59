"""What feeds one holder with events, whichever way they come."""

from __future__ import annotations

from typing import Protocol

from events.apply import Counts
from events.types import Freshness


class Stream(Protocol):
    """Keeps the view of one holder in step with its engine, from `start` to `stop`."""

    holder: int

    @property
    def freshness(self) -> Freshness:
        """How far the view can be believed now."""
        ...

    @property
    def connected(self) -> bool:
        """The engine is there and is listened to."""
        ...

    @property
    def counts(self) -> Counts:
        """What happened so far."""
        ...

    def start(self) -> None:
        """Begin, on the running event loop."""
        ...

    async def stop(self) -> None:
        """End; the view stays as it is."""
        ...

    def suspect(self) -> None:
        """The engine died: drop the view now, and build it anew from whoever answers there next."""
        ...

    def note_answered(self, new_tokens: int) -> None:
        """A request ended here that computed `new_tokens` of its prompt: events are owed (FC-05)."""
        ...
