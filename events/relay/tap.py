"""Where a relay's streams end: what each rank has, and what of it is not on its way yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from events.relay.held import Held
from events.relay.inventory import Inventory
from events.relay.ops import Op
from events.types import Freshness
from radix.changes import Applied, Batch, Heard

log = logging.getLogger(__name__)

_MAX_PENDING = 50_000  # batches, while Redis is away; the view goes on, and is told whole when it is back


class Tap:
    """One rank's view at the relay, and its changes that are not sent yet.

    full_at: batches that are not kept waiting for more. max_blocks: of the view; beyond it is given up. broken: what was sent
    cannot be continued, so the view has to be told whole. wake: set while there is anything to send; urgent: at once.
    """

    def __init__(
        self, replica: str, rank: int, *, counting: bool = True, full_at: int = 256, max_blocks: int = 8_000_000
    ) -> None:
        self.replica = replica
        self.rank = rank
        self.freshness = Freshness.COLD
        self.broken = True
        self.wake = asyncio.Event()
        self.urgent = asyncio.Event()
        self._held = Held(counting=counting)
        self._full_at = full_at
        self._max_blocks = max_blocks
        self._curtailed = False
        self._pending: list[Op] = []

    @property
    def blocks(self) -> int:
        """How large the view is."""
        return len(self._held)

    @property
    def pending(self) -> int:
        """Changes that were not taken yet."""
        return len(self._pending)

    @property
    def counting(self) -> bool:
        """Copies of blocks are counted."""
        return self._held.counting

    @property
    def block_tokens(self) -> int:
        """Tokens per block; 0 while they are not known."""
        return self._held.block_tokens

    def apply(self, batch: Batch) -> Applied:
        """Take in one batch, and pass it on."""
        applied = self._held.apply(batch)
        if len(self._held) > self._max_blocks:
            log.error(
                "view given up replica=%s rank=%d blocks=%d limit=%d", self.replica, self.rank, self.blocks, self._max_blocks
            )
            self.clear()
            self._curtailed = True
            self.tell(self.freshness)
        else:
            self._push(batch)
        return applied

    def clear(self) -> int:
        """Forget everything; what follows is another epoch."""
        count = self._held.clear()
        self._curtailed = False
        self.break_off()
        return count

    def tell(self, freshness: Freshness) -> None:
        """How far the view can be believed now."""
        told = Freshness.PARTIAL if self._curtailed and freshness is Freshness.LIVE else freshness
        if told is not self.freshness:
            self.freshness = told
            self._push(told)
            self.urgent.set()

    def break_off(self) -> None:
        """Nothing of what was sent can be built on any more."""
        self._pending.clear()
        self.broken = True
        self.wake.set()
        self.urgent.set()

    def take(self, most: int | None = None) -> list[Op]:
        """What to send next, at most so many changes."""
        ops, self._pending = self._pending[:most], self._pending[len(self._pending) if most is None else most :]
        self._settle()
        return ops

    def whole(self) -> Inventory:
        """The whole view, to begin an epoch with; what was pending is in it."""
        self._pending.clear()
        self.broken = False
        self._settle()
        return self._held.inventory()

    def inventory(self) -> Inventory:
        """The whole view, with what is pending."""
        return self._held.inventory()

    def _push(self, op: Op) -> None:
        if not self.broken:  # else it will be told with the whole
            self._pending.append(op)
            if len(self._pending) >= self._full_at:
                self.urgent.set()
            if len(self._pending) > _MAX_PENDING:
                log.warning("relay falls behind replica=%s rank=%d changes=%d", self.replica, self.rank, len(self._pending))
                self.break_off()
        self.wake.set()

    def _settle(self) -> None:
        if not self._pending:
            self.wake.clear()
            self.urgent.clear()


class Taps:
    """All taps of a relay; to the streams that feed them the face of an index. A tap's number is its place in the list."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self._taps = taps

    def owner(self, holder: int) -> tuple[str, int]:
        """The (replica, rank) behind a number."""
        return self._taps[holder].replica, self._taps[holder].rank

    def apply(self, holder: int, batch: Batch) -> Applied:
        """Take in one batch."""
        return self._taps[holder].apply(batch)

    def apply_payloads(self, holder: int, payloads: Sequence[bytes], decode: Callable[[int, bytes], Batch], heard: Heard) -> None:
        """The same of the first one of some as the engine sent them."""
        batch = decode(0, payloads[0])
        heard.add(batch, self.apply(holder, batch))

    def trimmed(self, holder: int) -> int:
        """None: a view that grows too large is given up as a whole."""
        return 0

    def clear(self, holder: int) -> int:
        """Forget one view."""
        return self._taps[holder].clear()

    def block_tokens(self, holder: int) -> int:
        """Tokens per block; 0 while they are not known."""
        return self._taps[holder].block_tokens
