"""Bytes of an event bus into batches: `decode` looks at the shape of what it gets, never at a version."""

from __future__ import annotations

from events.decode.engine_wire import decode, read

__all__ = ["decode", "read"]
