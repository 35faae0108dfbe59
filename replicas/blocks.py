"""The block pool: which KV blocks exist, who uses them, and which prompts they can serve again.

Blocks that hold written, complete runs of tokens hang in a tree keyed by the token ids themselves, one level per block, one
root per cache salt. Tokens decide what is a hit; hashes only name blocks in events (FC-65). A block nobody uses stays a hit until
it is handed out again, least recently freed first. No torch, no I/O, no clock: the simulator runs this very pool.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from events.types import Cleared, Event, NamespaceHint, Removed, Stored
from radix.changes import as_tokens
from radix.match import Int32Array
from replicas.errors import ReplicaError

Tokens: TypeAlias = "array[int] | Int32Array"  # 32-bit ids; both give the same bytes
Digest = Callable[[bytes], bytes]

_TOKEN_BYTES = 4


def sha256(data: bytes) -> bytes:
    """The digest block ids are made of."""
    return hashlib.sha256(data).digest()


class _Run:
    """One block's worth of tokens under its prefix, and the blocks (copies) that hold its KV; a root is an empty prefix."""

    __slots__ = ("children", "copies", "digest", "key", "parent")

    def __init__(self, parent: _Run | None, key: bytes, digest: bytes) -> None:
        self.parent = parent
        self.key = key
        self.digest = digest
        self.children: dict[bytes, _Run] = {}
        self.copies: list[int] = []

    @property
    def name(self) -> int:
        """The id in events: the last 8 bytes of the digest, unsigned."""
        return int.from_bytes(self.digest[-8:], "big")


@dataclass(frozen=True, slots=True)
class Held:
    """One block's worth of tokens (32-bit ids) that is a hit. parent: the name of the run before it, None at a prompt's start."""

    salt: str | None
    parent: int | None
    name: int
    tokens: array[int]
    copies: int


