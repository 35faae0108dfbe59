"""What a policy sees and what it answers."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from events.types import Freshness
from gateway.errors import GatewayError
from radix.match import Match
from radix.namespace import Namespace

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request as a policy sees it.

    tokens: prompt length; 0 where the prompt could not be tokenized (then `match` is empty).
    """

    tokens: int
    namespace: Namespace
    match: Match
    session: str | None = None
    priority: int = 0
    prefix_hash: int = 0  # of the prefix up to the first branching point or 1,536 tokens; breaks exact ties


def _floats() -> MutableSequence[float]:
    return array("d")


def _integers() -> MutableSequence[int]:
    return array("q")


@dataclass(slots=True)
class FleetView:
    """The fleet as a policy sees it: columns indexed by holder number, kept up to date in place when load changes.

    Columns of numbers are arrays, which read like lists and can be computed with as a whole (`many.py`); lists will do, too.

    A holder number without a replica has `eligible[h]` False. wait_s: predicted seconds until a new prefill starts.
    prefill_rate: tokens per second. queued_tokens: uncached prompt tokens sent and not yet prefilled. decode_load: sequences
    decoding now. drag_s: extra seconds a new request costs because of those. in_flight: open requests. trust: realised over
    predicted credit, 0..1. names: replica names, for receipts. order: a stable random number per replica, for the
    rendezvous hash. block_tokens: the holder's block size as its events say; 0 where it is not known.
    """

    wait_s: MutableSequence[float] = field(default_factory=_floats)
    prefill_rate: MutableSequence[float] = field(default_factory=_floats)
    queued_tokens: MutableSequence[int] = field(default_factory=_integers)
    decode_load: MutableSequence[int] = field(default_factory=_integers)
    drag_s: MutableSequence[float] = field(default_factory=_floats)
    in_flight: MutableSequence[int] = field(default_factory=_integers)
    trust: MutableSequence[float] = field(default_factory=_floats)
    freshness: list[Freshness] = field(default_factory=list)
    eligible: MutableSequence[int] = field(default_factory=bytearray)
    order: MutableSequence[int] = field(default_factory=lambda: array("Q"))
    names: list[str] = field(default_factory=list)
    block_tokens: MutableSequence[int] = field(default_factory=_integers)

    def grow(self) -> None:
        """One more holder number, with nothing behind it yet."""
        for column in (
            self.wait_s,
            self.drag_s,
            self.queued_tokens,
            self.decode_load,
            self.in_flight,
            self.block_tokens,
            self.order,
        ):
            column.append(0)
        self.prefill_rate.append(1.0)
        self.trust.append(1.0)
        self.freshness.append(Freshness.COLD)
        self.eligible.append(False)
        self.names.append("")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One eligible holder as it was weighed. price_s is NaN for policies that do not price."""

    holder: int
    credit_tokens: int
    price_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of a policy.

    reason: a closed set, used as header, receipt and metric label: 'credit' (longest usable prefix won), 'price' (a holder
    with less or no credit was cheaper than the best holder), 'load' (nobody has credit, the least price won), 'no_tokens',
    'policy' (the policy does not look at credit). Who masks the fleet adds 'ejected': all that could be chosen were.
    credit_tokens: tokens of the prompt the chosen holder need not compute: never the last token, always whole blocks.
    """

    holder: int
    reason: str
    price_s: float
    credit_tokens: int
    candidates: Sequence[Candidate] = ()


class Policy(Protocol):
    """Chooses one eligible holder; raises `NoEligible` when there is none. Costs O(holders) and never blocks."""

    name: str

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision: ...


class NoEligible(GatewayError):
    """No holder may take the request."""


@dataclass(slots=True)
class Receipt:
    """One decision and what became of it; kept in a ring on the control plane."""

    request_id: str
    at: float  # unix seconds
    model: str
    policy: str
    replica: str
    rank: int
    decision: Decision
    tokens_in: int  # prompt tokens by our count, 0 where unknown
    realised_tokens: int | None = None  # cached tokens the engine reported
    prompt_tokens: int | None = None  # prompt tokens the engine reported
    tokens_out: int | None = None
    ttft_s: float | None = None  # of streamed answers; the first byte of others is their last
    duration_s: float | None = None
    outcome: str = "open"  # 'ok', 'client_error', 'engine_error', 'client_left', 'cut', 'refused'
    attempts: int = 1
