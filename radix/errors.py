"""The one root error of the index."""

from __future__ import annotations


class RadixError(Exception):
    """Something was asked of the index that it cannot do; the text names the value."""
