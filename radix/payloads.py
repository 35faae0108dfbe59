"""Payloads of engine events find their way into a holder's view: straight into the compiled tree while the holder is plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from radix.changes import Applied, Batch, Event, GroupKind, Heard, Tier
from radix.flat import FlatTree
from radix.flat_ledger import FlatLedger
from radix.holder import Holder
from radix.ingest import Feed, Ingest, Run, Store, Taken
from radix.namespace import Namespace
from radix.spot import FlatRoot
from radix.tree import RootKey

Decode = Callable[[int, bytes], Batch]  # of a payload at a place
_PLAIN_KINDS = (GroupKind.UNSTATED, GroupKind.FULL)
_NO_NAMESPACE = Namespace("").key()


class Payloads:
    """For the holders in one tree. apply: takes the events that are not plain. stored: told of each store, where asked for."""

    def __init__(
        self,
        tree: FlatTree,
        *,
        apply: Callable[[Holder, Sequence[Event], Applied], None],
        stored: Callable[[Holder, FlatRoot, int, int], None],
    ) -> None:
        self._tree = tree
        self._ingest = Ingest(tree.compiled)
        self._apply = apply
        self._stored = stored
        self._feeds: dict[int, Feed] = {}  # by holder, as long as nothing but the scanner changes it
        self._roots: tuple[FlatRoot, ...] = ()  # what they were made for
        self._leads = 0

    def take(self, owner: Holder, payloads: Sequence[bytes], decode: Decode, heard: Heard, *, tell: bool) -> None:
        """Apply payloads: all of them, or less when one leaves nothing to the scanner; raises what `decode` does.

        heard: tells how many were applied; when something was raised, some events of the next one may have been, too.
        """
        feed = self._feed(owner)
        if feed is None:
            self._decoded(owner, decode(0, payloads[0]), heard, whole=True)
            return
        run = self._ingest.start(payloads)
        while feed is not None:  # what waits may change what it may do
            taken = self._go(owner, run, feed, heard, tell=tell)
            if taken.waiting is None:
                return
            place = len(heard.batches)
            self._decoded(owner, decode(place, taken.waiting), heard, whole=taken.to_the_end)
            feed = self._feed(owner)
        for rest in run.rest()[:1]:  # what may have begun
            self._decoded(owner, decode(len(heard.batches), rest), heard, whole=True)

    def forget(self, holder: int) -> None:
        """A holder was changed in another way."""
        self._feeds.pop(holder, None)

    def _go(self, owner: Holder, run: Run, feed: Feed, heard: Heard, *, tell: bool) -> Taken:
        taken = run.go(feed, log=tell)
        applied = heard.applied
        heard.events += taken.events
        applied.stored += taken.stored
        applied.removed += taken.removed
        applied.unknown += taken.unknown
        applied.skipped += taken.skipped
        for store in taken.stores:
            self._tell(owner, store)
        if taken.removed:
            self._tree.tidy()
        heard.batches += taken.batches
        return taken

    def _tell(self, owner: Holder, store: Store) -> None:
        self._stored(owner, self._tree.numbered(store.root), store.before, store.blocks)

    def _decoded(self, owner: Holder, batch: Batch, heard: Heard, *, whole: bool) -> None:
        """Apply what was decoded. whole: it is all that was left of its payload, not one event out of it."""
        heard.events += len(batch.events) + batch.skipped
        heard.applied.skipped += batch.skipped
        self._apply(owner, batch.events, heard.applied)
        if whole:
            heard.batches.append((batch.ts, batch.rank))

    def _feed(self, owner: Holder) -> Feed | None:
        """What the scanner has to know of a holder; None while its events need more than it can do."""
        roots = self._tree.roots_of(_NO_NAMESPACE)
        if roots is not self._roots or self._tree.leads != self._leads:
            self._feeds.clear()
            self._roots, self._leads = roots, self._tree.leads
        feed = self._feeds.get(owner.number)
        if feed is None:
            feed = self._new_feed(owner)
            if feed is not None:
                self._feeds[owner.number] = feed
        return feed

    def _new_feed(self, owner: Holder) -> Feed | None:
        known = owner.groups.known
        if len(known) != 1 or len(owner.orphans) or len(owner.loose):
            return None
        ((number, group),) = known.items()
        if number not in owner.ledgers:
            return None
        sizes = set(group.sizes.values())
        if group.kind not in _PLAIN_KINDS or len(sizes) != 1:
            return None
        (block_tokens,) = sizes
        root = self._tree.roots.find(_NO_NAMESPACE, RootKey(block_tokens, number))
        # A tier's first store comes back, so that its block size is known here.
        ledgers = zip(Tier, owner.ledgers[number], strict=True)
        first, second, third, fourth = (_number_of(ledger) if tier in group.sizes else -1 for tier, ledger in ledgers)
        return Feed(
            ledgers=(first, second, third, fourth),
            root=0 if root is None else root.number,
            block_tokens=block_tokens,
            group=number,
            full=group.kind is GroupKind.FULL,
            other_roots=not self._tree.leads,
        )


def _number_of(ledger: object) -> int:
    assert isinstance(ledger, FlatLedger)
    return ledger.number
