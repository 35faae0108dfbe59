"""What can go wrong with an event stream, beside the root `EventsError` of `events.types`."""

from __future__ import annotations

from events.types import EventsError


class DecodeError(EventsError):
    """A payload is no batch of events; the text says what it is instead."""


class ReplayError(EventsError):
    """A replay was not answered to its end, or not in a form that can be read."""


class PollError(EventsError):
    """A queue of events was not read; the text says why. What it held is still there, unless the answer was lost on the way."""


class LostAnswer(PollError):
    """A queue answered, which empties it, and the answer could not be read: what it told is lost."""


class EndpointError(EventsError):
    """An endpoint cannot be used; the text names it."""


class CaptureError(EventsError):
    """A capture cannot be used; the text names the line."""


class RelayDataError(EventsError):
    """Bytes that a relay is said to have written are no entry or snapshot of one; the text says why."""


class Fenced(EventsError):
    """Another relay writes this rank now; the text names both."""
