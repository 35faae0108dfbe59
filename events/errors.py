"""What can go wrong with an event stream, beside the root `EventsError` of `events.types`."""

from __future__ import annotations

from events.types import EventsError


class DecodeError(EventsError):
    """A payload is no batch of events; the text says what it is instead."""


class ReplayError(EventsError):
    """A replay was not answered to its end, or not in a form that can be read."""


class EndpointError(EventsError):
    """An endpoint cannot be used; the text names it."""


class CaptureError(EventsError):
    """A capture cannot be used; the text names the line."""
