"""One exchange until its answer begins: tokenize, wait for room, place, send, and try again while nothing was answered.

Before the first byte a failure can be repaired: a kept connection that turns out closed is replaced, a dead engine is left
for another, an engine that says it is full is asked to step aside, and one that lets time pass may get a rival (`hedge.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway.admission.line import Waiting
from gateway.errors import NoReplica, NoRoom, Refusal
from gateway.fleet import Replica
from gateway.floor import Floor
from gateway.hedge import Hedge
from gateway.http1.answer import AnswerHead
from gateway.http1.chunked import FramingError
from gateway.http1.client_side import ClientConnection
from gateway.http1.engine_side import EngineConnection
from gateway.http1.parse import RequestHead
from gateway.outgoing import Outgoing, outgoing
from gateway.quota import Permit
from gateway.refusals import retries_spent, shed, unavailable, unreachable
from gateway.request import Intent, Outcome, Prompt, Ticket

log = logging.getLogger(__name__)

_TOKEN_BYTES = 4  # of a body whose tokens are not known


class Attempts(ABC):
    """The part of an `Exchange` before the answer."""

    __slots__ = (
        "_asked_usage",
        "_body",
        "_client",
        "_connection",
        "_ended",
        "_floor",
        "_head",
        "_hedge",
        "_hedge_timer",
        "_in_line",
        "_intent",
        "_prompt",
        "_request_id",
        "_reused",
        "_started",
        "_thinking",
        "_ticket",
        "_tries",
        "permit",
    )

    def __init__(
        self, floor: Floor, client: ClientConnection, head: RequestHead, body: bytes, intent: Intent, request_id: str
    ) -> None:
        self._floor = floor
        self._client = client
        self._head = head
        self._body = body
        self._intent = intent
        self._request_id = request_id
        self._prompt: Prompt | None = None
        self._thinking: asyncio.Future[Prompt] | None = None
        self._in_line = False
        self._ticket: Ticket | None = None
        self._connection: EngineConnection | None = None
        self._reused = False
        self._tries = 1
        self._started = False  # something of the answer went to the client
        self._asked_usage = False
        self._ended = False
        self._hedge: Hedge | None = None
        self._hedge_timer: asyncio.TimerHandle | None = None
        self.permit: Permit | None = None  # under the limits of the client's key

    def start(self) -> None:
        """Tokenize, place, send."""
        floor = self._floor
        floor.exchanges.add(self)
        floor.retries.request()
        least = floor.desk.shedder.least
        if least is not None and self._intent.priority < least:
            self._refuse(shed(), Outcome.REFUSED)
            return
        prompt = floor.prompts.of(self._intent, self._body, self._tokens_ready)
        if isinstance(prompt, Prompt):
            self._place(prompt)
        else:
            self._thinking = prompt

    # --- what the rest of the exchange does ---

    @abstractmethod
    def answer_head(self, head: AnswerHead, length: int, rest: bytes) -> None:
        """The engine begins to answer."""

    @abstractmethod
    def answer_bytes(self, data: bytes) -> None:
        """More of the answer."""

    @abstractmethod
    def answer_broken(self, error: FramingError) -> None:
        """What the engine sends can not be followed any further."""

    @abstractmethod
    def engine_closed(self, *, clean: bool) -> None:
        """The engine went away."""

    @abstractmethod
    def failed_inside(self, error: Exception) -> None:
        """Our own code raised."""

    @abstractmethod
    def stop(self) -> None:
        """The gateway ends."""

    @property
    @abstractmethod
    def progress(self) -> tuple[int, int]:
        """Changes whenever the engine shows life."""

    @property
    @abstractmethod
    def replica(self) -> Replica | None:
        """Whose answer it waits for or relays."""

    @property
    @abstractmethod
    def _answer_whole(self) -> bool: ...

    @abstractmethod
    def _refuse(self, refusal: Refusal, outcome: Outcome) -> None: ...

    # --- until the request is sent ---

    def _tokens_ready(self, prompt: Prompt) -> None:
        self._thinking = None
        if self._ended:
            return
        try:
            self._place(prompt)
        except Exception as error:
            self.failed_inside(error)

    def _place(self, prompt: Prompt, *, admitted: bool = False) -> None:
        self._prompt = prompt
        floor, intent = self._floor, self._intent
        try:
            if self.permit is not None and not admitted:
                self.permit.charge(prompt, len(self._body), time.monotonic())
            if floor.desk.waiting and not admitted and (must_wait := floor.desk.line_of(intent.model or "")) is not None:
                self._wait(must_wait)  # who came before stands in front
                return
            try:
                self._ticket = floor.placer.place(intent, prompt, self._request_id)
            except NoRoom as crowd:
                self._wait(crowd.must_wait)
                return
        except Refusal as refusal:
            self._refuse(refusal, Outcome.REFUSED)
        except NoReplica as error:
            self._refuse(unavailable(str(error), error.retry_after_s), Outcome.REFUSED)
        else:
            self._send()

    def _wait(self, must_wait: Callable[[], bool]) -> None:
        assert self._prompt is not None
        intent, tokens = self._intent, self._prompt.tokens
        size = len(self._body) // _TOKEN_BYTES if tokens is None else len(tokens)
        waiting = Waiting(intent.key, intent.priority, max(1, size))
        self._floor.desk.wait(self, intent.model or "", waiting, must_wait)
        self._in_line = True

    def admitted(self) -> None:
        """There may be room now."""
        assert self._prompt is not None
        self._in_line = False
        try:
            self._place(self._prompt, admitted=True)
        except Exception as error:
            self.failed_inside(error)

    def turned_away(self, refusal: Refusal) -> None:
        """It waited too long, or another one has more right to wait."""
        self._in_line = False
        self._refuse(refusal, Outcome.REFUSED)

    def _send(self, *, fresh: bool = False) -> None:
        assert self._ticket is not None
        pool = self._floor.pools.of(self._ticket.replica)
        connection = None if fresh else pool.take()
        self._reused = connection is not None
        if connection is None:
            pool.open(self)
        else:
            self._write_request(connection)
        after_s = self._floor.hedge_after_s
        if after_s is not None and self._hedge_timer is None and Hedge.suits(self._intent):
            self._hedge_timer = asyncio.get_running_loop().call_later(after_s(), self._hedge_due)

    def connected(self, connection: EngineConnection) -> bool:
        """The new connection is there; False when the client has gone meanwhile (FC-50), or a rival has won."""
        if self._ended or self._connection is not None:
            return False
        try:
            self._write_request(connection)
        except Exception as error:
            self.failed_inside(error)
        return True

    def connect_failed(self, error: Exception) -> None:
        """The replica can not be reached."""
        if self._ended or self._connection is not None:
            return
        try:
            self._try_elsewhere(f"connect: {type(error).__name__}")
        except Exception as inner:
            self.failed_inside(inner)

    def request_for(self, ticket: Ticket) -> Outgoing:
        """What to send where a ticket says."""
        assert self._prompt is not None
        floor, replica = self._floor, ticket.replica
        pool = floor.pools.of(replica)
        request = outgoing(
            floor.settings, replica, pool, self._head, self._body, self._intent, self._prompt, self._request_id, ticket.rank
        )
        if request.with_tokens:
            floor.counts.count_tokens_sent(replica.dialect.name)
        return request

    def _write_request(self, connection: EngineConnection) -> None:
        assert self._ticket is not None
        request = self.request_for(self._ticket)
        self._asked_usage = request.asked_usage
        self._connection = connection
        if self._client.write_paused:  # a pause may have come while no engine was attached
            connection.pause()
        try:
            connection.send(self, request.head, request.body, request.abort)
        except RuntimeError:  # closed in this very turn of the loop
            self.engine_closed(clean=False)

    # --- another try, before the first byte ---

    def _try_elsewhere(self, reason: str) -> None:
        """The engine failed before it answered anything: count that against it, and go on to the next."""
        assert self._ticket is not None
        log.warning("engine failed replica=%s request=%s reason=%s", self._ticket.replica.name, self._request_id, reason)
        self._detach(keep=False)
        if self._hedge is not None:
            self._take_over(self._hedge, Outcome.ENGINE_ERROR)
            return
        denied = self._floor.retries.denied
        if not self._moved(fault=True):
            spent = self._floor.retries.denied != denied
            self._refuse(retries_spent() if spent else unreachable(), Outcome.ENGINE_ERROR)

    def _moved(self, *, fault: bool, keep: bool = False) -> bool:
        """Sent to another replica. keep: the connection to this one stays usable."""
        assert self._ticket is not None
        floor, seeks = self._floor, self._intent.seeks
        if self._tries >= floor.attempts(self._intent):
            return False
        # Looking for what one replica keeps is no repetition of work.
        if not seeks and not floor.retries.take(time.monotonic()):
            return False
        try:
            self._ticket.move(fault=fault)
        except NoReplica:
            if not seeks:
                floor.retries.give_back()
            return False
        self._tries += 1
        floor.counts.retries += 1
        self._detach(keep=keep)
        self._send()
        return True

    # --- a rival ---

    def _hedge_due(self) -> None:
        """The engine has let its time pass: a copy goes to another one, if there is room and the retry budget allows."""
        self._hedge_timer = None
        if self._ended or self._started or self._hedge is not None or self._ticket is None or self._prompt is None:
            return
        floor = self._floor
        if not floor.retries.take(time.monotonic()):
            return
        try:
            ticket = floor.placer.place(self._intent, self._prompt, self._request_id, beside=self._ticket)
        except (NoReplica, NoRoom, Refusal):
            floor.retries.give_back()
            return
        floor.counts.hedges += 1
        self._hedge = Hedge(self, ticket, self._intent)
        self._hedge.start(floor.pools.of(ticket.replica))

    def hedge_won(self, hedge: Hedge, head: AnswerHead, length: int, rest: bytes) -> None:
        """The copy answers first: it is the request from here on."""
        self._floor.counts.hedges_won += 1
        self._take_over(hedge, Outcome.HEDGED)
        self.answer_head(head, length, rest)

    def hedge_failed(self) -> None:
        """The copy came to nothing; the first one goes on."""
        self._hedge = None

    def _take_over(self, hedge: Hedge, outcome: Outcome) -> None:
        assert self._ticket is not None
        self._hedge = None
        self._detach(keep=False)
        self._ticket.close(outcome)
        self._ticket, self._connection, self._asked_usage = hedge.handed_over()
        self._reused = False

    def _hedge_over(self) -> None:
        """No rival any more: its engine stops."""
        if self._hedge_timer is not None:
            self._hedge_timer.cancel()
            self._hedge_timer = None
        hedge, self._hedge = self._hedge, None
        if hedge is not None:
            hedge.cancel()

    def _detach(self, *, keep: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(keep=keep, whole=self._answer_whole)
