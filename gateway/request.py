"""One request between the planes: what it asks, where it was placed, what it used.

The data plane (`http1`, `routes`, `forward`, `stream`) speaks to the rest of the gateway only through `Placer` and `Ticket`;
`place.py` implements both. All calls are synchronous and run on the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from gateway.choose.types import Decision
from gateway.fleet import Replica
from radix.match import Int32Array


class Kind(Enum):
    """Which API a request speaks; the value is the label in metrics and receipts. `apis.table` says what each is."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    STORED = "stored_response"  # a response that an engine keeps, by its id
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    GENERATE = "generate"
    TOKENS = "tokens"  # vLLM's API of ids in and ids out
    PASS_THROUGH = "pass_through"

    __hash__ = object.__hash__  # each request looks its row up; that of Enum is a function of Python


@dataclass(slots=True)
class Intent:
    """What routing has to know of a request body; everything else travels untouched.

    fields: the parsed JSON object, for the tokenizer. wants_usage: the client asked for `stream_options.include_usage`.
    is_batch: several prompts in one request; our tokens are then only the start they share (FC-24). pin: the one replica that
    can answer, because it keeps what the request names. seeks: it names something that some replica keeps, nobody knows which.
    sent_ids: ids went along when it was sent last, so the engine's count of the prompt is ours. key: whose request it is, by
    name, among whom room is shared out; empty without keys.
    """

    kind: Kind
    fields: dict[str, Any]
    model: str | None = None
    stream: bool = False
    wants_usage: bool = False
    session: str | None = None
    priority: int = 0
    is_batch: bool = False
    pin: str | None = None
    seeks: bool = False
    sent_ids: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts an engine reported; cached_tokens is None where it does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


class Outcome(Enum):
    """How an exchange ended; the value is the label in metrics and receipts."""

    OK = "ok"
    CLIENT_ERROR = "client_error"  # the engine answered 4xx
    ENGINE_ERROR = "engine_error"  # the engine answered 5xx, or never answered
    CLIENT_LEFT = "client_left"
    CUT = "cut"  # the engine broke off after the first byte
    REFUSED = "refused"  # answered by the gateway before any engine was asked
    HEDGED = "hedged"  # another copy of the request answered first


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a prompt, or the reason why there are none."""

    tokens: Int32Array | None
    no_tokens_reason: str | None = None


class Ticket(Protocol):
    """One request's stay in the fleet: holds its load on the chosen replica until `close`, which must come exactly once.

    Later calls of `close` do nothing, so that no path can release twice (FC-29).
    """

    request_id: str
    policy: str
    replica: Replica
    rank: int
    decision: Decision
    attempts: int

    def owner(self, holder: int) -> tuple[str, int]:
        """(replica, rank) of a holder among the decision's candidates."""
        ...

    def move(self, *, fault: bool) -> None:
        """Leave the current replica for the next best one not yet tried.

        fault: count it against the replica's health (a refused or dead fresh connection), not for a polite 'full'.
        Raises NoReplica; the ticket is then still open and must be closed.
        """
        ...

    def answered(self, status: int) -> None:
        """The head of an answer came from the current replica; what it says of the replica counts."""
        ...

    def first_byte(self) -> None:
        """The first byte of the answer's body arrived: the prefill is over."""
        ...

    def close(self, outcome: Outcome, usage: Usage | None = None) -> None:
        """The exchange is over, however it ended."""
        ...


class Placer(Protocol):
    """Chooses a replica for a request and opens a ticket for it."""

    def place(self, intent: Intent, prompt: Prompt, request_id: str, *, beside: Ticket | None = None) -> Ticket:
        """Match, choose, reserve. beside: of a copy of the same request, whose replica does not get this one, too.

        Raises NoReplica (503), NoRoom where all replicas have as much as they may be given, or Refusal 404 for a model nobody
        serves.
        """
        ...


@dataclass(slots=True)
class TrafficCounts:
    """Hot counters of the data plane: plain integers, turned into metrics at scrape time."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)  # (route, status class) -> count
    refused: dict[str, int] = field(default_factory=dict)  # reason -> count, a closed set
    retries: int = 0
    hedges: int = 0  # copies sent
    hedges_won: int = 0
    chunks: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    open_connections: int = 0
    internal_errors: int = 0
    tokens_sent: dict[str, int] = field(default_factory=dict)  # dialect -> requests that took their ids along
    engine_aborts: dict[str, int] = field(default_factory=dict)  # how a call to stop a request ended, a closed set -> count

    def count_tokens_sent(self, dialect: str) -> None:
        """A request went to an engine with its ids."""
        self.tokens_sent[dialect] = self.tokens_sent.get(dialect, 0) + 1

    def count_abort(self, result: str) -> None:
        """A call to stop a request ended."""
        self.engine_aborts[result] = self.engine_aborts.get(result, 0) + 1
