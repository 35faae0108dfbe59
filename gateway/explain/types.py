"""An explanation: what a request is to the gateway, what each holder would cost, and what each policy would choose."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.choose.terms import Terms
from gateway.choose.types import Decision
from gateway.errors import Refusal
from radix.namespace import Namespace


@dataclass(frozen=True, slots=True)
class HolderFacts:
    """One holder at the moment of asking.

    why_not: 'model', 'down', 'draining' or 'left', None where it may be chosen; detail: more of it, in words. depth: matched
    tokens by tier (device, host, disk, shared), each with those of faster tiers. guessed: they rest on our own choice. terms:
    None where it may not be chosen.
    """

    holder: int
    replica: str
    rank: int
    why_not: str | None
    detail: str | None
    depth: tuple[int, ...]
    guessed: bool
    block_tokens: int
    freshness: str
    trust: float
    prefill_rate: float
    in_flight: int
    queued_tokens: int
    decoding: int
    terms: Terms | None


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What one policy answers. decision: None where it could not; why_not: then why."""

    policy: str
    decision: Decision | None
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer.

    tokens: of the prompt, None where it has no ids, and then no_tokens_reason says why. refusal: what the client would get
    instead of an answer. others: what the other policies would choose now.
    """

    kind: str
    model: str
    namespace: Namespace | None
    tokens: int | None
    no_tokens_reason: str | None
    session: bool
    priority: int
    holders: tuple[HolderFacts, ...]
    choice: PolicyChoice
    others: tuple[PolicyChoice, ...]
    refusal: Refusal | None = None
