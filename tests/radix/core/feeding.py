"""One holder fed with payloads twice: by the scanner into a compiled tree, by the decoder into a plain index."""

from __future__ import annotations

import msgspec
import numpy as np

from events.decode import decode
from events.errors import DecodeError
from radix import Applied, Batch, Cleared, Event, Index, Namespace, Removed, Stored, Tier
from radix.changes import GroupKind
from radix.core import layout as lay
from radix.core.compiled import CompiledTree, as_hashes
from radix.holder import Holder
from radix.ingest import Feed, Ingest, Taken
from radix.writer import _namespace_of, contradicts_itself
from tests.radix.core.memory_check import live_nodes

TIERS = range(4)
HOLDER = 3  # in the compiled tree
Row = tuple[int, int, int, Namespace, int, bytes]  # tier, hash, copies, namespace, block size, path

_PLAIN = (GroupKind.UNSTATED, GroupKind.FULL)
_raw = msgspec.msgpack.Decoder()


class Pair:
    """The two views of a holder, and so much of the slow way into the compiled one as a plain holder needs.

    left: an event was met that makes the holder one the scanner is not for; the compiled view ends before it.
    """

    def __init__(self, *, counting: bool = True) -> None:
        self.tree = CompiledTree(huge_pages=False)
        self.ingest = Ingest(self.tree)
        self.ledgers = [self.tree.open(HOLDER, tier, counting=counting) for tier in TIERS]
        self.index = Index()
        self.holder = self.index.holder("r", 0, counting=counting)
        self.namespaces: dict[int, Namespace] = {}
        self.fast = self.slow = 0  # events
        self.left = False

    @property
    def owner(self) -> Holder:
        """The plain side's holder."""
        return self.index._of(self.holder)

    def feed(self) -> Feed | None:
        """What the scanner may do as things are; None while the holder is not for it."""
        owner = self.owner
        group = owner.groups.known.get(0)
        if group is None or len(owner.groups.known) > 1 or owner.groups.sparse(0) or len(owner.orphans) or len(owner.loose):
            return None
        if len(set(group.sizes.values())) != 1:
            return None
        a, b, c, d = (self.ledgers[tier] if tier in group.sizes else -1 for tier in TIERS)
        grain = group.block_tokens
        full = group.kind is GroupKind.FULL
        return Feed(ledgers=(a, b, c, d), root=self.root(Namespace(""), grain), block_tokens=grain, full=full)

    def root(self, namespace: Namespace, grain: int) -> int:
        """A root of the compiled tree."""
        number = self.tree.root(namespace.key(), grain)
        self.namespaces[number] = namespace
        return number

    def take(self, *payloads: bytes) -> list[Taken]:
        """Feed payloads, all or none of which can be decoded; both views are cleared when they cannot."""
        events = _events_of(payloads)
        try:
            return self._take(payloads, events)
        except DecodeError:
            assert events is None, "what can be decoded was given back in pieces that cannot"
            self.clear()
            return []

    def clear(self) -> None:
        """What a session does after a payload that cannot be decoded."""
        self.index.clear(self.holder)
        for ledger in self.ledgers:
            self.tree.clear(ledger)

    def _take(self, payloads: tuple[bytes, ...], events: list[object] | None) -> list[Taken]:
        run = self.ingest.start(payloads)
        seen: list[Taken] = []
        while (feed := self.feed()) is not None:
            taken = run.go(feed, log=True)
            seen.append(taken)
            self.fast += taken.events
            if events is not None:
                self._follow(events, taken)
            if taken.waiting is None:
                assert events == [], "events were lost, or a payload was taken that cannot be decoded"
                return seen
            self._take_slowly(taken.waiting, events)
            if self.left:
                break
        for payload in run.rest():
            self._take_slowly(payload, events)
        assert events == []
        return seen

    def _follow(self, events: list[object], taken: Taken) -> None:
        """The plain side does what the scanner did, and counts the same."""
        done, events[:] = events[: taken.events], events[taken.events :]
        applied = self.index.apply(self.holder, decode(msgspec.msgpack.encode([1.0, done]), 0))
        assert (taken.stored, taken.removed, taken.unknown) == (applied.stored, applied.removed, applied.unknown)
        assert (taken.skipped, applied.orphans) == (applied.skipped, 0)

    def _take_slowly(self, payload: bytes, events: list[object] | None) -> None:
        """Events that came back are the ones that come next, and both sides apply them."""
        batch = decode(payload, 0)
        if events is None:
            return  # what will be cleared need not be followed
        waiting = _raw_events(payload)
        same, events[:] = events[: len(waiting)], events[len(waiting) :]
        assert msgspec.msgpack.encode(same) == msgspec.msgpack.encode(waiting)
        self.slow += len(waiting)
        for event in batch.events:
            if not self.left and self._leaves(event):
                self.compare()
                self.left = True
            if not self.left:
                ours = self._apply(event)
                assert self.index.apply(self.holder, Batch(0, 0, 0.0, (event,))) == ours

    def _leaves(self, event: Event) -> bool:
        """Whether an event makes a plain holder another one."""
        if not isinstance(event, Stored):
            return False
        sizes = self.owner.groups.known[0].sizes if 0 in self.owner.groups.known else {}
        size = event.block_tokens
        odd = size < sizes.get(event.tier, 1) or len(event.tokens) != size * len(event.hashes) or not event.hashes
        if odd or event.group or event.lead or event.namespace_hint.media or event.kind not in _PLAIN:
            return True
        parent = self.owner.find(0, event.parent) if event.parent is not None else None
        contradicts = contradicts_itself(event)
        return not contradicts and event.parent is not None and (parent is None or parent.root.block_tokens != size)

    def _apply(self, event: Event) -> Applied:
        """The slow way into the compiled tree."""
        if isinstance(event, Cleared):
            return Applied(removed=sum(self.tree.clear(ledger) for ledger in self.ledgers))
        if isinstance(event, Removed):
            if event.group:
                return Applied(unknown=len(event.hashes))
            removed, unknown = self.tree.remove(self.ledgers[event.tier], as_hashes(event.hashes))
            return Applied(removed=removed, unknown=len(unknown))
        if contradicts_itself(event):
            return Applied(skipped=1)
        root = self.root(_namespace_of(event.namespace_hint), event.block_tokens)
        above = None
        if event.parent is not None:
            tier = next(tier for tier in TIERS if self.owner.ledger(0, Tier(tier)).find(event.parent) is not None)
            above = (self.ledgers[tier], event.parent)
        hashes, grain = as_hashes(event.hashes), event.block_tokens
        placed = self.tree.store(self.ledgers[event.tier], root, grain, hashes, np.array(event.tokens), above)
        assert placed is not None
        return Applied(stored=placed.new, skipped=int(placed.rejected > 0))

    def compare(self) -> None:
        """Both views are equal, copies and paths too, and the compiled tree holds together."""
        theirs = {
            (int(held.tier), held.hash, held.copies, held.namespace, held.block_tokens, held.path)
            for held in self.index.dump(self.holder)
        }
        assert self.rows() == theirs

    def rows(self) -> set[Row]:
        """What the compiled tree says of the holder."""
        nodes = live_nodes(self.tree.memory)
        found = set()
        for tier, ledger in enumerate(self.ledgers):
            for handle in self.tree.handles(ledger):
                node, grain = nodes[handle.node], nodes[handle.root].grain
                path = _tokens(self.tree, node.offset, (handle.depth - node.start) * grain)
                while node.parent != handle.root:
                    node = nodes[node.parent]
                    path = _tokens(self.tree, node.offset, node.length * grain) + path
                found.add((tier, handle.hash, handle.copies, self.namespaces[handle.root], grain, path))
        return found


def _tokens(tree: CompiledTree, offset: int, count: int) -> bytes:
    return tree.memory.halves(lay.ARENA + 4 * offset, count).tobytes()


def _raw_events(payload: bytes) -> list[object]:
    message = _raw.decode(payload)
    events = message["events"] if isinstance(message, dict) else message[1]
    return list(events)


def _events_of(payloads: tuple[bytes, ...]) -> list[object] | None:
    """The events of all payloads; None when one of these cannot be decoded."""
    events: list[object] = []
    for payload in payloads:
        try:
            decode(payload, 0)
        except DecodeError:
            return None
        events += _raw_events(payload)
    return events
