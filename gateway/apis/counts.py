"""Token counts as each API writes them: from the object behind "usage", or from the figures of SGLang's "meta_info"."""

from __future__ import annotations

import re

from gateway.request import Usage
from gateway.usage import count

META = b'"meta_info"'
_FIGURE = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)"\s*:\s*(\d{1,15})(?=[\s,}])')
_FIGURE_BYTES = 64  # the longest figure with its name and blanks


def response_usage(counts: object) -> Usage | None:
    """Of /v1/responses: {"input_tokens", "input_tokens_details": {"cached_tokens"}, "output_tokens"}."""
    if not isinstance(counts, dict):
        return None
    prompt, output = count(counts.get("input_tokens")), count(counts.get("output_tokens"))
    if prompt is None or output is None:
        return None
    details = counts.get("input_tokens_details")
    return Usage(prompt, output, count(details.get("cached_tokens")) if isinstance(details, dict) else None)


def message_usage(counts: object) -> Usage | None:
    """Of /v1/messages, whose `input_tokens` are those that were neither read from a cache nor written to one."""
    if not isinstance(counts, dict):
        return None
    fresh, output = count(counts.get("input_tokens")), count(counts.get("output_tokens", 0))
    if fresh is None or output is None:
        return None
    read, written = count(counts.get("cache_read_input_tokens")), count(counts.get("cache_creation_input_tokens"))
    return Usage(fresh + (read or 0) + (written or 0), output, read)


class MetaScanner:
    """Finds the figures of SGLang's `meta_info` in an answer that comes in any cuts (FC-41); the last ones count."""

    __slots__ = ("_figures", "_held")

    def __init__(self) -> None:
        self._held = b""
        self._figures: dict[bytes, int] = {}

    @property
    def found(self) -> Usage | None:
        """The counts so far."""
        prompt, output = self._figures.get(b"prompt_tokens"), self._figures.get(b"completion_tokens")
        if prompt is None or output is None:
            return None
        return Usage(prompt, output, self._figures.get(b"cached_tokens"))

    def feed(self, data: bytes) -> None:
        """Look at the next piece of the answer. In a text their quotes are escaped, so no model can write them."""
        data = self._held + data
        for name, digits in _FIGURE.findall(data):
            self._figures[name] = int(digits)
        self._held = data[-_FIGURE_BYTES:]
