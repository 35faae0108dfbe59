"""Our own block pool with what a fake engine needs beside it: adapters, and the other cache groups of a hybrid model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from events.types import Event, NamespaceHint, Removed, Stored
from radix.changes import GroupKind
from replicas.blocks import BlockPool, Tokens
from replicas.mock.groups import GroupSpec, SparseGroup

_BETWEEN = "\0"  # neither adapters nor salts may contain it


def namespace_of(adapter: str | None, salt: str | None) -> str | None:
    """What separates equal tokens, as the one string the pool takes; None for the base model without a salt."""
    return f"{adapter or ''}{_BETWEEN}{salt or ''}" if adapter or salt else None


def hint_of(namespace: str | None) -> NamespaceHint:
    """The adapter and salt of `namespace_of`."""
    adapter, _, salt = (namespace or "").partition(_BETWEEN)
    return NamespaceHint(adapter or None, salt or None)


class CachePool(BlockPool):
    """A pool whose `salt` is a `namespace_of`, and whose hits end where every cache group can go on.

    groups: by number; none means one plain group, of which events say nothing. group_blocks: what each sparse group keeps.
    caching: without it no block ever becomes a hit.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        groups: Sequence[GroupSpec] = (),
        group_blocks: int = 0,
        *,
        caching: bool = True,
    ) -> None:
        self._caching = caching
        self._groups = tuple(groups)
        self._main = next((number for number, group in enumerate(groups) if group.kind is GroupKind.FULL), 0)
        self.sparse = [
            SparseGroup(number, group, block_tokens, group_blocks or num_blocks)
            for number, group in enumerate(groups)
            if group.kind is not GroupKind.FULL
        ]
        self._namespace: str | None = None
        super().__init__(num_blocks, block_tokens)

    def lookup(self, tokens: Tokens, salt: str | None = None) -> list[int]:
        """As the pool's, cut back to where all groups can go on."""
        found = super().lookup(tokens, salt)
        if not self.sparse or not found:
            return found
        names = self.names(found)
        blocks = next((n for n in range(len(names), 0, -1) if all(group.serves(names, n) for group in self.sparse)), 0)
        for group in self.sparse if blocks else ():
            group.touch(names[:blocks])
        return found[:blocks]

    def commit(self, blocks: Sequence[int], first: int, tokens: Tokens, salt: str | None = None) -> None:
        """As the pool's, for every group."""
        if not self._caching:
            return
        self._namespace = salt
        super().commit(blocks, first, tokens, salt)

    def reset(self) -> bool:
        """As the pool's, for every group."""
        done = super().reset()
        for group in self.sparse if done else ():
            group.clear()
        return done

    def _tell(self, event: Event) -> None:
        if isinstance(event, Stored):
            event = replace(event, namespace_hint=hint_of(self._namespace))
            if self._groups:
                event = replace(event, group=self._main, kind=GroupKind.FULL)
        elif isinstance(event, Removed):
            event = replace(event, group=self._main)
        super()._tell(event)
        if isinstance(event, Stored):
            for group in self.sparse:
                for told in group.store(event):
                    super()._tell(told)
