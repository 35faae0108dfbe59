"""Between engines and many gateways: one process follows the engines and writes what they say to Redis Streams, compactly."""

from __future__ import annotations
