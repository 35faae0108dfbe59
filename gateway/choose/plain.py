"""Policies that look at load or at nothing: yardsticks, and what is left where nothing is known."""

from __future__ import annotations

import math
from random import Random as RandomSource

from gateway.choose.price import Prices, unpriced
from gateway.choose.types import Decision, FleetView, NoEligible, RequestView


class RoundRobin:
    """Eligible holders in turn, in the order of their numbers."""

    name = "round_robin"

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        prices = unpriced(request, fleet)
        self._last = _next_after(self._last, prices.holders)
        return by_policy(self._last, prices)


class LeastLoaded:
    """The fewest open requests, then the fewest queued tokens; equals take turns.

    Turns, not a hash of the prefix: this policy must not gain affinity by accident.
    """

    name = "least_loaded"

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        prices = unpriced(request, fleet)
        loads = [(fleet.in_flight[holder], fleet.queued_tokens[holder]) for holder in prices.holders]
        least = min(loads, default=None)
        equal = [holder for holder, load in zip(prices.holders, loads, strict=True) if load == least]
        self._last = _next_after(self._last, equal)
        return by_policy(self._last, prices)


class PowerOfTwo:
    """The one with less expected wait of two drawn at random, then the one with fewer open requests (Mitzenmacher 1996)."""

    name = "power_of_two"

    def __init__(self, source: RandomSource) -> None:
        self._random = source

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        prices = unpriced(request, fleet)
        drawn = self._random.sample(prices.holders, min(2, len(prices.holders)))
        if not drawn:
            raise NoEligible
        return by_policy(min(drawn, key=lambda holder: _wait_of(fleet, holder)), prices)


class Random:
    """Any eligible holder, each as likely as the others."""

    name = "random"

    def __init__(self, source: RandomSource) -> None:
        self._random = source

    def choose(self, request: RequestView, fleet: FleetView, now: float) -> Decision:
        """See `Policy.choose`."""
        prices = unpriced(request, fleet)
        if not prices.holders:
            raise NoEligible
        return by_policy(self._random.choice(prices.holders), prices)


def _next_after(last: int, holders: list[int]) -> int:
    """The first holder number above `last`, else the lowest; raises NoEligible for none."""
    if not holders:
        raise NoEligible
    return next((holder for holder in holders if holder > last), holders[0])


def by_policy(holder: int, prices: Prices) -> Decision:
    """The decision for a holder that was not chosen for its price; the credit it happens to have is told all the same."""
    credit = prices.credit[prices.holders.index(holder)]
    return Decision(holder, "policy", math.nan, credit, prices.candidates())


def _wait_of(fleet: FleetView, holder: int) -> tuple[float, int, int]:
    return fleet.wait_s[holder] + fleet.drag_s[holder], fleet.in_flight[holder], fleet.queued_tokens[holder]