class BlockPool:
    """`num_blocks` KV blocks of `block_tokens` tokens each, numbered from 0.

    announce: keep events for `drain_events`; switch it off where nobody drains. digest: 8 bytes or more, replaceable so that a
    test can force clashes.
    """

    def __init__(self, num_blocks: int, block_tokens: int, *, announce: bool = True, digest: Digest = sha256) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ReplicaError(f"a pool needs blocks, got num_blocks={num_blocks} block_tokens={block_tokens}")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._announce = announce
        self._digest = digest
        self._events: list[Event] = []
        self._reset_state()

    def _reset_state(self) -> None:
        # Of blocks that were handed out once; what is kept grows with use, so that a large pool that stays empty is small.
        self._users: list[int] = []
        self._held: list[_Run | None] = []
        self._empty: list[int] = []  # nobody uses them and they are no hits: the last is handed out first
        self._idle: OrderedDict[int, None] = OrderedDict()  # nobody uses them and they are hits: taken last, the first first
        self._roots: dict[str, _Run] = {}
        self._named: dict[int, _Run] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks nobody uses; they may still be hits."""
        return self.num_blocks - len(self._users) + len(self._empty) + len(self._idle)

    @property
    def used_blocks(self) -> int:
        """Blocks some sequence uses."""
        return self.num_blocks - self.free_blocks

    @property
    def idle_cached_blocks(self) -> int:
        """Blocks nobody uses that are hits."""
        return len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens need."""
        return -(-tokens // self.block_tokens)

    def lookup(self, tokens: Tokens, salt: str | None = None) -> list[int]:
        """The longest run of leading complete blocks whose KV is here; never the last token, which has to be computed anyway."""
        run = self._roots.get(salt or "")
        found: list[int] = []
        width = self.block_tokens * _TOKEN_BYTES
        raw = tokens.tobytes()
        for start in range(0, (len(tokens) - 1) // self.block_tokens * width, width):
            run = run.children.get(raw[start : start + width]) if run else None
            if run is None or not run.copies:
                break
            found.append(run.copies[0])
        return found

    def allocate(self, count: int, hits: Sequence[int] = (), *, spare: int = 0) -> list[int] | None:
        """Take `hits` (from `lookup`) into use and hand out `count` more blocks: all of it, or None and nothing changes.

        spare: blocks that must stay free afterwards. What the handed out blocks held is no hit any more.
        """
        idle = sum(1 for block in hits if not self._users[block])
        if self.free_blocks - idle - count < spare:
            return None
        for block in hits:
            self._use(block)
        return [self._hand_out() for _ in range(count)]

    def _use(self, block: int) -> None:
        if not self._users[block]:
            del self._idle[block]
        self._users[block] += 1

    def _hand_out(self) -> int:
        if self._empty:
            block = self._empty.pop()
        elif len(self._users) < self.num_blocks:
            block = len(self._users)
            self._users.append(0)
            self._held.append(None)
        else:
            block, _ = self._idle.popitem(last=False)
            self._evict(block)
        self._users[block] = 1
        return block

    def _evict(self, block: int) -> None:
        run = self._held[block]
        assert run is not None, block
        self._held[block] = None
        run.copies.remove(block)
        self._tell(Removed((run.name,)))
        self._prune(run)

    def commit(self, blocks: Sequence[int], first: int, tokens: Tokens, salt: str | None = None) -> None:
        """Make blocks[first:] hits: their KV is written and they hold exactly `tokens`, a whole number of blocks.

        blocks: a sequence's blocks from its start, as far as `tokens` goes; those before `first` are committed already.
        A run that is here already gets one more copy, announced like the first: consumers count.
        """
        count, rest = divmod(len(tokens), self.block_tokens)
        assert not rest, len(tokens)
        assert count == len(blocks) - first > 0, (count, first, len(blocks))
        run = self._held[blocks[first - 1]] if first else self._root(salt)
        assert run is not None, "the block before has to be committed"
        parent = run.name if first else None
        width = self.block_tokens * _TOKEN_BYTES
        raw = tokens.tobytes()
        names = []
        for index in range(count):
            key = raw[index * width : (index + 1) * width]
            run = run.children.get(key) or self._grow(run, key)
            run.copies.append(blocks[first + index])
            self._held[blocks[first + index]] = run
            names.append(run.name)
        hint = NamespaceHint(salt=salt or None) if first == 0 else NamespaceHint()
        self._tell(Stored(tuple(names), parent, as_tokens(tokens), self.block_tokens, hint))

    def free(self, blocks: Sequence[int]) -> None:
        """One user less for each block. Tail first, so that suffixes are handed out again before the prefixes they hang on."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if self._held[block] is None:
                self._empty.append(block)
            else:
                self._idle[block] = None

    def reset(self) -> bool:
        """Forget every hit; False, and nothing changes, while any block is in use."""
        if self.used_blocks:
            return False
        self._reset_state()
        self._tell(Cleared())
        return True

    def names(self, blocks: Sequence[int]) -> list[int]:
        """The ids under which events speak of these blocks, which have to be committed."""
        return [run.name for block in blocks if (run := self._held[block]) is not None]

    def contents(self) -> Iterator[Held]:
        """Every run that is a hit now, each behind the one it follows."""
        for salt, root in self._roots.items():
            todo = [root]
            while todo:
                run = todo.pop()
                todo.extend(run.children.values())
                if run.copies and run.parent is not None:
                    parent = None if run.parent is root else run.parent.name
                    yield Held(salt or None, parent, run.name, array("i", run.key), len(run.copies))

    def drain_events(self) -> list[Event]:
        """What changed since the last call, in the order it happened."""
        events, self._events = self._events, []
        return events

    def _tell(self, event: Event) -> None:
        if self._announce:
            self._events.append(event)

    def _root(self, salt: str | None) -> _Run:
        key = salt or ""
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = _Run(None, key.encode(), self._digest(key.encode()))
        return root

    def _grow(self, parent: _Run, key: bytes) -> _Run:
        """A new run under `parent`, under a name no other run here has, whatever the digest does."""
        run = _Run(parent, key, self._digest(parent.digest + key))
        salt = 0
        while run.name in self._named:
            salt += 1
            run.digest = sha256(run.digest + salt.to_bytes(4, "big"))
        self._named[run.name] = run
        parent.children[key] = run
        return run

    def _prune(self, run: _Run) -> None:
        """Drop runs that hold nothing and lead to nothing; one that still leads somewhere waits to be stored again."""
        while not run.copies and not run.children:
            if run.parent is None:
                del self._roots[run.key.decode()]
                return
            del run.parent.children[run.key]
            del self._named[run.name]
            run = run.parent
