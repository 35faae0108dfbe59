"""The fleet as the gateway's policies see it, kept up to date the way the gateway does it.

A placed request counts as uncached tokens waiting until its first token, then as one decoding sequence until it ends; rates
and trust are learned from what comes back, and the index holds a guess for what was placed until the request ends. Nothing
here looks into an engine: a policy knows what a gateway would know.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from events.types import Freshness
from gateway.choose.prefix import prefix_hash
from gateway.choose.rates import Rates
from gateway.choose.types import FleetView, Policy, RequestView
from radix.index import GuessId
from radix.match import Int32Array, Match
from radix.namespace import Namespace
from radix.reading import ReadableIndex

_NAMESPACE = Namespace(model="simulated")
_GUESS_TTL_S = 10.0
_STICKY_TOKENS = 1_536  # the tie-breaking hash looks at this much of a prompt where the tree shows no branching point


@dataclass(slots=True)
class Placed:
    """One request on its way, as the gateway remembers it. waited_tokens: uncached tokens its holder had to do before it."""

    holder: int
    at_s: float
    predicted_tokens: int
    uncached_tokens: int
    waited_tokens: int
    guess: GuessId | None


class SimulatedFleet:
    """Chooses for each request with the gateway's own policy and keeps the load it chooses by."""

    def __init__(self, policy: Policy, index: ReadableIndex, *, replicas: int, block_tokens: int, guesses: bool) -> None:
        names = [f"replica-{number}" for number in range(replicas)]
        self.rates = Rates()
        self.holders = [index.holder(name, 0) for name in names]
        self.view = FleetView()
        for _ in range(max(self.holders) + 1):
            self.view.grow()
        self._policy = policy
        self._index = index
        self._block_tokens = block_tokens
        self._guesses = guesses
        for holder, name in zip(self.holders, names, strict=True):
            index.set_model(holder, _NAMESPACE.model)
            self._open_slot(holder, name)

    def place(self, ids: Int32Array, input_tokens: int, now_s: float, session: str | None = None) -> Placed:
        """Match, choose, reserve. ids: int32 [blocks], the prompt's block ids."""
        request = RequestView(
            tokens=input_tokens,
            namespace=_NAMESPACE,
            match=self._match(ids, input_tokens),
            session=session,
            prefix_hash=prefix_hash(ids, max(1, _STICKY_TOKENS // self._block_tokens)),
        )
        decision = self._policy.choose(request, self.view, now_s)
        holder = decision.holder
        uncached = max(0, input_tokens - decision.credit_tokens)
        placed = Placed(holder, now_s, decision.credit_tokens, uncached, self.view.queued_tokens[holder], None)
        if self._guesses and uncached:
            placed.guess = self._index.guess(holder, _NAMESPACE, ids, now_s + _GUESS_TTL_S)
        self._load(holder, requests=1, queued_tokens=uncached)
        return placed

    def first_token(self, placed: Placed, now_s: float) -> None:
        """The prefill is over: what was waiting now decodes, and the rates learn from how long it took."""
        self.rates.observe_first_byte(
            placed.holder,
            uncached_tokens=placed.uncached_tokens,
            waited_tokens=placed.waited_tokens,
            ttft_s=now_s - placed.at_s,
        )
        self._load(placed.holder, queued_tokens=-placed.uncached_tokens, decoding=1)

    def finished(self, placed: Placed, hit_tokens: int) -> None:
        """The answer is complete and the engine reported what was cached."""
        holder = placed.holder
        self.rates.observe_credit(holder, placed.predicted_tokens, hit_tokens)
        self._load(holder, requests=-1, decoding=-1)
        self._refresh(holder)
        if placed.guess is not None:
            self._index.withdraw(placed.guess)

    def check_drained(self) -> None:
        """Assert that every request gave its load back."""
        for holder in self.holders:
            load = (self.view.in_flight[holder], self.view.queued_tokens[holder], self.view.decode_load[holder])
            assert load == (0, 0, 0), f"{self.view.names[holder]} still has load {load}"

    def _match(self, ids: Int32Array, input_tokens: int) -> Match:
        """What the index knows, with depths in tokens: an id stands for a block, and the last block may be partial."""
        match = self._index.match(_NAMESPACE, ids)
        return Match(np.minimum(match.depth * self._block_tokens, input_tokens), match.guessed, match.known)

    def _load(self, holder: int, *, requests: int = 0, queued_tokens: int = 0, decoding: int = 0) -> None:
        view = self.view
        view.in_flight[holder] += requests
        view.queued_tokens[holder] += queued_tokens
        view.decode_load[holder] += decoding
        view.wait_s[holder] = view.queued_tokens[holder] / view.prefill_rate[holder]
        view.drag_s[holder] = self.rates.drag_s(holder, view.decode_load[holder])

    def _refresh(self, holder: int) -> None:
        self.view.prefill_rate[holder] = self.rates.prefill_rate(holder)
        self.view.trust[holder] = self.rates.trust(holder)
        self._load(holder)

    def _open_slot(self, holder: int, name: str) -> None:
        # The same stable number per replica as the gateway's, so that ties fall alike.
        order = hashlib.blake2b(f"{name}/0".encode(), digest_size=8).digest()
        self.view.order[holder] = int.from_bytes(order, "little")
        self.view.names[holder] = name
        self.view.freshness[holder] = Freshness.LIVE
        self.view.eligible[holder] = True
        # The modelled pool counts a prompt's partial last block too, so credit is exact to the token.
        self.view.block_tokens[holder] = 1
        self._refresh(holder)
