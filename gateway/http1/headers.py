"""Which header fields may pass a gateway and which belong to one connection only (FC-36).

Fields travel as (name, value) pairs in the order they came, so that repeated fields stay separate and in order (FC-35).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from http import HTTPStatus

Field = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# The gateway writes these itself, for what it really sends.
FRAMING = frozenset((b"host", b"content-length", b"expect"))
CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key"))
_OWN_PREFIX = b"x-trunkline-"
_ENGINES_OWN = frozenset((b"x-trunkline-cached-tokens",))  # said by our replicas about the answer itself


def connection_options(fields: Iterable[Field]) -> frozenset[bytes]:
    """Everything the Connection fields name, in lower case: options such as close, and fields to drop."""
    options: set[bytes] = set()
    for name, value in fields:
        if name.lower() == b"connection":
            options.update(option.strip() for option in value.lower().split(b","))
    options.discard(b"")
    return frozenset(options)


def lines(fields: Iterable[Field], without: Collection[bytes]) -> bytes:
    """The fields as they go on the wire, less those whose lower-case name is in `without`."""
    return b"".join(b"%s: %s\r\n" % field for field in fields if field[0].lower() not in without)


def without_own(fields: Iterable[Field]) -> list[Field]:
    """An engine's fields less those the gateway alone may say: in front of ours they would be believed first."""
    return [field for field in fields if not field[0].lower().startswith(_OWN_PREFIX) or field[0].lower() in _ENGINES_OWN]


def lines_of(fields: Iterable[Field], names: Collection[bytes]) -> bytes:
    """Only the fields whose lower-case name is in `names`, as they go on the wire."""
    return b"".join(b"%s: %s\r\n" % field for field in fields if field[0].lower() in names)


def status_line(status: int) -> bytes:
    """The first line of an answer the gateway makes itself."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return b"HTTP/1.1 %d %s\r\n" % (status, phrase.encode())
