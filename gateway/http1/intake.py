"""Read one request's body, of a known length or chunked, under the limits of the request and of all requests together."""

from __future__ import annotations

from gateway.errors import Refusal
from gateway.http1.chunked import ChunkDecoder
from gateway.refusals import overloaded

_SMALL_BYTES = 16 * 1024
_PIECES_A_TURN = 512
# Line ends and sizes of chunks: a start for short bodies in any chunks, and an eighth, which is chunks of 40 bytes.
_FRAMING_BYTES = 64 * 1024
_FRAMING_SHARE = 8
_WAITING_SHARE = 8


class BodyBudget:
    """Bounds the sum of all bytes that are held at once: bodies, and what waits behind open requests.

    Only bytes that came count: announcing costs a client nothing, and must take nothing from others.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self.held = 0
        self.waiting = 0

    def fits(self, before: int, size: int) -> None:
        """Raises Refusal 503 where a body can not grow from `before` to `size` bytes beside the others; takes nothing."""
        if self.held > before and self.held + size - before > self._total:
            raise overloaded("too many request bytes are held now")

    def take(self, before: int, size: int) -> None:
        """A body has grown from `before` to `size` bytes; raises Refusal 503."""
        self.fits(before, size)
        self.held += size - before

    def wait(self, before: int, size: int) -> bool:
        """What waits behind a request changes from `before` to `size` bytes; False where all such bytes get too many."""
        self.waiting += size - before
        return size <= before or self.waiting * _WAITING_SHARE <= self._total


class BodyIntake:
    """One body on its way in, held until `release`.

    length: the announced one, None for a chunked body. most: the largest body taken. received: bytes so far, framing
    included. more: bytes that came are not used up; `feed` has to be called again, with b"" too.
    """

    __slots__ = ("_budget", "_charged", "_decoder", "_length", "_most", "_pieces", "more", "received", "rest")

    def __init__(self, length: int | None, most: int, budget: BodyBudget) -> None:
        self._budget = budget
        self._length = length or 0
        self._most = most
        self._decoder = ChunkDecoder() if length is None else None
        self._pieces: list[bytes | bytearray] = []
        self._charged = 0
        self.more = False
        self.received = 0
        self.rest = b""
        self._bound(self._length)
        budget.fits(0, self._length)

    def feed(self, data: bytes) -> bytes | None:
        """The whole body once it is there; `rest` is then what came behind it. Raises Refusal, FramingError."""
        self.received += len(data)
        if self._decoder is not None:
            return self._chunked(self._decoder, data)
        if self.received < self._length:
            self._charge(self.received)
            self._keep(data)
            return None
        self._charge(self._length)
        extra = self.received - self._length
        if extra:
            data, self.rest = data[: len(data) - extra], data[len(data) - extra :]
        return self._whole(data)

    def release(self) -> None:
        """The body is not held any more."""
        self._budget.held -= self._charged
        self._charged = 0
        self._pieces = []

    def _chunked(self, decoder: ChunkDecoder, data: bytes) -> bytes | None:
        payload = b"".join(decoder.feed(data, _PIECES_A_TURN))
        self._bound(decoder.announced)
        if decoder.framing > _FRAMING_BYTES + decoder.announced // _FRAMING_SHARE:
            raise Refusal(400, "the chunks of the request body are too small", code="chunks_too_small", close=True)
        self.more = decoder.more
        if decoder.finished:
            self.rest = decoder.rest
            self._charge(decoder.announced)
            return self._whole(payload)
        self._charge(self.received)
        self._keep(payload)
        return None

    def _keep(self, data: bytes) -> None:
        """Small pieces are put together: each costs some 40 bytes more than its own."""
        if len(data) >= _SMALL_BYTES:
            self._pieces.append(data)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))

    def _whole(self, last: bytes) -> bytes:
        # One join of the pieces; reading into a buffer of the right size is slower (cold memory, page faults).
        body = b"".join((*self._pieces, last)) if self._pieces else last
        self._pieces = []
        return body

    def _bound(self, size: int) -> None:
        if size > self._most:
            message = f"the request body is too large: {size} bytes or more, the limit is {self._most}"
            raise Refusal(413, message, code="body_too_large", close=True)

    def _charge(self, size: int) -> None:
        self._budget.take(self._charged, size)
        self._charged = size
