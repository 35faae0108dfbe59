"""Read one request's body, of a known length or chunked, under the limits of the request and of all requests together."""

from __future__ import annotations

from gateway.errors import Refusal
from gateway.http1.chunked import ChunkDecoder
from gateway.refusals import overloaded


class BodyBudget:
    """Bounds one body, and the sum of all that are held at once."""

    def __init__(self, each_bytes: int, total_bytes: int) -> None:
        self._each = each_bytes
        self._total = total_bytes
        self.held = 0

    def take(self, before: int, size: int) -> None:
        """A body known to have `before` bytes turns out to have `size`; raises Refusal 413 or 503."""
        if size > self._each:
            message = f"the request body is too large: {size} bytes or more, the limit is {self._each}"
            raise Refusal(413, message, code="body_too_large", close=True)
        if self.held and self.held + size - before > self._total:
            raise overloaded("too many request bytes are held now")
        self.held += size - before


class BodyIntake:
    """One body on its way in. Announced bytes count against the budget before they come, until `release`.

    length: the announced one, None for a chunked body. received: bytes so far, framing included: the sign of progress.
    """

    __slots__ = ("_budget", "_decoder", "_length", "_pieces", "_reserved", "received", "rest")

    def __init__(self, length: int | None, budget: BodyBudget) -> None:
        self._budget = budget
        self._length = length or 0
        self._decoder = ChunkDecoder() if length is None else None
        self._pieces: list[bytes] = []
        self._reserved = 0
        self.received = 0
        self.rest = b""
        self._reserve(self._length)

    def feed(self, data: bytes) -> bytes | None:
        """The whole body once it is there; `rest` is then what came behind it. Raises Refusal, FramingError."""
        self.received += len(data)
        if self._decoder is not None:
            return self._chunked(self._decoder, data)
        if self.received < self._length:
            self._pieces.append(data)
            return None
        extra = self.received - self._length
        if extra:
            data, self.rest = data[: len(data) - extra], data[len(data) - extra :]
        if not self._pieces:
            return data
        # One join of the pieces; reading into a buffer of the right size is slower (cold memory, page faults).
        body = b"".join((*self._pieces, data))
        self._pieces = []
        return body

    def release(self) -> None:
        """The body is not held any more."""
        self._budget.held -= self._reserved
        self._reserved = 0
        self._pieces = []

    def _chunked(self, decoder: ChunkDecoder, data: bytes) -> bytes | None:
        self._pieces += decoder.feed(data)
        self._reserve(decoder.announced)
        if not decoder.finished:
            return None
        self.rest = decoder.rest
        body = b"".join(self._pieces)
        self._pieces = []
        return body

    def _reserve(self, size: int) -> None:
        self._budget.take(self._reserved, size)
        self._reserved = size
