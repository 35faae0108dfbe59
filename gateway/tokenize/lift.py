"""Long texts of earlier bodies, recognised in the raw JSON of a new one and not parsed again.

A known literal costs one comparison of memory. In its place the parser gets a short literal, the mark, and right after the
parse the mark is exchanged for the text itself: nothing behind `parse` ever sees a mark, and the body that is forwarded is
not touched.

Why that is sound: the bytes `t":` and then `"` stand only before a value. Within a string every quote is escaped, so this
first quote ends one; if it began one, a bare `t` stood outside of all strings and the body is no JSON with or without the
exchange. A literal is exchanged whole, both quotes included, for a literal: what was valid stays valid, what was not does
not become so. A mark holds a secret of this process, so no client can write one. If one mark is not found again where texts
of messages are (a duplicate key, an object elsewhere), the whole body is parsed.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

_SMALLEST_BODY_BYTES = 4096
_LARGEST_BODY_BYTES = 8 * 1024 * 1024  # searching more for what may not be there would hold up the loop
_MOST_NEW_BYTES = 1024 * 1024  # of a body beside what is known; learning 400 KB takes some 2 ms, once
_SHORTEST = 2048  # characters of a text, and bytes of its literal, that are worth it
_START_BYTES = 192  # literals are found by so many of their first bytes
_CANDIDATES = 8  # with the same start, tried one after the other
_PLACES = 2_000  # looked at in one body; a chat has about one a message
_LARGEST_SHARE = 8  # one text may take an eighth of the budget
_ENTRY_BYTES = 600

_LITERAL = re.compile(rb'"(?:[^"\\]+|\\.)*+"', re.DOTALL)
_BEFORE_VALUE = b't":'  # as in "content": and "text":


@dataclass(slots=True, eq=False)
class _Known:
    """raw: the literal with its quotes, as it stood in a valid body; text: what the parser made of it."""

    raw: bytes
    text: str
    mark: str
    mark_literal: bytes

    @property
    def bytes(self) -> int:
        return len(self.raw) + sys.getsizeof(self.text) + _ENTRY_BYTES


class LiftedStrings:
    """Parses bodies, and remembers their long texts under a byte budget. The loop alone uses it.

    hits and misses count bodies above 4 KB in which a text was known, and in which none was.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes = self.hits = self.misses = 0
        self._secret = secrets.token_hex(16)
        self._count = 0
        self._mark_length = len(self._next_mark())
        self._by_start: dict[bytes, list[_Known]] = {}
        self._by_mark: OrderedDict[str, _Known] = OrderedDict()  # the one used longest ago first

    def __len__(self) -> int:
        return len(self._by_mark)

    def parse(self, body: bytes, loads: Callable[[bytes], Any] = orjson.loads) -> Any:
        """What `loads(body)` returns or raises; equal long texts of different bodies are one object."""
        if not _SMALLEST_BODY_BYTES <= len(body) <= _LARGEST_BODY_BYTES:
            return loads(body)
        short, lifted = self._shortened(body)
        value = loads(short)
        if lifted and not self._restore(value, lifted):
            return loads(body)
        self.hits += lifted > 0
        self.misses += lifted == 0
        if _SMALLEST_BODY_BYTES <= len(short) <= _MOST_NEW_BYTES:
            self._learn(short, value)
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._by_start.clear()
        self._by_mark.clear()
        self.bytes = 0

    def _shortened(self, body: bytes) -> tuple[bytes, int]:
        """The body with a mark in place of each known literal, and their number."""
        pieces: list[bytes] = []
        copied = at = 0
        for _ in range(_PLACES):
            at = _next_value(body, at)
            if at < 0:
                break
            known = self._known(body, at)
            if known is not None:
                pieces += (body[copied:at], known.mark_literal)
                copied = at = at + len(known.raw)
        if not pieces:
            return body, 0
        pieces.append(body[copied:])
        return b"".join(pieces), len(pieces) // 2

    def _known(self, body: bytes, at: int) -> _Known | None:
        for known in self._by_start.get(body[at : at + _START_BYTES], ()):
            if body.startswith(known.raw, at):
                self._by_mark.move_to_end(known.mark)
                return known
        return None

    def _restore(self, value: Any, lifted: int) -> bool:
        """Put the texts in place of the marks; whether as many were found as were written."""
        for holder, field in _text_places(value):
            text = holder[field]
            known = self._by_mark.get(text) if len(text) == self._mark_length else None
            if known is not None:
                holder[field] = known.text
                lifted -= 1
        return lifted == 0

    def _learn(self, body: bytes, value: Any) -> None:
        """Remember the long texts of a parsed body: each costs a match of its literal and one more parse of it, once."""
        texts = {holder[field]: holder[field] for holder, field in _text_places(value) if len(holder[field]) >= _SHORTEST}
        if not texts:
            return
        at = 0
        for _ in range(_PLACES):
            at = _next_value(body, at)
            literal = _LITERAL.match(body, at) if at >= 0 else None
            if literal is None:
                return
            start, at = at, literal.end()
            if at - start < _SHORTEST:
                continue
            raw = literal.group()
            text = texts.get(orjson.loads(raw))
            if text is not None:
                self._remember(raw, text)

    def _remember(self, raw: bytes, text: str) -> None:
        same_start = self._by_start.setdefault(raw[:_START_BYTES], [])
        if any(known.raw == raw for known in same_start):
            return
        mark = self._next_mark()
        known = _Known(raw, text, mark, b'"%s"' % mark.encode())
        if known.bytes > self.budget_bytes // _LARGEST_SHARE:
            if not same_start:
                del self._by_start[raw[:_START_BYTES]]
            return
        same_start.insert(0, known)
        self._by_mark[mark] = known
        self.bytes += known.bytes
        if len(same_start) > _CANDIDATES:
            self._forget(same_start[-1])
        while self.bytes > self.budget_bytes:
            self._forget(next(iter(self._by_mark.values())))

    def _next_mark(self) -> str:
        self._count += 1
        return f"\ue000{self._secret}{self._count:016x}\ue001"

    def _forget(self, known: _Known) -> None:
        start = known.raw[:_START_BYTES]
        self._by_start[start].remove(known)
        if not self._by_start[start]:
            del self._by_start[start]
        del self._by_mark[known.mark]
        self.bytes -= known.bytes


def _next_value(body: bytes, at: int) -> int:
    """Where the next string value of a key that ends in 't' begins, compact or usually spaced; -1 where there is none."""
    while True:
        at = body.find(_BEFORE_VALUE, at) + 3
        if at < 3:
            return -1
        if body.startswith(b' "', at):
            return at + 1
        if body.startswith(b'"', at):
            return at


def _text_places(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the first long texts of a body stand: (object, field) of each content that is a text, of each text part, and of a
    prompt that is one text."""
    if not isinstance(value, dict):
        return
    for field in ("input", "prompt", "text"):
        if isinstance(value.get(field), str):
            yield value, field
    yield from _parts(value.get("system"), _PLACES)
    messages = value.get("messages", value.get("input"))
    left = _PLACES
    for message in messages[:left] if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield message, "content"
        elif isinstance(content, list) and left > 0:
            yield from _parts(content, left)
            left -= len(content)


def _parts(content: object, most: int) -> Iterator[tuple[dict[str, Any], str]]:
    for part in content[:most] if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part, "text"
