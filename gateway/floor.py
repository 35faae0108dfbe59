"""What all exchanges of one data plane stand on: settings, the parts they use, and who is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.config import Settings
from gateway.http1.pool import Pools
from gateway.prompt import Prompts
from gateway.request import Placer, TrafficCounts


class Open(Protocol):
    """An exchange as the plane sees it."""

    def stop(self) -> None:
        """End now, with a word to the client."""
        ...


@dataclass(frozen=True, slots=True)
class Floor:
    """Shared by all exchanges of one data plane. all_ended: called whenever none is open any more."""

    settings: Settings
    placer: Placer
    prompts: Prompts
    pools: Pools
    counts: TrafficCounts
    internal_error: Callable[[Exception], None]
    all_ended: Callable[[], None]
    exchanges: set[Open] = field(default_factory=set)

    def ended(self, exchange: Open, route: str, status: int | None, sent_bytes: int, chunks: int) -> None:
        """One exchange is over; status: None where its answer is counted elsewhere."""
        self.exchanges.discard(exchange)
        counts = self.counts
        counts.bytes_down += sent_bytes
        counts.chunks += chunks
        if status is not None:
            key = route, status // 100
            counts.requests[key] = counts.requests.get(key, 0) + 1
        if not self.exchanges:
            self.all_ended()
