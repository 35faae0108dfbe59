"""Place a request: match, choose, reserve; and keep what it reserved until it ends.

A `FleetTicket` is the only thing that changes load. It takes load when it is placed or moved, turns waiting into decoding at
the first byte, and gives everything back in `close`, which runs once however often it is called (FC-25, FC-29).
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from events.types import Freshness
from gateway.choosable import Choosable
from gateway.choose.prefix import prefix_hash
from gateway.choose.types import Decision, Policy, Receipt, RequestView
from gateway.config import Resilience
from gateway.due import DueList
from gateway.fleet import Fleet, Replica
from gateway.guards import Guards
from gateway.histogram import DURATION_BOUNDS_S, TTFT_BOUNDS_S, Histogram
from gateway.models import resolve
from gateway.request import Intent, Outcome, Prompt, Ticket, Usage
from gateway.witness import NOBODY, Witness
from radix.index import GuessId
from radix.match import EMPTY, Match
from radix.namespace import Namespace
from radix.reading import ReadableIndex

log = logging.getLogger(__name__)

# After the prompt is computed the events say what is held; a guess outlives that only by the time an event may take.
_GUESS_LINGER_S = 1.0


@dataclass(slots=True)
class PlacementCounts:
    """Hot counters of placing, read at scrape time. Tokens are prompt tokens."""

    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)  # (replica, reason)
    no_tokens: Counter[str] = field(default_factory=Counter)  # why a prompt had no ids (FC-22)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # (replica, outcome)
    prompt_tokens: int = 0
    output_tokens: int = 0
    predicted_tokens: int = 0
    realised_tokens: int = 0
    predictions: int = 0  # requests where both figures are known
    exact_predictions: int = 0
    token_mismatches: int = 0  # the engine counted other prompt tokens than we did
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS_S))
    duration: Histogram = field(default_factory=lambda: Histogram(DURATION_BOUNDS_S))


class FleetPlacer:
    """Opens tickets. One per gateway process; everything runs on the loop's thread."""

    def __init__(
        self,
        fleet: Fleet,
        index: ReadableIndex,
        policy: Policy,
        *,
        guess_ttl_s: float,
        receipts: int,
        on_fault: Callable[[Replica], None] = lambda replica: None,
        on_answered: Callable[[int, int], None] = lambda holder, uncached_tokens: None,
        guards: Guards | None = None,
        witness: Witness = NOBODY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fleet = fleet
        self.index = index
        self.policy = policy
        self.guess_ttl_s = guess_ttl_s
        self.receipts: deque[Receipt] = deque(maxlen=receipts)
        self.counts = PlacementCounts()
        self.on_fault = on_fault
        self.on_answered = on_answered
        self.witness = witness
        self.clock = clock
        self.due = DueList()
        self.guards = guards or Guards(fleet, Resilience())
        self._choosable = Choosable(fleet, self.guards)

    def place(self, intent: Intent, prompt: Prompt, request_id: str, *, beside: Ticket | None = None) -> FleetTicket:
        """Match, choose, reserve. Raises NoReplica, NoRoom, or Refusal 404 for a model nobody serves."""
        now = self.clock()
        self.due.run(now)
        model, namespace = resolve(self.fleet, intent)
        elsewhere = () if beside is None else beside.replica.holders
        ticket = FleetTicket(self, intent, prompt, model, namespace, request_id, now, elsewhere)
        if prompt.tokens is None:
            self.counts.no_tokens[prompt.no_tokens_reason or "unknown"] += 1
        if beside is None:
            self.witness.placed(request_id, intent, prompt, namespace)
        return ticket

    def choose(self, request: RequestView, model: str, tried: set[int], now: float, *, waits: bool) -> Decision:
        """The policy's answer among holders that serve the model and were not tried; raises NoReplica, or NoRoom if it waits."""
        return self._choosable.choose(self.policy, request, model, tried, now, waits=waits)


class FleetTicket:
    """One request's stay in the fleet (`gateway.request.Ticket`)."""

    __slots__ = (
        "_closed",
        "_decoding",
        "_first_byte_at",
        "_guess",
        "_holder",
        "_intent",
        "_judged",
        "_may_wait",
        "_model",
        "_namespace",
        "_on_trial",
        "_placed_at",
        "_placer",
        "_prefilled",
        "_prompt",
        "_started_at",
        "_tried",
        "_uncached",
        "_waited",
        "attempts",
        "decision",
        "policy",
        "prompt_tokens",
        "rank",
        "replica",
        "request_id",
    )

    def __init__(
        self,
        placer: FleetPlacer,
        intent: Intent,
        prompt: Prompt,
        model: str,
        namespace: Namespace,
        request_id: str,
        now: float,
        elsewhere: Sequence[int],
    ) -> None:
        """elsewhere: holders that are not to be chosen."""
        self.request_id = request_id
        self.policy = placer.policy.name
        self.attempts = 0
        self._placer = placer
        self._intent = intent
        self._prompt: Prompt | None = prompt
        self.prompt_tokens = 0 if prompt.tokens is None else len(prompt.tokens)  # by our count; 0 where it has no ids
        self._model = model
        self._namespace = namespace
        self._started_at = now
        # Those that can not answer it count as tried: what a request names is kept by one replica only.
        self._tried: set[int] = set(elsewhere) if intent.pin is None else placer.fleet.holders_beside(intent.pin)
        self._may_wait = intent.pin is None
        self._closed = False
        self._judged = False  # what this attempt says of its replica has been told
        self._holder = -1
        self._first_byte_at: float | None = None
        self._enter(now)

    def owner(self, holder: int) -> tuple[str, int]:
        """See `Ticket`; ("", 0) for one that left the fleet meanwhile."""
        replica, rank = self._placer.fleet.by_holder.get(holder, (None, 0))
        return (replica.name if replica is not None else "", rank)

    def move(self, *, fault: bool) -> None:
        """Leave for the next best replica not yet tried; raises NoReplica, and then holds no load but is still open."""
        now = self._placer.clock()
        replica = self.replica
        # Ranks of one replica keep the same things: one answer is that of all.
        self._tried.update(replica.holders if self._intent.seeks else (self._holder,))
        self._leave(withdraw=True)
        if fault:
            self._judge_failed()
            self._placer.on_fault(replica)
        self._enter(now)

    def answered(self, status: int) -> None:
        """See `Ticket.answered`."""
        if not self._judged:
            self._judged = True
            self._placer.guards.answered(self.replica, status, self._placer.clock())

    def _judge_failed(self) -> None:
        if not self._judged:
            self._judged = True
            self._placer.guards.failed(self.replica, self._placer.clock())

    def _judge_end(self, outcome: Outcome) -> None:
        """What the end says of the replica, where nothing has been said before."""
        if outcome is Outcome.ENGINE_ERROR:
            self._judge_failed()
        elif outcome is Outcome.CUT and self._judged:
            self._placer.guards.cut(self.replica)
        elif self._on_trial and not self._judged:
            self._placer.guards.undecided(self.replica)

    def first_byte(self) -> None:
        """The prefill is over: what was waiting now decodes, and the rates learn from how long it took."""
        if self._closed or self._first_byte_at is not None:
            return
        now = self._placer.clock()
        self._first_byte_at = now
        self._prompt = None  # no other replica will be tried; a long stream need not hold a long prompt
        if self._intent.stream and self.prompt_tokens and self._is_holder(self._holder):
            self._placer.fleet.rates.observe_first_byte(
                self._holder,
                uncached_tokens=self._uncached,
                waited_tokens=self._waited,
                ttft_s=now - self._placed_at,
                decoding=self._decoding,
            )
            self._placer.guards.first_byte(self.replica, now - self._placed_at, self._uncached + self._waited)
        self._mark_prefilled()

    def close(self, outcome: Outcome, usage: Usage | None = None) -> None:
        """Give everything back, learn, and write the receipt. Runs once."""
        if self._closed:
            return
        self._closed = True
        placer = self._placer
        now = placer.clock()
        computed = self._first_byte_at is not None and outcome in (Outcome.OK, Outcome.CUT, Outcome.CLIENT_LEFT)
        holder = self._holder
        placer.counts.outcomes[self.replica.name, outcome.value] += 1
        if holder >= 0:
            self._judge_end(outcome)
            known = self._is_holder(holder)
            self._leave(withdraw=not computed)
            if outcome is Outcome.OK and known:
                placer.on_answered(holder, self._uncached)
                self._learn(holder, usage)
                placer.fleet.refresh(self.replica)
        if self._first_byte_at is not None and self._intent.stream:
            placer.counts.ttft.observe(self._first_byte_at - self._started_at)
        receipt = self._receipt(outcome, usage, now)
        placer.receipts.append(receipt)
        if outcome is not Outcome.HEDGED:  # its other copy tells
            placer.counts.duration.observe(now - self._started_at)
            placer.witness.closed(receipt)

    def _enter(self, now: float) -> None:
        assert self._prompt is not None
        placer, tokens = self._placer, self._prompt.tokens
        match: Match = EMPTY if tokens is None else placer.index.match(self._namespace, tokens)
        request = RequestView(
            tokens=self.prompt_tokens,
            namespace=self._namespace,
            match=match,
            session=self._intent.session,
            priority=self._intent.priority,
            prefix_hash=0 if tokens is None else prefix_hash(tokens),
        )
        self._guess: GuessId | None = None
        self._prefilled = False
        self._placed_at = now
        decision = placer.choose(request, self._model, self._tried, now, waits=self._may_wait)
        self._may_wait = False  # once in, it does not wait again: what one replica failed at goes on at once where it can
        holder = decision.holder
        self.decision = decision
        self.attempts += 1
        self.replica, self.rank = placer.fleet.by_holder[holder]
        self._holder = holder
        self._judged = False
        self._on_trial = self.replica.on_trial
        if self._on_trial:
            placer.guards.trial(self.replica)
        self._uncached = max(0, self.prompt_tokens - decision.credit_tokens)
        self._waited = placer.fleet.view.queued_tokens[holder]
        self._decoding = placer.fleet.view.decode_load[holder]
        placer.fleet.load(holder, requests=1, queued_tokens=self._uncached)
        placer.counts.decisions[self.replica.name, decision.reason] += 1
        if tokens is not None and self._uncached:
            self._guess = placer.index.guess(holder, self._namespace, tokens, now + placer.guess_ttl_s)
        if not self._intent.stream:  # its first byte comes at the very end: the expected prefill time stands in for it
            expected_s = (self._waited + self._uncached) / placer.fleet.view.prefill_rate[holder]
            attempt = self.attempts
            placer.due.add(now + expected_s, lambda: self._mark_prefilled() if self.attempts == attempt else None)

    def _is_holder(self, holder: int) -> bool:
        """The number still means the replica this ticket was placed on."""
        owner = self._placer.fleet.by_holder.get(holder)
        return owner is not None and owner[0] is self.replica

    def _mark_prefilled(self) -> None:
        if self._prefilled or not self._is_holder(self._holder):
            return
        self._prefilled = True
        self._placer.fleet.load(self._holder, queued_tokens=-self._uncached, decoding=1)

    def _leave(self, *, withdraw: bool) -> None:
        placer, holder = self._placer, self._holder
        self._holder = -1
        if not self._is_holder(holder):  # removed meanwhile; its number, load and guesses are gone or another's
            self._guess = None
            return
        waiting = 0 if self._prefilled else self._uncached
        placer.fleet.load(holder, requests=-1, queued_tokens=-waiting, decoding=-1 if self._prefilled else 0)
        guess, self._guess = self._guess, None
        if guess is None:
            return
        if withdraw:
            placer.index.withdraw(guess)
        elif placer.fleet.view.freshness[holder] is Freshness.LIVE:
            placer.due.add(placer.clock() + _GUESS_LINGER_S, lambda: placer.index.withdraw(guess))

    def _learn(self, holder: int, usage: Usage | None) -> None:
        if usage is None:
            return
        counts = self._placer.counts
        counts.prompt_tokens += usage.prompt_tokens
        counts.output_tokens += usage.completion_tokens
        if not self.prompt_tokens or self._intent.is_batch:  # an engine reports a batch as one sum
            return
        same = usage.prompt_tokens == self.prompt_tokens
        if not self._intent.sent_ids and self.replica.ids.counted(same=same):
            log.warning("prompt counts %s replica=%s", "agree again" if same else "differ", self.replica.name)
        if not same:
            counts.token_mismatches += 1
            return
        if usage.cached_tokens is not None:
            predicted = self.decision.credit_tokens
            counts.predictions += 1
            counts.exact_predictions += predicted == usage.cached_tokens
            counts.predicted_tokens += predicted
            counts.realised_tokens += usage.cached_tokens
            self._placer.fleet.rates.observe_credit(holder, predicted, usage.cached_tokens)

    def _receipt(self, outcome: Outcome, usage: Usage | None, now: float) -> Receipt:
        first = self._first_byte_at
        return Receipt(
            request_id=self.request_id,
            at=time.time(),
            model=self._model,
            policy=self.policy,
            replica=self.replica.name,
            rank=self.rank,
            decision=self.decision,
            tokens_in=self.prompt_tokens,
            realised_tokens=usage.cached_tokens if usage else None,
            prompt_tokens=usage.prompt_tokens if usage else None,
            tokens_out=usage.completion_tokens if usage else None,
            ttft_s=first - self._started_at if first is not None and self._intent.stream else None,
            duration_s=now - self._started_at,
            outcome=outcome.value,
            attempts=self.attempts,
        )
