"""Guesses: what our own choices will make a holder cache, until its events say so or a few seconds have passed (FC-28).

They are kept apart from what is known. A guess covers a whole prompt from its start, so its small tree counts guesses per node
and holder, and needs no handles. Guesses of one node never exceed those of its parent, which is what makes joining safe.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from radix.match import TIERS, Int32Array
from radix.namespace import Namespace
from radix.plain import common_blocks
from radix.presence import mask_of
from radix.tree import TOKEN_BYTES

_FEW = 24  # holders up to which a loop is faster than arrays


class _Path:
    """A run of tokens with the number of guesses that cover it, per holder. bits: the holders in `counts`."""

    __slots__ = ("bits", "children", "counts", "parent", "tokens")

    def __init__(self, parent: _Path | None, tokens: bytearray, counts: dict[int, int], bits: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.counts = counts
        self.bits = bits
        self.children: dict[bytes, _Path] = {}

    def key(self) -> bytes:
        return bytes(self.tokens[:TOKEN_BYTES])

    def add(self, holder: int) -> None:
        """One more guess."""
        count = self.counts.get(holder, 0)
        self.counts[holder] = count + 1
        if not count:
            self.bits |= 1 << holder

    def take(self, holder: int) -> None:
        """One guess less."""
        left = self.counts[holder] - 1
        if left:
            self.counts[holder] = left
        else:
            del self.counts[holder]
            self.bits ^= 1 << holder


class Guess:
    """One guess: a prompt of `tokens` tokens is or will be on the holder. end: the last node of its path."""

    __slots__ = ("end", "expires_at", "holder", "namespace", "number", "tokens")

    def __init__(self, number: int, holder: int, namespace: Namespace, tokens: int, expires_at: float, end: _Path) -> None:
        self.number = number
        self.holder = holder
        self.namespace = namespace
        self.tokens = tokens
        self.expires_at = expires_at
        self.end = end

    def prompt(self) -> bytes:
        """The guessed tokens, int32 bytes."""
        parts: list[bytearray] = []
        node: _Path | None = self.end
        while node is not None:
            parts.append(node.tokens)
            node = node.parent
        return b"".join(reversed(parts))


class Guesses:
    """All live guesses; over `limit` the one that ends first is given up."""

    def __init__(self, limit: int = 65_536) -> None:
        self._limit = limit
        self._next = 1
        self._roots: dict[bytes, _Path] = {}
        self._by_number: dict[int, Guess] = {}
        self._by_end: SortedDict = SortedDict()  # (expires_at, number) -> guess
        self._by_holder: dict[int, dict[int, Guess]] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, holder: int, namespace: Namespace, tokens: Int32Array, expires_at: float) -> int:
        """Remember a guess until `expires_at`; returns its number."""
        number = self._next
        self._next += 1
        data = tokens.tobytes()
        end = self._cover(self._roots.setdefault(namespace.key(), _Path(None, bytearray(), {}, 0)), data, holder)
        guess = Guess(number, holder, namespace, len(tokens), expires_at, end)
        self._by_number[number] = guess
        self._by_end[expires_at, number] = guess
        self._by_holder.setdefault(holder, {})[number] = guess
        if len(self._by_number) > self._limit:
            self.withdraw(self._by_end.peekitem(0)[1].number)
        return number

    def withdraw(self, number: int) -> bool:
        """Forget a guess; False when it is gone already."""
        guess = self._by_number.pop(number, None)
        if guess is None:
            return False
        del self._by_end[guess.expires_at, number]
        of_holder = self._by_holder[guess.holder]
        del of_holder[number]
        if not of_holder:
            del self._by_holder[guess.holder]
        self._uncover(guess)
        return True

    def expire(self, now: float) -> int:
        """Forget what ended at or before `now`; returns how many guesses that were."""
        ended = 0
        while self._by_end and self._by_end.peekitem(0)[0][0] <= now:
            self.withdraw(self._by_end.peekitem(0)[1].number)
            ended += 1
        return ended

    def forget(self, holder: int) -> None:
        """Withdraw all guesses of one holder."""
        for number in list(self._by_holder.get(holder, ())):
            self.withdraw(number)

    def any_of(self, holder: int) -> bool:
        """Whether a holder has any."""
        return holder in self._by_holder

    def of(self, holder: int) -> Iterator[Guess]:
        """The live guesses of one holder; may be withdrawn while iterating."""
        return iter(list(self._by_holder.get(holder, {}).values()))

    def credit(
        self, namespace: Namespace, query: bytes, block_tokens: Int32Array, depth: Int32Array, guessed: npt.NDArray[np.bool_]
    ) -> None:
        """Raise `depth` [holders, TIERS] to the leading tokens of `query` (int32 bytes) that are guessed, in whole blocks.

        block_tokens: int32 [holders], 0 where it is not known. guessed: [holders], set where something was raised.
        """
        done = 0
        rows, marks = depth.data, guessed.data  # one number at a time numpy takes ten times as long for
        for bits, tokens in reversed(self._along(namespace, query)):  # guesses of a node are among those of the one above it
            new = bits & ~done
            done |= bits
            if new.bit_count() > _FEW:
                _raise_many(new, tokens, block_tokens, depth, guessed)
                continue
            while new:
                lowest = new & -new
                new ^= lowest
                holder = lowest.bit_length() - 1
                whole = int(block_tokens[holder])
                credit = tokens - tokens % whole if whole else tokens
                if credit > rows[holder, 0]:
                    marks[holder] = True
                    for tier in range(TIERS):
                        rows[holder, tier] = max(rows[holder, tier], credit)

    def _along(self, namespace: Namespace, query: bytes) -> list[tuple[int, int]]:
        """(bits of the holders, tokens from the start) of each node that a prompt goes through."""
        along: list[tuple[int, int]] = []
        node = self._roots.get(namespace.key())
        offset = 0
        while node is not None:
            node = node.children.get(query[offset : offset + TOKEN_BYTES])
            if node is None:
                break
            whole = query.startswith(node.tokens, offset)
            offset += len(node.tokens) if whole else TOKEN_BYTES * common_blocks(node.tokens, 0, query, offset, TOKEN_BYTES)
            along.append((node.bits, offset // TOKEN_BYTES))
            if not whole:
                break
        return along

    def _cover(self, node: _Path, data: bytes, holder: int) -> _Path:
        """Count one more guess along `data`; returns the node that ends where it ends."""
        offset = 0
        while offset < len(data):
            child = node.children.get(data[offset : offset + TOKEN_BYTES])
            if child is None:
                child = _Path(node, bytearray(data[offset:]), {}, 0)
                node.children[child.key()] = child
            same = TOKEN_BYTES * common_blocks(child.tokens, 0, data, offset, TOKEN_BYTES)
            if same < len(child.tokens):
                child = _split(child, same)
            child.add(holder)
            offset += same
            node = child
        return node

    def _uncover(self, guess: Guess) -> None:
        node = guess.end
        while node.parent is not None:
            parent = node.parent
            node.take(guess.holder)
            if not node.counts:
                del parent.children[node.key()]
            node = parent
        key = guess.namespace.key()
        if not node.children and self._roots.get(key) is node:
            del self._roots[key]
        _join_path(guess.end)


def _raise_many(bits: int, tokens: int, block_tokens: Int32Array, depth: Int32Array, guessed: npt.NDArray[np.bool_]) -> None:
    """As the loop over holders; some 12 us, whatever their number."""
    holders = np.flatnonzero(mask_of(bits, len(depth)))
    whole = np.maximum(block_tokens[holders], 1)
    credit = np.int32(tokens) - np.int32(tokens) % whole
    raised = credit > depth[holders, 0]
    holders, credit = holders[raised], credit[raised]
    guessed[holders] = True
    depth[holders] = np.maximum(depth[holders], credit[:, None])


def _split(node: _Path, cut: int) -> _Path:
    """Cut a path after `cut` bytes; the lower part keeps its identity, since guesses end there."""
    parent = node.parent
    assert parent is not None
    upper = _Path(parent, node.tokens[:cut], dict(node.counts), node.bits)
    parent.children[upper.key()] = upper
    del node.tokens[:cut]
    node.parent = upper
    upper.children[node.key()] = node
    return upper


def _join_path(node: _Path) -> None:
    """From a node upwards: where a single child is covered by the same guesses, no guess ends between, so join them."""
    at: _Path | None = node
    while at is not None:
        above = at.parent
        if at.counts and above is not None and len(at.children) == 1:
            (child,) = at.children.values()
            if child.counts == at.counts:
                child.tokens[0:0] = at.tokens
                child.parent = above
                above.children[child.key()] = child
        at = above
