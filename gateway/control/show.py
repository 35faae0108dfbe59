"""Receipts and replicas as plain data for the control plane's JSON."""

from __future__ import annotations

import math
from typing import Any

from events.redis_source import RedisStream
from gateway.choose.types import Candidate, Receipt
from gateway.fleet import Fleet, Replica
from gateway.followed import FollowedViews
from gateway.guards import Guards
from gateway.workers.wire import StreamState
from radix.index import IndexStats


def receipt_row(receipt: Receipt, names: list[str]) -> dict[str, Any]:
    """One receipt with its candidates."""
    candidates = [_candidate_row(candidate, names) for candidate in receipt.decision.candidates]
    return {**receipt_facts(receipt), "candidates": candidates}


def receipt_facts(receipt: Receipt) -> dict[str, Any]:
    """One receipt; prices are in seconds, credit and tokens in tokens."""
    decision = receipt.decision
    return {
        "request_id": receipt.request_id,
        "at": receipt.at,
        "model": receipt.model,
        "policy": receipt.policy,
        "replica": receipt.replica,
        "rank": receipt.rank,
        "reason": decision.reason,
        "price_s": _number(decision.price_s),
        "prompt_tokens": receipt.tokens_in,
        "predicted_cached_tokens": decision.credit_tokens,
        "realised_cached_tokens": receipt.realised_tokens,
        "engine_prompt_tokens": receipt.prompt_tokens,
        "output_tokens": receipt.tokens_out,
        "ttft_s": receipt.ttft_s,
        "duration_s": receipt.duration_s,
        "outcome": receipt.outcome,
        "attempts": receipt.attempts,
    }


def replica_row(fleet: Fleet, views: FollowedViews, replica: Replica, guards: Guards) -> dict[str, Any]:
    """One replica as an operator wants to see it."""
    return {
        "name": replica.name,
        "url": replica.address.url,
        "dialect": replica.dialect.name,
        "models": replica.models,
        "healthy": replica.healthy,
        "last_error": replica.last_error,
        "down": replica.down,
        "ejected": replica.ejected,
        "breaker": guards.state(replica).value,
        "warming": replica in guards.warming,
        "draining": replica.draining,
        "ranks": [_rank_row(fleet, views, rank, holder) for rank, holder in enumerate(replica.holders)],
    }


def index_row(stats: IndexStats) -> dict[str, int]:
    """The sizes of the index."""
    return {name: getattr(stats, name) for name in ("holders", "nodes", "blocks", "guesses", "orphans", "loose", "bytes")}


def _rank_row(fleet: Fleet, views: FollowedViews, rank: int, holder: int) -> dict[str, Any]:
    view = fleet.view
    stream, load = views.stream(holder), fleet.own_load(holder)
    return {
        "rank": rank,
        "in_flight": load.in_flight,
        "queued_tokens": load.queued_tokens,
        "decoding": load.decoding,
        "prefill_tokens_per_s": view.prefill_rate[holder],
        "trust": view.trust[holder],
        "freshness": view.freshness[holder].value,
        "follows_events": stream is not None,
        "relayed": isinstance(stream, RedisStream | StreamState) and stream.relayed,
        "events_connected": stream is not None and stream.connected,
    }


def _candidate_row(candidate: Candidate, names: list[str]) -> dict[str, Any]:
    return {
        "replica": names[candidate.holder],
        "credit_tokens": candidate.credit_tokens,
        "price_s": _number(candidate.price_s),
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
