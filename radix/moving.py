"""A holder's view goes from the plain tree to the flat one, when the compiled code is there."""

from __future__ import annotations

from typing import Any

from radix.changes import Tier
from radix.holder import Holder
from radix.tree import AnyLedger, AnyTree, tokens_of


def move(owner: Holder, tree: AnyTree) -> None:
    """Give a holder the same view in another tree; costs some microseconds a block."""
    before, ledgers = owner.tree, owner.ledgers
    owner.tree, owner.ledgers = tree, {}
    for group, of_group in ledgers.items():
        for tier, ledger in zip(Tier, of_group, strict=True):
            if len(ledger):
                _Copy(before, ledger, tree, owner.ledger(group, tier)).run()
    for of_group in ledgers.values():
        for ledger in of_group:
            ledger.clear()


class _Copy:
    """One ledger's blocks, parents first. Those missing in between are stored under made-up names, which go in the end.

    source: the plain tree, whose places are good for as long as nothing is taken away.
    """

    def __init__(self, source: AnyTree, old: AnyLedger, target: AnyTree, new: AnyLedger) -> None:
        self._source = source
        self._old = old
        self._target = target
        self._new = new
        self._named: dict[Any, int] = {}  # a name of each place in the new ledger
        self._gaps: list[int] = []

    def run(self) -> None:
        for block_hash, block, copies in sorted(self._old.held(), key=lambda held: held[1].depth):
            self._reach(block)
            for _ in range(copies):
                self._store(block, block_hash)
        self._new.remove(self._gaps)

    def _reach(self, block: Any) -> None:
        """See to it that what is before a block has a name."""
        missing: list[Any] = []
        above = self._source.above(block)
        while above is not None and above not in self._named:
            missing.append(above)
            above = self._source.above(above)
        for gap in reversed(missing):
            self._store(gap, self._made_up())

    def _made_up(self) -> int:
        name = self._gaps[-1] + 1 if self._gaps else 0
        while self._old.find(name) is not None:
            name += 1
        self._gaps.append(name)
        return name

    def _store(self, block: Any, block_hash: int) -> None:
        above = self._source.above(block)
        root = self._target.root(block.root.namespace, block.root.key_in_namespace)
        parent = None if above is None else self._new.find(self._named[above])
        self._new.store(root, parent, (block_hash,), tokens_of(self._source, block))
        self._named.setdefault(block, block_hash)
