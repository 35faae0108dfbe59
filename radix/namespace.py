"""What separates equal tokens into different KV, and the only formula for its key.

The request side and the event side both come through here; FC-18, FC-19 and FC-20 are about what happens when they do not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Namespace:
    """One root of the index: two prompts can only share KV when all of this is equal.

    An empty adapter or salt is the same as none, as engines treat it.
    """

    model: str
    adapter: str | None = None
    salt: str | None = None
    media: tuple[bytes, ...] = ()

    def without_model(self) -> Namespace:
        """The root both sides look under: requests come with a model, first blocks without (FC-20)."""
        return Namespace("", self.adapter or None, self.salt or None, self.media)

    def key(self) -> bytes:
        """A byte string that is equal exactly when the namespaces are: every field tagged by kind and length (FC-19)."""
        parts = [_field(b"m", self.model.encode())]
        if self.adapter:
            parts.append(_field(b"a", self.adapter.encode()))
        if self.salt:
            parts.append(_field(b"s", self.salt.encode()))
        parts.extend(_field(b"i", item) for item in self.media)
        return b"".join(parts)


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + len(value).to_bytes(4, "little") + value
