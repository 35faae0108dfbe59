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
    """Which API a request speaks; the value is the label in metrics and receipts."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(slots=True)
class Intent:
    """What routing has to know of a request body; everything else travels untouched.

    fields: the parsed JSON object, for the tokenizer. wants_usage: the client asked for `stream_options.include_usage`.
    """

    kind: Kind
    fields: dict[str, Any]
    model: str | None = None
    stream: bool = False
    wants_usage: bool = False
    session: str | None = None
    priority: int = 0

    @property
    def is_batch(self) -> bool:
        """Several prompts in one request; our tokens are then only the start they share (FC-24)."""
        prompt = self.fields.get("prompt")
        return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


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

    def first_byte(self) -> None:
        """The first byte of the answer's body arrived: the prefill is over."""
        ...

    def close(self, outcome: Outcome, usage: Usage | None = None) -> None:
        """The exchange is over, however it ended."""
        ...


class Placer(Protocol):
    """Chooses a replica for a request and opens a ticket for it."""

    def place(self, intent: Intent, prompt: Prompt, request_id: str) -> Ticket:
        """Match, choose, reserve. Raises NoReplica (503), or Refusal 404 for a model nobody serves."""
        ...


@dataclass(slots=True)
class TrafficCounts:
    """Hot counters of the data plane: plain integers, turned into metrics at scrape time."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)  # (route, status class) -> count
    refused: dict[str, int] = field(default_factory=dict)  # reason -> count, a closed set
    retries: int = 0
    chunks: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    open_connections: int = 0
    internal_errors: int = 0
