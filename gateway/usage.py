"""Find the token counts an engine reports, without parsing the answer: look for the word, read digits only there.

Text that a model writes can not pass for it: inside a JSON string its quotes are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from gateway.request import Usage

USAGE = b'"usage"'
# The counts hold one level of details objects at most and no text.
_OBJECT = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_HELD_BYTES = 4096

Read = Callable[[object], Usage | None]


def usage_in(data: bytes, read: Read | None = None) -> Usage | None:
    """The last complete counts in `data`: engines that report continuously end with the right ones."""
    found = None
    for match in _OBJECT.finditer(data):
        found = _read(match[1], read or usage_from) or found
    return found


class UsageScanner:
    """Finds the counts in an answer that comes in any cuts (FC-41). Costs one search per read where there are none."""

    __slots__ = ("_held", "_read", "found")

    def __init__(self, read: Read | None = None) -> None:
        """read: what the counts mean in this API, from the parsed object."""
        self._held = b""
        self._read = read or usage_from
        self.found: Usage | None = None

    def feed(self, data: bytes) -> None:
        """Look at the next piece of the answer."""
        if self._held:
            data = self._held + data
        start = data.rfind(USAGE)
        if start >= 0:
            self.found = usage_in(data, self._read) or self.found
            if _OBJECT.match(data, start) is None and len(data) - start <= _HELD_BYTES:
                self._held = data[start:]  # counts that are cut are held until they are whole
                return
        self._held = data[1 - len(USAGE) :]  # the word itself may be cut


def usage_from(counts: object) -> Usage | None:
    """Counts as they stand in the parsed answer; None where they are not there or not whole numbers."""
    if not isinstance(counts, dict):
        return None
    prompt = count(counts.get("prompt_tokens"))
    completion = count(counts.get("completion_tokens", 0))
    if prompt is None or completion is None:
        return None
    details = counts.get("prompt_tokens_details")
    return Usage(prompt, completion, count(details.get("cached_tokens")) if isinstance(details, dict) else None)


def count(value: object) -> int | None:
    """A number of tokens; None for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _read(text: bytes, read: Read) -> Usage | None:
    try:
        counts: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return read(counts)
