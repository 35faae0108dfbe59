"""The price for fleets of many holders: the same as `price.weigh`, over arrays instead of one holder after the other.

Worth it from some forty holders on; below that numpy's calls cost more than the loop. `FleetView`'s columns are read in place.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from events.types import Freshness
from gateway.choose.price import (
    DEFAULT_BLOCK_TOKENS,
    FRESHNESS_CONFIDENCE,
    GUESS_CONFIDENCE,
    TIER_LOAD_S,
    Prices,
    bound_s,
    reason_of,
)
from gateway.choose.types import Decision, FleetView, Float64Array, IntArray, NoEligible, RequestView
from radix.match import Int32Array

_TOLD = 32  # candidates of a decision; receipts by the thousand keep them
_LOAD_S = np.array(TIER_LOAD_S)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF, _SOME = np.uint64(32), np.uint64(29)


def choose_of_many(request: RequestView, fleet: FleetView) -> Decision:
    """As `Cost.choose`; the candidates told are the cheapest few, with the chosen one. Raises NoEligible."""
    holders, credit, prices_s = weigh_many(request, fleet)
    if not len(holders):
        raise NoEligible
    at = _best(holders, credit, prices_s, request, fleet)
    reason = reason_of(request, int(credit[at]), int(credit.max()))
    cheapest = np.argpartition(prices_s, _TOLD)[:_TOLD] if len(prices_s) > _TOLD else np.arange(len(prices_s))
    told = np.union1d(cheapest, [at])
    prices = Prices(holders[told].tolist(), credit[told].tolist(), prices_s[told].tolist())
    return Decision(int(holders[at]), reason, float(prices_s[at]), int(credit[at]), prices.candidates())


def weigh_many(request: RequestView, fleet: FleetView) -> tuple[IntArray, IntArray, Float64Array]:
    """As `price.weigh`: holders, credit, prices in seconds. Half of its 20 us for a few hundred holders are numpy's calls."""
    tokens = request.tokens
    holders = np.flatnonzero(np.asarray(fleet.eligible, np.bool_))
    inverse = 1.0 / np.asarray(fleet.prefill_rate, np.float64)[holders]
    prices_s = (np.asarray(fleet.wait_s, np.float64) + np.asarray(fleet.drag_s, np.float64))[holders] + tokens * inverse
    credit = np.zeros(len(holders), np.int64)
    match = request.match
    if match.known and len(match.depth):
        at = np.flatnonzero(holders < len(match.depth))
        at = at[match.depth[holders[at], -1] > 0]
        if len(at):
            credited = holders[at]
            depth = match.depth[credited]
            credit[at] = usable = _credit(depth[:, -1], tokens, np.asarray(fleet.block_tokens, np.int64)[credited])
            counted = usable * _confidence(fleet, credited, match.guessed[credited])
            prices_s[at] += _tier_load_s(depth, usable) - counted * inverse[at]
    return holders, credit, prices_s


def _best(holders: IntArray, credit: IntArray, prices_s: Float64Array, request: RequestView, fleet: FleetView) -> int:
    """The place of the chosen one; as `cost` does it, rank by rank."""
    equal = np.flatnonzero(prices_s <= bound_s(float(prices_s.min())))
    if len(equal) > 1:
        saved = credit[equal] // (max(1, request.tokens) / 4)
        equal = equal[saved == saved.max()]
    for column in (fleet.in_flight, fleet.queued_tokens):
        if len(equal) > 1:
            load = np.asarray(column, np.int64)[holders[equal]]
            equal = equal[load == load.min()]
    if len(equal) == 1:
        return int(equal[0])
    weights = _rendezvous(np.asarray(fleet.order, np.uint64)[holders[equal]], request.prefix_hash)
    return int(equal[weights.argmax()])


def _credit(depth: Int32Array, tokens: int, block_tokens: IntArray) -> IntArray:
    """As `price.credit_tokens`."""
    usable = np.minimum(depth, tokens - 1).astype(np.int64)
    np.maximum(usable, 0, out=usable)
    block_tokens[block_tokens == 0] = DEFAULT_BLOCK_TOKENS
    usable -= usable % block_tokens
    return usable


def _confidence(fleet: FleetView, holders: IntArray, guessed: npt.NDArray[np.bool_]) -> Float64Array:
    """As `price.confidence`."""
    trust = np.asarray(fleet.trust, np.float64)[holders]
    freshness = fleet.freshness
    if freshness.count(Freshness.LIVE) == len(freshness):
        return np.where(guessed, trust * GUESS_CONFIDENCE, trust) if guessed.any() else trust
    shares = np.array([FRESHNESS_CONFIDENCE[freshness[holder]] for holder in holders.tolist()])
    return trust * np.where(guessed, GUESS_CONFIDENCE, shares)


def _tier_load_s(depth: Int32Array, credit: IntArray) -> Float64Array | float:
    """As `price.tier_load_s`. depth: [holders, TIERS], rising."""
    if (depth[:, 0] >= credit).all():
        return 0.0
    upto = np.minimum(depth, credit[:, None])
    load_s: Float64Array = np.diff(upto, axis=1) @ _LOAD_S[1:]
    return load_s


def _rendezvous(order: npt.NDArray[np.uint64], prefix: int) -> npt.NDArray[np.uint64]:
    """As `prefix.rendezvous`."""
    mixed = (order ^ np.uint64(prefix)) * _ODD
    mixed = (mixed ^ (mixed >> _HALF)) * _ODD
    return mixed ^ (mixed >> _SOME)
