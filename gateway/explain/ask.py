"""Ask what would become of a request now, by the very code that places requests, and stop before anything is reserved."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, Protocol

from gateway.choose.policies import BY_HISTORY, POLICY_NAMES, policy_named
from gateway.choose.terms import Terms, terms
from gateway.choose.types import FleetView, NoEligible, Policy, RequestView
from gateway.errors import GatewayError, NoReplica, Refusal
from gateway.explain.types import Explanation, HolderFacts, PolicyChoice
from gateway.place import FleetPlacer, PlacementCounts
from gateway.refusals import unavailable
from gateway.request import Intent, Prompt
from radix.match import TIERS, Int32Array
from radix.reading import ReadableIndex

_SEED = 0  # of policies that draw: the same question gets the same answer


class PromptSource(Protocol):
    """Where token ids come from: `gateway.prompt.Prompts`."""

    def of(self, intent: Intent, body: bytes, take: Callable[[Prompt], None]) -> Prompt | asyncio.Future[Prompt]: ...


class _Asked(GatewayError):
    """A placer asked its policy; nothing is reserved yet."""

    def __init__(self, request: RequestView, fleet: FleetView, now: float) -> None:
        super().__init__("a placer asked its policy")
        self.request, self.fleet, self.now = request, fleet, now


class _Listener:
    """In place of a policy: says what it was asked, and so ends the placing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> NoReturn:
        """See `Policy.choose`."""
        raise _Asked(request, fleet, now)


class Explainer:
    """Explains requests on the loop of the placer it asks. announced: the index that events feed."""

    def __init__(self, placer: FleetPlacer, prompts: PromptSource, announced: ReadableIndex) -> None:
        self._placer = placer
        self._prompts = prompts
        self._announced = announced

    async def explain(self, intent: Intent, body: bytes) -> Explanation:
        """What would happen to a request of this body now. It costs its tokenizing and one match."""
        prompt = self._prompts.of(intent, body, lambda prompt: None)
        return self.judge(intent, prompt if isinstance(prompt, Prompt) else await prompt)

    def judge(self, intent: Intent, prompt: Prompt) -> Explanation:
        """The same of a request whose tokens are known."""
        try:
            asked = self._asked(intent, prompt)
        except Refusal as refusal:
            return self._refused(intent, prompt, refusal)
        except NoReplica as error:
            return self._refused(intent, prompt, unavailable(str(error), error.retry_after_s))
        policy = self._placer.policy
        # A copy: policies that take turns or draw must not notice that somebody asked.
        choice = _choice(copy.deepcopy(policy), asked.request, asked)
        others = [self._other(name, prompt.tokens, asked) for name in POLICY_NAMES if name != policy.name]
        model = intent.model or asked.request.namespace.model
        explanation = self._explanation(intent, prompt, model, choice)
        return replace(
            explanation,
            namespace=asked.request.namespace,
            holders=self._holders(model, asked),
            others=tuple(others),
            refusal=None if choice.decision is not None else unavailable(str(NoReplica(model))),
        )

    def _asked(self, intent: Intent, prompt: Prompt) -> _Asked:
        """What the placer would ask its policy; raises what placing raises."""
        dry = copy.copy(self._placer)
        dry.counts = PlacementCounts()
        dry.policy = _Listener(self._placer.policy.name)
        try:
            dry.place(intent, prompt, "")
        except _Asked as asked:
            return asked
        raise AssertionError("the placer did not ask its policy")

    def _other(self, name: str, tokens: Int32Array | None, asked: _Asked) -> PolicyChoice:
        if name in BY_HISTORY:
            return PolicyChoice(name, None, "it goes by what was sent before, which is only remembered while it is the policy")
        request = asked.request
        if self._placer.policy.name in BY_HISTORY and tokens is not None:
            request = replace(request, match=self._announced.match(request.namespace, tokens))
        return _choice(policy_named(name, seed=_SEED), request, asked)

    def _holders(self, model: str, asked: _Asked) -> tuple[HolderFacts, ...]:
        priced = terms(asked.request, asked.fleet)
        fleet = self._placer.fleet
        return tuple(self._facts(holder, model, asked, priced.get(holder)) for holder in fleet.by_holder)

    def _facts(self, holder: int, model: str, asked: _Asked, priced: Terms | None) -> HolderFacts:
        view, match = asked.fleet, asked.request.match
        replica, rank = self._placer.fleet.by_holder[holder]
        why_not = detail = None
        if priced is None:
            if replica.models and model not in replica.models:
                why_not, detail = "model", f"serves {', '.join(replica.models)}"
            elif replica.draining:
                why_not = "draining"
            else:
                why_not, detail = "down", replica.last_error
        known = match.known and holder < len(match.depth)
        return HolderFacts(
            holder=holder,
            replica=replica.name,
            rank=rank,
            why_not=why_not,
            detail=detail,
            depth=tuple(match.depth[holder].tolist()) if known else (0,) * TIERS,
            guessed=known and bool(match.guessed[holder]),
            block_tokens=view.block_tokens[holder],
            freshness=view.freshness[holder].value,
            trust=view.trust[holder],
            prefill_rate=view.prefill_rate[holder],
            in_flight=view.in_flight[holder],
            queued_tokens=view.queued_tokens[holder],
            decoding=view.decode_load[holder],
            terms=priced,
        )

    def _refused(self, intent: Intent, prompt: Prompt, refusal: Refusal) -> Explanation:
        choice = PolicyChoice(self._placer.policy.name, None, refusal.message)
        return replace(self._explanation(intent, prompt, intent.model or "", choice), refusal=refusal)

    def _explanation(self, intent: Intent, prompt: Prompt, model: str, choice: PolicyChoice) -> Explanation:
        """What is known of the request alone."""
        return Explanation(
            kind=intent.kind.value,
            model=model,
            namespace=None,
            tokens=None if prompt.tokens is None else len(prompt.tokens),
            no_tokens_reason=prompt.no_tokens_reason,
            session=intent.session is not None,
            priority=intent.priority,
            holders=(),
            choice=choice,
            others=(),
        )


def _choice(policy: Policy, request: RequestView, asked: _Asked) -> PolicyChoice:
    try:
        return PolicyChoice(policy.name, policy.choose(request, asked.fleet, asked.now))
    except NoEligible:
        return PolicyChoice(policy.name, None, "no replica may be chosen")
