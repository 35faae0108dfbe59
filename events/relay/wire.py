"""Numbers and strings in a relay's bytes: variable-length integers, and a reader that never reads past the end."""

from __future__ import annotations

from events.errors import RelayDataError

_MAX_VARINT_BYTES = 10
MAX_UINT = 1 << 7 * _MAX_VARINT_BYTES


def put_uint(out: bytearray, value: int) -> None:
    """A natural number below `MAX_UINT`, seven bits a byte, lowest first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_int(out: bytearray, value: int) -> None:
    """A number of either sign; small ones are short."""
    put_uint(out, value << 1 if value >= 0 else ~(value << 1))


def put_bytes(out: bytearray, value: bytes) -> None:
    """A string behind its length."""
    put_uint(out, len(value))
    out += value


class Reader:
    """Reads what `put_*` wrote, from the front; raises RelayDataError where the bytes end too early or say nonsense."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._at

    def byte(self) -> int:
        """The next byte."""
        if self._at >= len(self._data):
            raise RelayDataError("ends too early")
        self._at += 1
        return self._data[self._at - 1]

    def uint(self) -> int:
        """A natural number."""
        data, at, value = self._data, self._at, 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            if at >= len(data):
                raise RelayDataError("ends inside a number")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = at
                return value
        raise RelayDataError("a number has more than 70 bits")

    def signed(self) -> int:
        """A number of either sign."""
        value = self.uint()
        return ~(value >> 1) if value & 1 else value >> 1

    def take(self, count: int) -> bytes:
        """So many bytes."""
        if count > self.left:
            raise RelayDataError(f"wants {count} bytes where {self.left} are left")
        self._at += count
        return self._data[self._at - count : self._at]

    def string(self) -> bytes:
        """A string."""
        return self.take(self.uint())

    def text(self) -> str:
        """A string of UTF-8."""
        try:
            return self.string().decode()
        except UnicodeDecodeError as error:
            raise RelayDataError(f"a text is not UTF-8: {error.reason}") from None
