"""A second copy of a request, sent to another replica while the first has not answered a byte. Off unless asked for.

The first answer that is not a refusal counts; the other engine is told to stop. Both copies hold their load while they are open,
and only one of them ever reaches the client or the counts of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.config import Hedge as HedgeSettings
from gateway.histogram import Histogram
from gateway.http1.answer import AnswerHead
from gateway.http1.chunked import FramingError
from gateway.http1.engine_side import EngineConnection
from gateway.request import Intent, Kind, Outcome, Ticket

if TYPE_CHECKING:
    from gateway.attempts import Attempts
    from gateway.http1.pool import Pool

_WITH_EFFECTS = (Kind.PASS_THROUGH, Kind.STORED, Kind.RESPONSES)  # what an engine may keep or do, it must not do twice
_LEAST_SEEN = 100


def hedge_after(settings: HedgeSettings, ttft: Histogram | None) -> Callable[[], float] | None:
    """After how many seconds a copy is sent; None for never. ttft: of all streams so far."""
    after_s, quantile = settings.after_s, settings.quantile
    if quantile is None or ttft is None:
        return None if after_s is None else lambda: after_s
    otherwise_s = after_s if after_s is not None else ttft.bounds[-1]

    def learned() -> float:
        seen = sum(ttft.counts)
        return ttft.quantile(quantile) if seen >= _LEAST_SEEN else otherwise_s

    return learned


class Hedge:
    """The copy. It serves its own connection until the exchange takes that over."""

    __slots__ = ("_asked_usage", "_connection", "_ended", "_exchange", "_intent", "_over", "_reused", "_sent_ids", "ticket")

    def __init__(self, exchange: Attempts, ticket: Ticket, intent: Intent) -> None:
        self._exchange = exchange
        self._intent = intent
        self._connection: EngineConnection | None = None
        self._asked_usage = self._sent_ids = self._reused = self._ended = False
        self._over: Attempts | None = None  # whose the connection is that is being opened
        self.ticket = ticket

    @staticmethod
    def suits(intent: Intent) -> bool:
        """A request that may be computed twice."""
        return intent.kind not in _WITH_EFFECTS and intent.pin is None and not intent.seeks

    def start(self, pool: Pool) -> None:
        """Send it."""
        connection = pool.take()
        self._reused = connection is not None
        if connection is None:
            pool.open(self)
        else:
            self._write(connection)

    def cancel(self) -> None:
        """The other one answers: this engine stops."""
        self._end(Outcome.HEDGED)

    def handed_over(self) -> tuple[Ticket, EngineConnection | None, bool]:
        """(ticket, connection or None while it is being opened, whether usage was asked for), now the exchange's own."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.taker = self._exchange
            self._intent.sent_ids = self._sent_ids
        self._over = self._exchange
        return self.ticket, connection, self._asked_usage

    # --- what the pool and the connection say ---

    def connected(self, connection: EngineConnection) -> bool:
        """The new connection is there."""
        if self._over is not None:
            return self._over.connected(connection)
        if self._ended:
            return False
        self._write(connection)
        return True

    def connect_failed(self, error: Exception) -> None:
        """The replica can not be reached."""
        if self._over is not None:
            self._over.connect_failed(error)
        else:
            self._fail(Outcome.ENGINE_ERROR)

    def answer_head(self, head: AnswerHead, length: int, rest: bytes) -> None:
        """It answers: first, or with a refusal."""
        if head.status >= 400:
            self.ticket.answered(head.status)
            self._fail(Outcome.HEDGED)
        else:
            self._exchange.hedge_won(self, head, length, rest)

    def answer_bytes(self, data: bytes) -> None:
        """Comes behind the head only, and by then the exchange takes it."""

    def answer_broken(self, error: FramingError) -> None:
        """What it sends is not HTTP."""
        self._fail(Outcome.ENGINE_ERROR)

    def engine_closed(self, *, clean: bool) -> None:
        """It went away; a kept connection may be closed at any moment (FC-34)."""
        self._fail(Outcome.HEDGED if self._reused else Outcome.ENGINE_ERROR)

    def failed_inside(self, error: Exception) -> None:
        """Our own code raised."""
        self._exchange.failed_inside(error)

    def _write(self, connection: EngineConnection) -> None:
        sent_ids = self._intent.sent_ids
        request = self._exchange.request_for(self.ticket)
        self._asked_usage, self._sent_ids = request.asked_usage, self._intent.sent_ids
        self._intent.sent_ids = sent_ids  # of the first copy, until this one wins
        self._connection = connection
        try:
            connection.send(self, request.head, request.body, request.abort)
        except RuntimeError:  # closed in this very turn of the loop
            self._fail(Outcome.HEDGED)

    def _fail(self, outcome: Outcome) -> None:
        if self._end(outcome):
            self._exchange.hedge_failed()

    def _end(self, outcome: Outcome) -> bool:
        if self._ended or self._over is not None:
            return False
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(keep=False)
        self.ticket.close(outcome)
        return True
