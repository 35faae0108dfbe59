"""What all exchanges of one data plane stand on: settings, the parts they use, and who is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from gateway.admission.desk import Desk
from gateway.apis.stored import NamingRelay, StoredResponses
from gateway.apis.table import API
from gateway.config import Settings
from gateway.fleet import Replica
from gateway.http1.answer import AnswerHead, Body
from gateway.http1.parse import RequestHead
from gateway.http1.pool import Pools
from gateway.prompt import Prompts
from gateway.request import Intent, Kind, Placer, TrafficCounts
from gateway.retries import RetryBudget
from gateway.stream import Relay

_MOST_SOUGHT = 64  # replicas asked for something that one of them keeps


class Open(Protocol):
    """An exchange as the plane sees it."""

    @property
    def progress(self) -> tuple[int, int]:
        """(attempts, pieces of the answer so far)."""
        ...

    @property
    def replica(self) -> Replica | None:
        """Whose answer it waits for or relays."""
        ...

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
    desk: Desk
    retries: RetryBudget
    hedge_after_s: Callable[[], float] | None = None  # None: never
    exchanges: set[Open] = field(default_factory=set)
    stored: StoredResponses = field(default_factory=StoredResponses)

    def attempts(self, intent: Intent) -> int:
        """How many replicas may be asked before the first byte."""
        return _MOST_SOUGHT if intent.seeks else self.settings.limits.attempts

    def relay(
        self, kind: Kind, request: RequestHead, head: AnswerHead, length: int, replica: Replica, *, drop_usage: bool
    ) -> Relay:
        """What takes one answer of a replica to its client, as its API wants it."""
        api = API[kind]
        if request.method == b"HEAD":  # its head may announce a body, and none comes
            head, length = replace(head, body=Body.NONE, plain_events=False), 0
        if api.keeps_answers and head.status < 300:
            tell = partial(self.stored.remember, replica=replica.name)
            return NamingRelay(head, length, http10=request.http10, drop_usage=drop_usage, api=api, tell=tell)
        return Relay(head, length, http10=request.http10, drop_usage=drop_usage, api=api)

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
