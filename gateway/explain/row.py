"""An explanation as one JSON object; names of replicas, figures and words of ours only, nothing of the prompt."""

from __future__ import annotations

import math
from typing import Any

from gateway.choose.types import Decision
from gateway.explain.types import Explanation, HolderFacts, PolicyChoice

Row = dict[str, Any]

_TIERS = ("device", "host", "disk", "shared")
MEANINGS = {
    "credit": "it holds the longest usable prefix",
    "price": "it costs less than the holder with the longest usable prefix",
    "load": "nobody holds any of the prompt; it costs least",
    "no_tokens": "the prompt has no token ids, so only load was looked at",
    "policy": "the policy chooses without looking at credit",
}


def explanation_row(explanation: Explanation) -> Row:
    """The whole answer. Seconds, tokens and tokens per second, as the names say."""
    names = {one.holder: (one.replica, one.rank) for one in explanation.holders}
    namespace = explanation.namespace
    chosen = explanation.choice.decision
    return {
        "kind": explanation.kind,
        "model": explanation.model,
        "namespace": None
        if namespace is None
        else {
            "model": namespace.model,
            "adapter": namespace.adapter,
            "salted": namespace.salt is not None,
            "images": len(namespace.media),
        },
        "tokens": explanation.tokens,
        "no_tokens_reason": explanation.no_tokens_reason,
        "session": explanation.session,
        "priority": explanation.priority,
        "policy": explanation.choice.policy,
        "decision": None if chosen is None else _decision_row(chosen, names),
        "refused": None
        if explanation.refusal is None
        else {"status": explanation.refusal.status, "message": explanation.refusal.message},
        "candidates": [_holder_row(one, chosen) for one in explanation.holders],
        "policies": [_policy_row(one, explanation, names) for one in (explanation.choice, *explanation.others)],
    }


def _decision_row(decision: Decision, names: dict[int, tuple[str, int]]) -> Row:
    replica, rank = names[decision.holder]
    return {
        "replica": replica,
        "rank": rank,
        "reason": decision.reason,
        "meaning": MEANINGS.get(decision.reason, decision.reason),
        "predicted_cached_tokens": decision.credit_tokens,
        "price_s": None if math.isnan(decision.price_s) else decision.price_s,
    }


def _holder_row(one: HolderFacts, chosen: Decision | None) -> Row:
    priced = one.terms
    return {
        "replica": one.replica,
        "rank": one.rank,
        "chosen": chosen is not None and chosen.holder == one.holder,
        "not_eligible": one.why_not,
        "detail": one.detail,
        "matched_tokens": dict(zip(_TIERS, one.depth, strict=True)),
        "guessed": one.guessed,
        "credit_tokens": priced.credit_tokens if priced else None,
        "confidence": priced.confidence if priced else None,
        "freshness": one.freshness,
        "trust": one.trust,
        "block_tokens": one.block_tokens or None,
        "in_flight": one.in_flight,
        "queued_tokens": one.queued_tokens,
        "decoding": one.decoding,
        "prefill_tokens_per_s": one.prefill_rate,
        "wait_s": priced.wait_s if priced else None,
        "prefill_s": priced.prefill_s if priced else None,
        "moving_s": priced.moving_s if priced else None,
        "drag_s": priced.drag_s if priced else None,
        "price_s": priced.price_s if priced else None,
    }


def _policy_row(one: PolicyChoice, explanation: Explanation, names: dict[int, tuple[str, int]]) -> Row:
    """A policy's choice, priced by what `cost` says of the holder it took, so that policies can be compared."""
    row: Row = {"policy": one.policy, "replica": None, "rank": None, "reason": None, "price_s": None, "why_not": one.why_not}
    if one.decision is None:
        return row
    row["replica"], row["rank"] = names[one.decision.holder]
    row["reason"] = one.decision.reason
    row["credit_tokens"] = one.decision.credit_tokens
    priced = next((facts.terms for facts in explanation.holders if facts.holder == one.decision.holder), None)
    row["price_s"] = priced.price_s if priced else None
    return row
