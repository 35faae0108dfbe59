"""Whether a replica gets our ids: an engine that gets them counts what it got, so its count proves nothing.

Now and then a request that could take its ids goes as text, and the engine's own count is compared with ours (FC-22). The same is
learned from every request that takes none, such as chats of vLLM.
"""

from __future__ import annotations

_TEXT_EVERY = 64  # requests that could take ids


class IdsProof:
    """Of one replica. agree: its last own count of a prompt was ours."""

    __slots__ = ("_until_text", "agree")

    def __init__(self) -> None:
        self.agree = True
        self._until_text = _TEXT_EVERY

    def take(self) -> bool:
        """Whether the next request that could take ids does; each call is for one."""
        if not self.agree:
            return False
        self._until_text -= 1
        if self._until_text:
            return True
        self._until_text = _TEXT_EVERY
        return False

    def counted(self, *, same: bool) -> bool:
        """The engine counted a prompt that it tokenized itself; True where that changes what it gets."""
        changed = same is not self.agree
        self.agree = same
        return changed
