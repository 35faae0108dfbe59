"""What the doctor looks at and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gateway.config import ReplicaSettings
from gateway.health import Facts


class Severity(Enum):
    """ERROR: credit is wrong or missing. WARNING: it is less than it could be. NOTE: worth knowing, nothing to mend."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. check: which one found it, a closed set; fix: a flag of the engine or a setting of ours.

    replica: None where it concerns the gateway as a whole; rank: None where it concerns all ranks.
    """

    severity: Severity
    check: str
    what: str
    evidence: str
    fix: str
    replica: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One entry of /v1/models. parent: the base model of an adapter. root: where its weights are."""

    name: str
    root: str | None
    parent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What one engine says of itself. Anything is None where it does not say.

    kind: 'vllm', 'sglang', 'tensorrt_llm', 'trunkline' or 'unknown'. block_tokens: of its pages, not of its events. skew_s: by
    which its clock is ahead of ours, good to `skew_error_s`.
    """

    kind: str = "unknown"
    told: Facts = field(default_factory=Facts)
    cards: tuple[Card, ...] = ()
    block_tokens: int | None = None
    caching: bool | None = None
    tells_cached: bool | None = None
    skew_s: float | None = None
    skew_error_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Probed:
    """What became of one prompt sent twice. status: of the first answer that was no 200; error: what it said."""

    status: int
    error: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the second
    tells_cached: bool = False
    new_batches: int | None = None  # of events since it was sent, on the rank it was sent to; None where none are followed


@dataclass(frozen=True, slots=True)
class Parity:
    """One body in the engine's ids and in ours. first_difference: a position, None where one is the start of the other."""

    chat: bool
    engine_tokens: int
    our_tokens: int
    first_difference: int | None

    @property
    def equal(self) -> bool:
        """The ids are the same."""
        return self.first_difference is None and self.engine_tokens == self.our_tokens


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What this gateway knows of one rank. followed: its events are, by whatever way; connected: now. polled: from a queue.

    events, replay: where it publishes, None where it is not subscribed to. reachable: somebody listens at `events`; None where
    it was not tried. newest: number of the newest batch in the view, -1 for none; engine_newest: as the engine's replay says, -1
    for none, None where it was not asked or did not answer, and then replay_error says why.
    """

    rank: int
    followed: bool = False
    connected: bool = False
    relayed: bool = False
    polled: bool = False
    freshness: str = "cold"
    trust: float = 1.0
    block_tokens: int = 0
    events: str | None = None
    replay: str | None = None
    reachable: bool | None = None
    batches: int = 0
    gaps: int = 0
    restarts: int = 0
    decode_errors: int = 0
    rank_mismatches: int = 0
    apply_lag_s: float = 0.0
    newest: int = -1
    engine_newest: int | None = None
    replay_error: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What the receipts of one replica's finished requests say. counted: those where both sides counted the prompt."""

    requests: int = 0
    without_cached: int = 0  # reported usage, and no cached tokens in it
    counted: int = 0
    miscounted: int = 0  # of them the ones with another number


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """One replica with everything that was found out about it. engine: None where it could not be asked."""

    name: str
    url: str
    settings: ReplicaSettings
    healthy: bool
    last_error: str | None
    models: tuple[str, ...]
    engine: EngineFacts | None
    ranks: tuple[RankFacts, ...]
    answered: Answered
    probed: Probed | None = None
    parity: tuple[Parity, ...] = ()
    parity_error: str | None = None


@dataclass(frozen=True, slots=True)
class House:
    """What concerns the gateway as a whole. tokenizer: 'ready', 'loading' or 'none'; tokenizer_name: as set."""

    policy: str
    follows_events: bool
    tokenizer: str
    tokenizer_name: str | None
    evicted: int
    index_mib: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer, worst first. replicas: all that were looked at."""

    replicas: tuple[str, ...]
    findings: tuple[Finding, ...]
    probed: bool

    @property
    def healthy(self) -> bool:
        """Nothing to mend."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)
