"""Which roots there are in each namespace: one for each block size and cache group, lead and image in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from radix.tree import Root, RootKey

R = TypeVar("R", bound=Root)


class Roots(Generic[R]):
    """The roots of a tree by `Namespace.key`, then by `RootKey`."""

    def __init__(self) -> None:
        self._found: dict[tuple[bytes, RootKey], R] = {}
        self._of: dict[bytes, tuple[R, ...]] = {}

    def __iter__(self) -> Iterator[R]:
        return iter(self._found.values())

    def __len__(self) -> int:
        return len(self._found)

    def find(self, namespace: bytes, key: RootKey) -> R | None:
        """One root, if it is there."""
        return self._found.get((namespace, key))

    def of(self, namespace: bytes) -> tuple[R, ...]:
        """All roots of a namespace; the same tuple until one of them comes or goes."""
        return self._of.get(namespace, ())

    def add(self, root: R) -> R:
        """A new root."""
        namespace = root.namespace.key()
        self._found[namespace, root.key_in_namespace] = root
        self._of[namespace] = (*self.of(namespace), root)
        return root

    def discard(self, root: R) -> None:
        """Forget a root."""
        namespace = root.namespace.key()
        del self._found[namespace, root.key_in_namespace]
        left = tuple([other for other in self._of[namespace] if other is not root])
        if left:
            self._of[namespace] = left
        else:
            del self._of[namespace]


def identity_of(namespace: bytes, key: RootKey) -> bytes:
    """What tells a root from all others, for its key in the compiled tree."""
    before = identity_of(*key.before) if key.before is not None else b""
    head = f"{key.block_tokens} {key.group} {len(key.lead)} {len(key.prefix)} {len(before)} ".encode()
    return head + key.lead + key.prefix + before + namespace
