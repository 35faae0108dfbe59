"""Token ids into text as they come, and the place where a stop string ends it.

Only whole characters leave (FC-48): a token may end in the middle of one. Nothing leaves either that could be the start of a stop
string. Joined, what leaves is the plain decode of all ids, up to the stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT = "\ufffd"
_LONG_WINDOW = 32  # ids after which a window that did not slide is cut
_KEPT = 8  # ids that such a cut leaves; a character spans four tokens at most, so one of a few cuts falls between two
_OPEN_BYTES = 3  # an unfinished UTF-8 character has at most three bytes, so at most three replacement characters can still change


class Detokenizer:
    """Text of one growing list of ids."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []  # the ids that the next piece of text depends on
        self._context = 0  # leading ids of the window whose text is out, kept because some decoders look back
        self._out = 0  # characters of the window's text that are out

    def push(self, token: int) -> str:
        """The text that is certain now and was not before."""
        self._window.append(token)
        text = self._decode(self._window)
        certain = text.rstrip(_REPLACEMENT)
        open_characters = min(len(text) - len(certain), _OPEN_BYTES)
        end = len(text) - open_characters
        piece = text[self._out : end]
        self._out = max(self._out, end)
        if piece and not open_characters:
            self._slide()
        elif not piece and not self._decode((token, token)):
            self._window.pop()  # a special token: no text wherever it stands
        elif len(self._window) % _LONG_WINDOW == 0:
            self._cut(text)
        return piece

    def flush(self) -> str:
        """The rest at the end of the text, as the plain decode gives it."""
        text = self._decode(self._window)
        piece = text[self._out :]
        self._out = len(text)
        return piece

    def _slide(self) -> None:
        """Keep only what came since the last slide, as context; at this point the text ends with a whole character."""
        del self._window[: self._context]
        self._context = len(self._window)
        self._out = len(self._decode(self._window))

    def _cut(self, text: str) -> None:
        """Drop the start of a window whose text never ended in a whole character, or each token would cost more than the last.

        A cut is right where both sides, decoded alone, give the same as together, for the characters around it are then decided:
        bytes that belong to one character would give more characters apart. More than the open ones have to stay behind it, so
        that what is broken for certain stays so.
        """
        for cut in range(len(self._window) - _KEPT, len(self._window) - 2 * _KEPT, -1):
            rest = self._decode(self._window[cut:])
            if len(rest) > _OPEN_BYTES and self._decode(self._window[:cut]) + rest == text:
                del self._window[:cut]
                self._out -= len(text) - len(rest)
                self._context = 0
                return


class StopStrings:
    """Cuts a text before the first stop string in it.

    First is the one that ends first, and of those the longest, so that the result does not depend on how the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(what may leave, whether a stop string was reached); after a stop nothing more may be pushed."""
        if not self._stops:
            return text, False
        held = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)[1]], True
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def release(self) -> str:
        """What was held back, when the text ends without a stop or stops may not end it yet."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
