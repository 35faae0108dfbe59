"""One exchange from the first byte of its answer on: relay it, and end exactly once.

What comes before that byte, where a failure can be repaired, is in `attempts.py`. After it nothing may be sent twice (FC-43).
"""

from __future__ import annotations

import logging

from gateway.attempts import Attempts
from gateway.errors import Refusal
from gateway.fleet import Replica
from gateway.floor import Floor
from gateway.http1.answer import AnswerHead, Body
from gateway.http1.chunked import FramingError
from gateway.http1.client_side import ClientConnection
from gateway.http1.parse import RequestHead
from gateway.outgoing import own_fields
from gateway.refusals import bad_answer, engine_timeout, internal, shutting_down, stream_cut
from gateway.request import Intent, Outcome
from gateway.stream import Relay

log = logging.getLogger(__name__)

_FULL = (429, 503)  # an engine's polite 'not now'
_LEFT_STATUS, _CUT_STATUS = 499, 599  # for our counters only


class Exchange(Attempts):
    """One request from its last body byte to the end of its answer."""

    __slots__ = ("_close_after", "_first_byte", "_keep_engine", "_relay", "_route", "_sent_bytes", "_status")

    def __init__(
        self, floor: Floor, client: ClientConnection, head: RequestHead, route: str, body: bytes, intent: Intent, request_id: str
    ) -> None:
        super().__init__(floor, client, head, body, intent, request_id)
        self._route = route
        self._relay: Relay | None = None
        self._status = 0
        self._first_byte = False
        self._keep_engine = False
        self._close_after = False
        self._sent_bytes = 0

    # --- the answer ---

    def answer_head(self, head: AnswerHead, length: int, rest: bytes) -> None:
        """The engine begins to answer; nothing has been said to the client yet."""
        assert self._ticket is not None
        self._ticket.answered(head.status)
        # A refusal that came whole leaves its connection usable.
        whole = head.keep_alive and head.body is Body.LENGTH and len(rest) == length
        if (head.status in _FULL or (head.status == 404 and self._intent.seeks)) and self._moved(fault=False, keep=whole):
            return
        self._hedge_over()
        self._keep_engine = head.keep_alive
        client = self._client
        replica, drop_usage = self._ticket.replica, self._asked_usage
        relay = self._floor.relay(self._intent.kind, self._head, head, length, replica, drop_usage=drop_usage)
        first = relay.feed(rest)
        self._relay, self._status = relay, head.status
        self._close_after = not self._head.keep_alive or relay.ends_by_close
        answer = b"".join(
            (
                head.status_line,
                head.forwarded,
                self._own_fields(),
                relay.framing,
                b"connection: close\r\n\r\n" if self._close_after else b"\r\n",
                first,
            )
        )
        self._started = True
        self._let_go()
        self._note_first_byte(rest)
        self._sent_bytes = len(answer)
        client.write(answer)
        if relay.finished:
            self._finish()

    def answer_bytes(self, data: bytes) -> None:
        """The next read of the answer's body. The hot path of streams: about 2 us a chunk, the write included."""
        relay = self._relay
        if relay is None:
            return
        out = relay.feed(data)
        if not self._first_byte:
            self._note_first_byte(data)
        if out:
            self._sent_bytes += len(out)
            self._client.write(out)
        if relay.finished:
            self._finish()

    def answer_broken(self, error: FramingError) -> None:
        """What the engine sends can not be followed any further."""
        if self._started:
            self._cut(str(error))
        else:
            self._refuse(bad_answer(str(error)), Outcome.ENGINE_ERROR)

    def engine_closed(self, *, clean: bool) -> None:
        """The engine went away: the end of the answer, a stale connection, or a failure."""
        if self._ended or (connection := self._connection) is None:
            return
        relay = self._relay
        if relay is not None:
            out = relay.end_of_input() if clean else b""
            if out:
                self._sent_bytes += len(out)
                self._client.write(out)
            if relay.finished:
                self._finish()
            else:
                self._cut("the engine closed the connection before its answer was complete")
        elif self._reused and not connection.answered:
            # Kept connections may be closed by their engine at any moment: no fault, once more on a new one (FC-34).
            self._floor.counts.retries += 1
            self._detach(keep=False)
            self._send(fresh=True)
        else:
            self._try_elsewhere("closed before it answered")

    def _let_go(self) -> None:
        """Nothing can be sent again: a long stream does not hold its request, which may be megabytes of text and objects."""
        self._body = b""
        self._intent.fields = {}
        self._prompt = None
        self._client.release_body()

    def _note_first_byte(self, data: bytes) -> None:
        if data:
            self._first_byte = True
            if self._ticket is not None and self._status < 300:
                self._ticket.first_byte()

    def _own_fields(self) -> bytes:
        if not self._floor.settings.response_headers:
            return b""
        return own_fields(self._request_id, self._ticket, self._prompt, explain=self._head.explain)

    # --- flow control and time ---

    def pause(self) -> None:
        """The client is slow: the engine is slowed, nothing is buffered (FC-51)."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client takes bytes again."""
        if self._connection is not None:
            self._connection.resume()

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever the engine shows life."""
        return 0 if self._in_line else self._tries, self._relay.chunks if self._relay is not None else 0

    @property
    def replica(self) -> Replica | None:
        """Whose answer it waits for or relays; None before it was placed."""
        return self._ticket.replica if self._ticket is not None else None

    def silence_limit_s(self) -> float | None:
        """Before the first byte the engine computes the prompt; after it, bytes come steadily (FC-46)."""
        limits = self._floor.settings.limits
        if self._in_line:  # the line has a limit of its own
            return None
        return limits.silence_s if self._first_byte else limits.first_byte_s

    # --- the ends ---

    def engine_silent(self) -> None:
        """The engine let its limit pass."""
        if self._started:
            self._cut("the engine sent nothing for too long")
        else:
            self._refuse(engine_timeout(), Outcome.ENGINE_ERROR)

    def client_left(self) -> None:
        """The client is gone: the engine stops at once (FC-49)."""
        self._end(Outcome.CLIENT_LEFT, _LEFT_STATUS)

    def stop(self) -> None:
        """The gateway ends and has waited long enough (FC-57)."""
        if self._started:
            self._cut("the gateway is shutting down")
        else:
            self._refuse(shutting_down(), Outcome.REFUSED)

    def failed_inside(self, error: Exception) -> None:
        """Our own code raised."""
        self._floor.internal_error(error)
        if not self._ended and not self._started:
            self._refuse(internal(), Outcome.REFUSED)
            return
        self._end(Outcome.CUT, _CUT_STATUS)
        self._client.reset()

    def _finish(self) -> None:
        relay = self._relay
        assert relay is not None
        if not relay.complete:
            self._cut("the engine ended its stream without the terminator")
            return
        outcome = Outcome.OK
        if relay.failed:
            outcome = Outcome.CUT
        elif self._status >= 400:
            outcome = Outcome.CLIENT_ERROR if self._status < 500 else Outcome.ENGINE_ERROR
        if self._end(outcome, self._status, keep_engine=self._keep_engine and not relay.extra):
            self._client.finished(keep=not self._close_after)

    def _cut(self, reason: str) -> None:
        """Break the answer off so that it can not be taken for a whole one (FC-45)."""
        relay = self._relay
        if relay is None or not self._end(Outcome.CUT, _CUT_STATUS):
            return
        usage = relay.usage
        log.warning(
            "answer cut request=%s bytes=%d chunks=%d tokens=%s reason=%s",
            self._request_id,
            self._sent_bytes,
            relay.chunks,
            usage.completion_tokens if usage is not None else None,
            reason,
        )
        tail = relay.error_tail(stream_cut(reason))
        if tail:
            self._client.write(tail)
        elif relay.ends_by_close and not relay.failed:  # an orderly end would be the end of the answer: only a reset tells
            self._client.reset()
        self._client.close()

    @property
    def _answer_whole(self) -> bool:
        return self._relay is not None and self._relay.finished

    def _refuse(self, refusal: Refusal, outcome: Outcome) -> None:
        if self._end(outcome, None, refused=refusal.status):
            self._client.refuse(refusal, self._own_fields())

    def _end(self, outcome: Outcome, status: int | None, *, keep_engine: bool = False, refused: int = 0) -> bool:
        """The one place where an exchange ends; True the first time. status: None where `refused` is counted elsewhere."""
        if self._ended:
            return False
        self._ended = True
        self._client.exchange = None
        self._client.release_body()
        self._body = b""
        if self._thinking is not None:
            self._thinking.cancel()
        if self._in_line:
            self._floor.desk.leave(self)
        self._hedge_over()
        self._detach(keep=keep_engine)
        relay = self._relay
        chunks = relay.chunks if relay is not None and self._intent.stream else 0
        self._floor.ended(self, self._route, status, self._sent_bytes, chunks)
        usage = relay.usage if relay is not None else None
        if self.permit is not None:
            self.permit.close(status or refused, usage)
        if self._ticket is not None:
            self._ticket.close(outcome, usage)
        return True
